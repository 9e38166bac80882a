# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM that a tier and a cache policy meet: its own managers, driven as its scheduler drives them, with no model and no GPU.
A chunk's bytes follow from its key, so that each byte that comes back can be checked."""
import collections
import hashlib
import os
import time

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig,
                                       OffloadingParallelConfig)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

TOKENS = 16


def key(block, group=0):
    return make_offload_key(hashlib.sha256(b"%d" % block).digest(), group)


def config(extra, name="test", groups=1, chunk_bytes=65536, data_parallel=1):
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(tokens_per_block=TOKENS, layer_names=(f"layer{g}",), group_id=g) for g in range(groups)),
        worker_kv_bytes_per_block=chunk_bytes, enable_kv_cache_events=bool(extra.get("events")), extra_config=extra,
        engine_id=f"neotier-{os.getpid()}-{name}", model=OffloadingModelConfig(name="m", dtype="bfloat16"),
        cache=OffloadingCacheConfig(tokens_per_hash=TOKENS, blocks_per_chunk=1),
        parallel=OffloadingParallelConfig(
            rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=data_parallel,
            data_parallel_rank_local=None, is_parallelism_agnostic=True))


class Request:
    def __init__(self, number, keys):
        self.context = ReqContext(req_id=str(number))
        self.keys, self.steps, self.found, self.stored = keys, 0, None, 0
        for at, one in enumerate(keys):
            self.context.set_offload_key_position(one, (at + 1) * TOKENS)


class Scheduler:
    """vLLM's steps over its TieringOffloadingManager: `running` requests at a time, `prefill` chunks of each a step."""

    def __init__(self, tiers, cpu_bytes=16 << 20, running=4, prefill=64, **how):
        extra = {"cpu_bytes_to_use": cpu_bytes, "secondary_tiers": tiers, **how.pop("extra", {})}
        self.spec = TieringOffloadingSpec(config(extra, **how))
        self.manager = self.spec.get_manager()
        self.view = np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)
        self.running_most, self.prefill = running, prefill
        self.number = 0
        self.waiting, self.running, self.storing = collections.deque(), [], []
        self.wrong = self.found = self.asked = 0
        self.served = []
        self.events = []
        # What failed to load and is found again would be asked for again, for ever: once for each request and key is enough.
        self.failed, self.again = set(), 0
        for tier in self.manager.secondary_tiers:
            self.watch(tier)

    def watch(self, tier):
        loads, submit, finished = {}, tier.submit_load, tier.get_finished_jobs

        def submit_load(job):
            self.again += sum((job.req_context.req_id, one) in self.failed for one in job.keys)
            loads[job.job_id] = job
            submit(job)

        def get_finished_jobs():
            for result in finished():
                job = loads.pop(result.job_id, None)
                if job is not None and not result.success:
                    self.failed.update((job.req_context.req_id, one) for one in set(job.keys).difference(result.successful_keys or ()))
                yield result

        tier.submit_load, tier.get_finished_jobs = submit_load, get_finished_jobs

    @property
    def tier(self):
        return self.manager.secondary_tiers[0]

    def pattern(self, one):
        return np.frombuffer((one[:32] * (self.view.shape[1] // 32 + 1))[:self.view.shape[1]], np.uint8)

    def add(self, keys):
        request = Request(self.number, keys)
        self.number += 1
        self.manager.on_new_request(request.context)
        self.waiting.append(request)

    def look_up(self, request):
        """How many leading chunks are there; None: ask again."""
        hits, later = 0, False
        for one in request.keys:
            result = self.manager.lookup(one, request.context)
            if result is LookupResult.MISS:
                break
            hits += 1
            later |= result is not LookupResult.HIT
        return None if later else hits

    def step(self):
        """One step of the scheduler. False: nothing is left to do."""
        for request, output in self.storing:  # the last step's copies from the GPU have ended
            self.manager.complete_store(output.keys_to_store, request.context)
        self.storing = []
        asleep = bool(self.running)  # as a step of a GPU takes its time, where nothing can be done
        with self.manager.lock if hasattr(self.manager, "lock") else open(os.devnull):  # 0.32 has none
            while self.waiting and len(self.running) < self.running_most:
                self.running.append(self.waiting.popleft())
            for request in list(self.running):
                request.steps += 1
                assert request.steps < 100000, f"request {request.context.req_id} waits for ever"
                if request.found is None:
                    request.found = self.look_up(request)
                    if request.found is None:
                        continue
                    request.stored = request.found
                    self.load(request)
                asleep = False
                batch = request.keys[request.stored:request.stored + self.prefill]
                request.stored += len(batch)
                if batch:
                    output = self.manager.prepare_store(batch, request.context)
                    if output and output.keys_to_store:
                        for one, chunk in zip(output.keys_to_store, output.store_spec.chunk_ids):
                            self.view[int(chunk)] = self.pattern(one)
                        self.storing.append((request, output))
                if request.stored == len(request.keys):
                    self.running.remove(request)
                    self.manager.on_request_finished(request.context)
                    self.found += request.found
                    self.asked += len(request.keys)
                    self.served.append(request.found)
            self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=(), preempted_req_ids=()))
            self.events += self.manager.take_events()
        if asleep:
            time.sleep(0.0005)
        return bool(self.waiting or self.running or self.storing)

    def load(self, request):
        keys = request.keys[:request.found]
        if keys:
            spec = self.manager.prepare_load(keys, request.context)
            for one, chunk in zip(keys, spec.chunk_ids):
                self.wrong += not np.array_equal(self.view[int(chunk)], self.pattern(one))
            self.manager.complete_load(keys, request.context)

    def run(self, requests, between=None):
        """Serves them all. between: called before each step."""
        for keys in requests:
            self.add(keys)
        while True:
            if between:
                between(self)
            if not self.step():
                return self

    def settle(self):
        """Until no transfer is under way."""
        while self.manager.has_pending_work():
            self.step()
        return self

    def run_in_turn(self, requests):
        """One request after the other, each when the stores of the one before have ended: nothing of it is dropped."""
        for keys in requests:
            self.run([keys]).settle()
        return self

    def close(self):
        if self.view is not None:
            self.view = None
            self.manager.shutdown()
