# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV connector: blocks of the paged KV cache from and to the tiers, layer by layer. docs/serving.md.

The scheduler's side (schedule.py) knows what is stored and decides; the workers' side (work.py) has the tiers and moves bytes. Between
them only messages.py goes. Nothing is raised into vLLM once both are made: what fails is a miss, or is not stored.
"""
from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..connector import SparingLog, check_storage, setting
from . import names
from .messages import Report, Work
from .metrics import MOVED, PLANNED, PromMetrics, Since, Stats
from .schedule import Schedule
from .settings import Settings
from .work import Worker

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def _guarded(otherwise: Callable[[], Any]) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """What a call returns where it fails; why is in the log."""
    def made(call: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(call)
        def guarded(self: "NeoTierConnector", *given: Any, **more: Any) -> Any:
            try:
                return call(self, *given, **more)
            except Exception as error:
                self._log.warn(f"{call.__name__}: {type(error).__name__}: {error}", trace=True)
                return otherwise()
        return guarded
    return made


class NeoTierConnector(names.KVConnectorBase_V1):
    """Settings, in vLLM's kv_connector_extra_config:

    tiers: neotier.h's, fastest first, as "dram=32G,ssd=400G:file=/var/cache/neotier/kv-{rank}". Each worker has tiers of its own:
    "{rank}" becomes its place among those that share a model, "{dp}" the engine's data-parallel index.

    write: when a block is copied to the durable tier: "back" when it leaves the faster ones, "selective" once it was used twice,
    "through" at once. store_after: a block is stored when it is offered for the so-many-th time. prefill_tokens_per_s: what computing
    costs, for the policy. layerwise: blocks are loaded in the step that uses them, layer by layer; else between steps, while the
    request waits and others go on. Default: where vLLM does not schedule asynchronously. timeout_s: a load that takes longer has
    failed. unfinished_saves: runs of blocks on their way to the tiers; beyond them blocks are not stored, and counted. staging_bytes:
    host memory that a GPU's blocks go through. max_objects, seed: as neotier.h.

    ValueError, with one line: a setting that is missing or wrong, or a model or a split that it cannot serve.

    Thread safety: as vLLM's, one thread for each side.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._log = SparingLog(logger, "neotier")
        settings = _settings(vllm_config, kv_cache_config)
        self._schedule = Schedule(settings, self._log) if role == names.KVConnectorRole.SCHEDULER else None
        self._worker = Worker(settings, self._log) if role == names.KVConnectorRole.WORKER else None
        self._since = Since(PLANNED if self._schedule else MOVED)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return False

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a save that is dropped is a miss later, and nothing else

    # ---- the scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        if self._schedule:
            self._schedule.manager = kv_cache_manager

    @_guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        tokens = self._schedule.matched(request, num_computed_tokens)
        return tokens, bool(tokens) and not self._schedule.layerwise

    @_guarded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._schedule.allocated(request, list(blocks.get_block_ids()[0]), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Work:
        # Without the loads of a step its results would be wrong: no error is hidden here, and nothing here is expected to fail.
        return self._schedule.step(scheduler_output)

    @_guarded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        self._schedule.told(connector_output.kv_connector_worker_meta, set(connector_output.invalid_block_ids or ()),
                            set(connector_output.finished_recving or ()))

    @_guarded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._schedule.finished(request.request_id)
        return False, None

    @_guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        """Nothing that is stored is found any more, by this process or a later one. Its room is taken as new blocks want it."""
        if not self._schedule:
            return None
        self._schedule.reset()
        return True

    # ---- a worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """ValueError, one line: tensors or tiers that cannot be used. NeoTierError where the tiers cannot be opened."""
        self._worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._bind(connector_metadata)

    @_guarded(lambda: None)
    def _bind(self, work: Work) -> None:
        self._worker.begin(work)

    @_guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.start_loads()

    @_guarded(lambda: None)
    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_layer(layer_name)

    @_guarded(lambda: None)
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._worker.save_layer(layer_name)

    @_guarded(lambda: None)
    def wait_for_save(self) -> None:
        self._worker.end_step()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Nothing to do: what is written to a block later comes after the copies from it (Worker.end_step())."""

    @_guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.arrived() or None  # no request's blocks are held back for a save

    def get_block_ids_with_load_errors(self) -> set[int]:
        try:
            return self._worker.load_errors()
        except Exception as error:
            self._log.warn(f"loads: {type(error).__name__}: {error}", trace=True)
            return self._worker.all_loading()

    @_guarded(lambda: None)
    def build_connector_worker_meta(self) -> Report | None:
        return Report([self._worker.report()]) if self._worker and self._worker.opened else None

    # ---- what vLLM shows

    @_guarded(lambda: None)
    def get_kv_connector_stats(self) -> Stats | None:
        return self._since.take((self._schedule or self._worker).counters)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def stats(self) -> dict[str, Any]:
        """Counters of blocks; a worker's with those of its store (KvStore.stats())."""
        return (self._schedule or self._worker).stats()

    def prometheus(self) -> str:
        """A worker's: its engine's metrics."""
        return self._worker.prometheus() if self._worker else ""

    @_guarded(lambda: None)
    def shutdown(self) -> None:
        (self._schedule or self._worker).close()


def _settings(vllm_config: Any, kv_cache_config: Any) -> Settings:
    transfer = vllm_config.kv_transfer_config
    extra = dict(transfer.kv_connector_extra_config or {})
    tiers, write = extra.get("tiers"), extra.get("write", "selective")
    check_storage("neotier.vllm", tiers, write, "dram=32G,ssd=400G:file=/var/cache/neotier/kv-{rank}")
    if transfer.kv_load_failure_policy != "recompute":
        raise ValueError('neotier.vllm: write "kv_load_failure_policy": "recompute" beside kv_connector; without it vLLM fails a request '
                         "whose blocks have just left the tiers")
    if transfer.kv_role != "kv_both":
        raise ValueError(f'neotier.vllm: kv_role is "kv_both", not "{transfer.kv_role}"; it both loads and saves')
    given = partial(setting, "neotier.vllm", extra)
    parallel = vllm_config.parallel_config
    for part in re.split(r",(?=\s*(?:gpu|dram|cxl|ssd|remote)=)", tiers):
        kind = part.split("=")[0].strip()
        # Ranks have equal keys and other bytes; data-parallel engines equal ones, and a file has one owner.
        ranks = parallel.world_size > 1 and (kind == "ssd" or "namespace=" in part)
        for shared, name in ((ranks, "{rank}"), (parallel.data_parallel_size > 1 and kind == "ssd", "{dp}")):
            if shared and name not in part:
                raise ValueError(f"neotier.vllm: workers cannot share '{part.strip()}'; write {name} in its name")
    asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
    layerwise = given("layerwise", not asynchronous, bool)
    if layerwise and asynchronous:
        # vLLM has planned the next step when it hears of a load that failed in this one, and then counts a token too many.
        raise ValueError("neotier.vllm: vLLM takes no failed layerwise loads with asynchronous scheduling; leave layerwise out, or give "
                         "vLLM --no-async-scheduling")
    return Settings(
        tiers=tiers, write=write, store_after=given("store_after", 1, int, 1),
        tokens_per_s=given("prefill_tokens_per_s", 10000, float, 1), timeout=given("timeout_s", 5, float, .001),
        unfinished=given("unfinished_saves", 32, int, 1), staging_bytes=given("staging_bytes", 1 << 30, int, 1 << 20),
        max_objects=given("max_objects", 0, int), seed=given("seed", 0, int), block_tokens=names.block_tokens(vllm_config, kv_cache_config),
        blocks=kv_cache_config.num_blocks, rank=parallel.rank % parallel.world_size, world=parallel.world_size,
        dp=parallel.data_parallel_index, identity=names.identity(vllm_config), layerwise=layerwise,
        written_once=not parallel.use_ubatching)
