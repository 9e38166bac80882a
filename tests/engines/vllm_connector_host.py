# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM that a KV connector meets: its own Scheduler and KV cache manager, and workers with a paged cache of CPU tensors in the
place of GPUs. Their "model" makes each token's K and V from the layer and from all tokens up to it. So each byte that attention would
read is known, and what is computed from a wrong byte is wrong as well."""
import ctypes
import functools
import hashlib
import json
import os
import pickle
import tempfile
import time
from unittest import mock

import numpy as np
import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus  # noqa: F401  the test needs it
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker import kv_connector_model_runner_mixin

from neotier.vllm.memory import HostMemory, HostSave

TOKENS = 16  # of a block
VOCABULARY = 32000
LAYERS = ("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn", "model.layers.10.self_attn.attn")
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "head_dim": 8,
         "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": len(LAYERS), "vocab_size": VOCABULARY,
         "max_position_embeddings": 1 << 17, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5}
LAYOUTS = ("blocks", "kv", "packed", "heads", "kernel")  # where a block's dimension is, below


@functools.lru_cache(None)
def model():
    """It is asked for its shape only, and slow to make."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as file:
            json.dump(MODEL, file)
        return ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="bfloat16", seed=1, max_model_len=1 << 16)


def config(extra, world=1, caching=True, batch=256, running=8, asynchronous=False, threshold=0, **transfer):
    made = VllmConfig(
        model_config=model(), device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=batch, max_model_len=1 << 16,
                                         enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=asynchronous,
                                         long_prefill_token_threshold=threshold),
        cache_config=CacheConfig(block_size=TOKENS, enable_prefix_caching=caching),
        parallel_config=ParallelConfig(tensor_parallel_size=world, distributed_executor_backend="mp" if world > 1 else None),
        kv_transfer_config=KVTransferConfig(**{
            "kv_connector": "NeoTierConnector", "kv_connector_module_path": "neotier.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra, **transfer}))
    return made


def tensors(layout, blocks, sizes):
    """(by layer: what vLLM registers; by layer: [block, token, bytes] of K and of V, or of both). sizes: bytes of K and V of a token."""
    registered, views = {}, {}
    packed = torch.zeros(blocks, sum(TOKENS * 2 * size for size in sizes), dtype=torch.uint8) if layout == "packed" else None
    at = 0
    for name, size in zip(LAYERS, sizes):
        if layout == "blocks":
            one = torch.zeros(blocks, 2, TOKENS, size, dtype=torch.uint8)
            views[name] = [one[:, 0], one[:, 1]]
        elif layout == "kv":
            one = torch.zeros(2, blocks, TOKENS, size, dtype=torch.uint8)
            views[name] = [one[0], one[1]]
        elif layout == "packed":  # blocks of all layers
            length = TOKENS * 2 * size
            one = packed[:, at:at + length].view(blocks, 2, TOKENS, size)
            views[name] = [one[:, 0], one[:, 1]]
            at += length
        elif layout == "heads":  # a block's heads lie apart
            one = torch.zeros(2, blocks, TOKENS, size, dtype=torch.uint8).permute(1, 0, 2, 3)
            views[name] = [one[:, 0], one[:, 1]]
        else:  # "kernel": half a block at a time
            one = torch.zeros(blocks * 2, TOKENS // 2, 2 * size, dtype=torch.uint8)
            whole = one.view(blocks, TOKENS, 2 * size)
            views[name] = [whole[:, :, :size], whole[:, :, size:]]
        registered[name] = one
    return registered, views


class Sequence:
    """The tokens of a request, and what the model makes of them."""

    def __init__(self, row_bytes, ranks):
        self.tokens, self.states = [], []
        self.row_bytes, self.ranks = row_bytes, ranks
        self.rows = np.zeros((0, ranks, row_bytes), np.uint8)

    def extend(self, tokens):
        rows = []
        for token in tokens:
            state = hashlib.blake2b((self.states[-1] if self.states else b"") + b"%d" % token, digest_size=16).digest()
            self.tokens.append(token)
            self.states.append(state)
            rows.append(np.frombuffer(hashlib.shake_128(state).digest(self.ranks * self.row_bytes), np.uint8).reshape(self.ranks, -1))
        if rows:
            self.rows = np.concatenate([self.rows, np.stack(rows)])

    def follow(self, tokens):
        """Makes it these tokens."""
        nr = 0
        while nr < min(len(tokens), len(self.tokens)) and tokens[nr] == self.tokens[nr]:
            nr += 1
        del self.tokens[nr:], self.states[nr:]
        self.rows = self.rows[:nr]
        self.extend(tokens[nr:])

    def next(self, length):
        return int.from_bytes(self.states[length - 1][:4], "little") % (VOCABULARY - 1)


WRONG = VOCABULARY - 1  # the token that follows from wrong bytes


class Rank:
    def __init__(self, host, rank, vllm_config, cache, layout, sizes):
        vllm_config.parallel_config.rank = rank
        self.connector = KVConnectorFactory.create_connector(vllm_config, KVConnectorRole.WORKER, cache)
        vllm_config.parallel_config.rank = 0
        self.registered, self.views = tensors(layout, cache.num_blocks, sizes)
        self.connector.register_kv_caches(self.registered)
        self.number = rank


class GpuLike(HostMemory):
    """As a GPU's memory is used: a layer is copied when it is offered, and finish() has its own thread."""

    class Save(HostSave):
        def __init__(self, *given):
            super().__init__(*given)
            self.copies = {}
            self.store = None
            self.closed = False

        def layer(self, layer, stream=0):
            GpuLike.twice += layer in self.copies
            first = sum(self.store_layers[:layer])
            blocks = len(self._data) // len(self._sizes)
            self.copies[layer] = [ctypes.string_at(self._data.addresses[piece * blocks + block], self._sizes[piece])
                                  for piece in range(first, first + self.store_layers[layer]) for block in range(blocks)]

        def behind(self, stream=0):
            assert len(self.copies) == len(self.store_layers), "not all layers were offered"

        def finish(self):
            time.sleep(GpuLike.delay)
            assert not self.closed
            self._data = [part for layer in range(len(self.store_layers)) for part in self.copies[layer]]
            return super().finish()

        def close(self):
            self.closed = True
            super().close()

    at_once = False
    delay = 0.0
    twice = 0  # layers that were offered again

    def __init__(self, store, layer_pieces):
        super().__init__(store)
        self.layer_pieces = layer_pieces

    def save(self, session, keys, data, first_position=0):
        made = GpuLike.Save(session, keys, data, first_position, self._store.piece_bytes)
        made.store_layers = self.layer_pieces
        return made


class Host:
    """vLLM with our connector. deferred: saves end after the step's output is made, as with a draft model. mixin: in the order of vLLM's
    own model runner."""

    def __init__(self, extra, blocks=256, layout="blocks", sizes=(16, 16, 16), world=1, asynchronous=False, deferred=False, mixin=False,
                 **more):
        self.config = config(extra, world=world, asynchronous=asynchronous, **more)
        self.world, self.asynchronous, self.deferred, self.mixin = world, asynchronous, deferred, mixin
        spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=2, head_size=8, dtype=torch.bfloat16)
        self.cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), spec)])
        self.config.cache_config.num_gpu_blocks = blocks
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(TOKENS, sha256)
        self.sizes = sizes
        self.ranks = []
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=self.config, kv_cache_config=self.cache, block_size=TOKENS, log_stats=True,
            structured_output_manager=StructuredOutputManager(self.config))
        try:
            for rank in range(world):
                self.ranks.append(Rank(self, rank, self.config, self.cache, layout, sizes))
        except Exception:
            self.close()
            raise
        self.aggregator = KVOutputAggregator(world)
        self.sequences, self.pending = {}, {}
        self.number = self.steps = self.wrong = 0
        self.failed_steps = 0
        self.invalid = set()
        self.finished = {}  # request: (tokens, external hits)
        self.hits = {}
        self.served = []
        self.told = []  # counters, as vLLM's front end hears of them

    @property
    def schedule(self):
        return self.scheduler.connector._schedule

    @property
    def worker(self):
        return self.ranks[0].connector._worker

    def add(self, tokens, new=1, salt=None, params=None):
        """A request of these tokens that wants so many new ones."""
        name = str(self.number)
        self.number += 1
        sampling = SamplingParams(max_tokens=new, ignore_eos=True, extra_args={"kv_transfer_params": params} if params else None)
        request = Request(request_id=name, prompt_token_ids=list(tokens), sampling_params=sampling, pooling_params=None,
                          block_hasher=self.hasher, cache_salt=salt)
        self.sequences[name] = Sequence(2 * sum(self.sizes), self.world)
        self.scheduler.add_request(request)
        return name

    # ---- a step

    def rows(self, name, rank, layer):
        """[token, bytes] of K and of V."""
        at = 2 * sum(self.sizes[:layer])
        size = self.sizes[layer]
        rows = self.sequences[name].rows[:, rank]
        return rows[:, at:at + size], rows[:, at + size:at + 2 * size]

    def execute(self, output):
        manager = self.scheduler.kv_cache_manager
        computed = {one.req_id: one.num_computed_tokens for one in output.scheduled_new_reqs}
        computed.update(zip(output.scheduled_cached_reqs.req_ids, output.scheduled_cached_reqs.num_computed_tokens))
        batch = {}
        for name, nr in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            tokens = list(request.all_token_ids) + self.pending.get(name, [])
            self.sequences[name].follow(tokens)
            batch[name] = computed[name], computed[name] + nr, np.array(manager.get_block_ids(name)[0])
        dirty, kv_outputs = (self.as_vllm if self.mixin else self.as_workers)(output, batch)
        invalid = set().union(*(one.invalid_block_ids for one in kv_outputs))
        self.failed_steps += bool(invalid)
        for name in dirty:
            # What was computed from blocks that did not come is thrown away by vLLM.
            if not (invalid | self.invalid).intersection(batch[name][2].tolist()):
                self.wrong += 1
        # A step that was planned before the failure was seen rests on it as well.
        self.invalid = invalid if self.asynchronous else set()
        names = list(batch)
        sampled = []
        for name, (_, end, _) in batch.items():
            sequence = self.sequences[name]
            if end < len(sequence.tokens):
                sampled.append([])
                continue
            token = WRONG if name in dirty else sequence.next(end)
            sampled.append([token])
            self.pending.setdefault(name, []).append(token)
        made = ModelRunnerOutput(req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=sampled,
                                 logprobs=None, prompt_logprobs_dict={}, pooler_output=[])
        outputs = []
        for one in kv_outputs:
            outputs.append(ModelRunnerOutput(req_ids=made.req_ids, req_id_to_index=made.req_id_to_index, sampled_token_ids=sampled,
                                             logprobs=None, prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=one))
        return outputs[0] if self.world == 1 else self.aggregator.aggregate(outputs, 0)

    def as_workers(self, output, batch):
        """What workers do in a step, all of them layer by layer."""
        kv_outputs = []
        for rank in self.ranks:
            work = pickle.loads(pickle.dumps(output.kv_connector_metadata))
            rank.connector.handle_preemptions(work)
            rank.connector.bind_connector_metadata(work)
            if output.has_sync_kv_loads:
                rank.connector.start_load_kv(None)
        dirty = self.forward(batch)
        for rank in self.ranks:
            connector = rank.connector
            if not output.has_sync_kv_loads:
                connector.start_load_kv(None)
            if not self.deferred:
                connector.wait_for_save()
            results = connector.get_transfer_results(output.finished_req_ids)
            made = KVConnectorOutput(finished_sending=results.finished_sending, finished_recving=results.finished_recving,
                                     invalid_block_ids=connector.get_block_ids_with_load_errors(),
                                     kv_connector_stats=connector.get_kv_connector_stats(),
                                     kv_connector_worker_meta=pickle.loads(pickle.dumps(connector.build_connector_worker_meta())))
            kv_outputs.append(made)
            if self.deferred:
                connector.wait_for_save()
            connector.clear_connector_metadata()
        return dirty, kv_outputs

    def as_vllm(self, output, batch):
        """The same of one worker, in the order of vLLM's own model runner."""
        connector = self.ranks[0].connector
        connector.handle_preemptions(output.kv_connector_metadata)
        with mock.patch.object(kv_transfer_state, "_KV_CONNECTOR_AGENT", connector), \
                mock.patch.object(kv_connector_model_runner_mixin, "get_forward_context", lambda: None):
            with kv_connector_model_runner_mixin.KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(
                    output, defer_finalize=self.deferred) as made:
                dirty = self.forward(batch)
            if self.deferred:
                kv_connector_model_runner_mixin.KVConnectorModelRunnerMixin.finalize_kv_connector()
        return dirty, [made]

    def forward(self, batch):
        """Who read a wrong byte."""
        dirty = set()
        for layer, layer_name in enumerate(LAYERS):
            for rank in self.ranks:
                for name, (first, end, table) in batch.items():
                    positions = np.arange(first, end)
                    for view, rows in zip(rank.views[layer_name], self.rows(name, rank.number, layer)):
                        values = rows[first:end] if name not in dirty else rows[first:end] ^ 0x55
                        view.numpy()[table[positions // TOKENS], positions % TOKENS] = values
                rank.connector.wait_for_layer_load(layer_name)
            wrong = set()
            for rank in self.ranks:
                for name, (first, end, table) in batch.items():
                    positions = np.arange(end)
                    for view, rows in zip(rank.views[layer_name], self.rows(name, rank.number, layer)):
                        read = view.numpy()[table[positions // TOKENS], positions % TOKENS]
                        if not np.array_equal(read, rows[:end]):
                            wrong.add(name)
                for _ in range(1 + self.deferred):  # a draft model's layers run more than once
                    rank.connector.save_kv_layer(layer_name, rank.registered[layer_name], None)
            dirty |= wrong
        return dirty

    def step(self):
        output = self.scheduler.schedule()
        for one in output.scheduled_new_reqs:
            self.hits[one.req_id] = one.num_computed_tokens
        result = self.execute(output)
        if self.asynchronous:
            self.in_flight.append((output, result))
            if len(self.in_flight) < 2 and output.num_scheduled_tokens:
                return output
            output, result = self.in_flight.pop(0)
        self.update(output, result)
        return output

    in_flight: list = []

    def update(self, output, result):
        before = {name: request for name, request in self.scheduler.requests.items()}
        for part in self.scheduler.update_from_output(output, result).values():
            if part.scheduler_stats and part.scheduler_stats.kv_connector_stats:
                self.told.append(part.scheduler_stats.kv_connector_stats)
        for name in output.num_scheduled_tokens:
            at = result.req_id_to_index[name]
            if result.sampled_token_ids[at] and self.pending.get(name):
                self.pending[name].pop(0)
        for name, request in before.items():
            if request.is_finished() and name not in self.finished:
                self.finished[name] = list(request.all_token_ids)
                self.check(request)
                self.served.append(self.hits.get(name, 0))
                del self.sequences[name]
                self.pending.pop(name, None)

    def check(self, request):
        """The tokens are those that the model makes where no byte is wrong."""
        pure = Sequence(1, 1)
        pure.extend(request.prompt_token_ids)
        for token in list(request.all_token_ids)[len(request.prompt_token_ids):]:
            self.wrong += token != pure.next(len(pure.tokens))
            pure.extend([token])

    def run(self, requests=(), new=1, between=None, most=100000):
        """Serves them all, together. between: called before each step."""
        self.in_flight = []
        for tokens in requests:
            self.add(tokens, new)
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests():
                break
            if between:
                between(self)
            self.steps += 1
            self.step()
        else:
            raise AssertionError(f"requests wait for ever: {list(self.scheduler.requests)[:5]}")
        for output, result in self.in_flight:
            self.update(output, result)
        self.in_flight = []
        self.idle()
        return self

    def run_in_turn(self, requests, **more):
        for tokens in requests:
            self.run([tokens], **more)
        return self

    def idle(self):
        """A step without requests, in which the workers may tell what has ended."""
        for _ in range(2):
            output = self.scheduler.schedule()
            self.update(output, self.execute(output))

    def forget(self):
        """Empties vLLM's own cache."""
        assert self.scheduler.reset_prefix_cache()

    def close(self):
        if self.scheduler is not None:
            for rank in self.ranks:
                rank.connector.shutdown()
            self.scheduler.shutdown()
            self.scheduler = None


def prompt(*blocks):
    """Of blocks' numbers."""
    return [(block * 7919 + at * 104729) % (VOCABULARY - 2) for block in blocks for at in range(TOKENS)]
