# SPDX-License-Identifier: Apache-2.0
"""A secondary tier of vLLM's KV offloading: chunks that leave the CPU's cache, over DRAM, CXL memory and SSDs.

vLLM's scheduler calls all of it and must never wait. Look-ups are of an index in memory; copies, and whatever may take the store's
lock for long, are threads' work. What vLLM's interface does not say, but a request's context knows, is told to the placement policy:
all keys of the request in order, with their positions, once (neotier_kv.h, "A request begins").

What failed to load is a miss for that request from then on: asked again, vLLM would load it again, for ever. So is what was loaded
for it three times, and what would make it more than half of the CPU's cache: requests that need more than there is room for throw out
each other's chunks before they are used, or their own, and vLLM would go on with that.
"""
from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .. import CompletionQueue, Engine, KvStore, NeoTierError, Pages
from ..connector import SparingLog, check_storage
from ..kv import KvSession, Load, PlanOptions
from . import names

logger = logging.getLogger(__name__)

LOADS = 3  # of a chunk, for one request


@dataclass
class _Request:
    """What is known of a request of vLLM's until it has finished and its last job has ended."""

    category: int = 0
    keys: dict[bytes, bytes] = field(default_factory=dict)  # the engine's key of each of vLLM's
    failed: set[bytes] = field(default_factory=set)  # vLLM's keys that could not be loaded
    loads: Counter[bytes] = field(default_factory=Counter)  # of vLLM's keys: times that they were asked for
    worth: dict[bytes, bool] = field(default_factory=dict)  # of vLLM's keys: whether they are sooner loaded than computed
    deciding: bool = False
    jobs: int = 0
    finished: bool = False
    begun: bool = False
    known: dict[bytes, int] = field(default_factory=dict)  # vLLM's keys when it was begun, and their end tokens
    sessions: dict[int, KvSession] = field(default_factory=dict)  # by group; of the threads, under `lock`
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Run:
    """Keys of one group that follow one another in the prefix."""

    group: int
    first: int
    keys: list[bytes] = field(default_factory=list)  # vLLM's
    chunks: list[int] = field(default_factory=list)


@dataclass
class _Job:
    job_id: int
    request_id: str
    request: _Request
    runs: list[_Run]
    load: bool
    begun: float
    nr: int
    loads: list[Load] = field(default_factory=list)
    waiting: int = 0  # loads that have not ended
    good: list[bytes] = field(default_factory=list)
    success: bool = True


class NeoTier(names.SecondaryTierManager):
    """tiers: neotier.h's tiers, fastest first, as "cxl=64G:node=1,ssd=200G:file=/var/cache/neotier". "{dp}" in it becomes the engine's
    data-parallel index: engines cannot share an SSD tier's file.

    write: when a chunk is copied to the durable tier: "back" when it leaves the faster ones, "selective" once it was used twice,
    "through" at once. store_after: a chunk is stored when it is offered for the so-many-th time. prefill_tokens_per_s: what making a
    chunk anew costs, for the policy and for decide. decide: a request is not told of chunks that are sooner computed than loaded; decided
    once, when it first asks for one. pinned_share: of the CPU's cache that stores under way may pin; chunks beyond it are not stored.
    store_threads: stores at a time. max_objects, seed: as neotier.h. enable_kv_events: tell vLLM's routers what is here.
    """

    medium = names.Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, tiers: str = "", write: str = "selective",
                 store_after: int = 1, prefill_tokens_per_s: float = 10000, decide: bool = False, pinned_share: float = 0.25,
                 store_threads: int = 4, max_objects: int = 0, seed: int = 0, enable_kv_events: bool = False, locality: str | None = None,
                 **base: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, **base)
        check_storage(f"secondary tier '{tier_type}'", tiers, write, "ssd=200G:file=/var/cache/neotier")
        if not 0 < pinned_share <= 1 or prefill_tokens_per_s <= 0 or store_threads < 1:
            raise ValueError(f"secondary tier '{tier_type}': pinned_share is 0 .. 1, prefill_tokens_per_s and store_threads > 0")
        if not isinstance(decide, bool):
            raise ValueError(f"secondary tier '{tier_type}': decide is true or false, not {decide!r}")
        parallel = offloading_spec.config.parallel
        if parallel.data_parallel_size > 1 and "ssd=" in tiers and "{dp}" not in tiers:
            raise ValueError(f"secondary tier '{tier_type}': {parallel.data_parallel_size} data-parallel engines cannot share the SSD "
                             "tier's file; write {dp} in its name")
        tiers = tiers.replace("{dp}", str(parallel.data_parallel_index))
        if locality is not None:
            self.locality = names.Locality(locality)
        self._slot_bytes = primary_kv_view.strides[0]
        self._chunk_tokens = names.chunk_tokens(offloading_spec)
        self._engine = Engine(tiers, max_objects=max_objects, seed=seed, events=65536, discard=1)
        try:
            self._store = KvStore(
                self._engine, layers=1, layer_bytes=self._slot_bytes, space=names.layout(offloading_spec, self._slot_bytes), write=write,
                store_after=store_after, recompute_ns=max(1, int(max(self._chunk_tokens, default=16) / prefill_tokens_per_s * 1e9)))
            self._tenant = self._store.tenant("vllm")
            durable = any(tier.get("durable") for tier in self._engine.metrics()["tiers"])
            if not durable:
                self.medium = names.Medium.CPU
            source = names.hit_source(durable)
            if source is not None:
                self.cache_hit_source = source
            self._pages = Pages(primary_kv_view, self._slot_bytes)
        except Exception:
            self._engine.close()
            raise
        self._pinned_most = max(1, int(self._pages.nr * pinned_share))
        self._most_of_one = max(1, self._pages.nr // 2)
        self._decides = decide
        self._planning: KvSession | None = None  # of the loading thread
        self._requests: dict[str, _Request] = {}
        self._queue = CompletionQueue()  # of loads
        # Loads are only started there. They may not wait behind stores.
        self._loading = ThreadPoolExecutor(1, "neotier-load")
        self._storing = ThreadPoolExecutor(store_threads, "neotier-store")
        self._lock = threading.Lock()  # of what follows
        self._idle = threading.Condition(self._lock)
        self._jobs = 0
        self._ended: deque[_Job] = deque()
        self._log = SparingLog(logger, f"secondary tier '{tier_type}'")
        self._pinned = 0  # chunks of stores that have not ended; the scheduler's
        self._closed = False
        self.counters = dict.fromkeys(("stored", "present", "passed", "dropped", "loaded", "failed", "declined"), 0)
        self._names: dict[bytes, bytes] | None = None  # vLLM's key of each of the engine's, for events
        self._here: set[bytes] = set()
        if enable_kv_events:
            if offloading_spec.kv_events_config.enable_kv_cache_events:
                self._names = {}
            else:
                logger.warning("secondary tier '%s': enable_kv_events has no effect, vLLM's own KV cache events are off", tier_type)

    # ---- the scheduler's thread

    def on_new_request(self, req_context: names.ReqContext) -> names.RequestOffloadingContext:
        self._request(req_context)
        return names.RequestOffloadingContext()

    def _request(self, context: names.ReqContext) -> _Request:
        request = self._requests.get(context.req_id)
        if request is None:
            request = _Request(category=names.category(context))
            self._requests[context.req_id] = request
        return request

    def _key(self, request: _Request, key: bytes, context: names.ReqContext) -> bytes:
        own = request.keys.get(key)
        if own is None:
            # All of the request's at once: it will ask for most of them.
            lacking = [one for one in names.positions(context) if one not in request.keys] or [key]
            if key not in lacking:
                lacking.append(key)
            request.keys.update(zip(lacking, self._store.digest_keys(lacking)))
            own = request.keys[key]
        return own

    def lookup(self, key: bytes, req_context: names.ReqContext) -> names.LookupResult:
        request = self._request(req_context)
        if key in request.failed or request.loads.get(key, 0) >= LOADS or self._closed:
            return names.LookupResult.MISS
        if len(request.loads) >= self._most_of_one and key not in request.loads:
            return names.LookupResult.MISS
        if self._key(request, key, req_context) not in self._engine:
            return names.LookupResult.MISS
        if self._decides and not (worth := self._worth(request, key, req_context)):
            return names.LookupResult.RETRY if worth is None else names.LookupResult.MISS
        request.loads[key] += 1
        return names.LookupResult.HIT

    def _worth(self, request: _Request, key: bytes, context: names.ReqContext) -> bool | None:
        """Whether to load a chunk that is here; None: that is being decided. Decided for all that follow it as well, since what is
        loaded together is loaded sooner."""
        if key not in request.worth and not request.deciding:
            group, end = names.group_of(key), names.position(context, key)
            ends = {one: at for one, at in names.positions(context).items() if end and at >= end and names.group_of(one) == group}
            follow = sorted(ends, key=ends.__getitem__) or [key]
            tokens = self._chunk_tokens[group] if group < len(self._chunk_tokens) else 1
            request.deciding = True
            self._loading.submit(self._guard, self._decide, (request, follow, max((end or 0) // tokens - 1, 0)))
        return request.worth.get(key)

    def _runs(self, job: names.TransferJob) -> list[_Run]:
        runs: list[_Run] = []
        for key, chunk in zip(job.keys, job.chunk_ids):
            group = names.group_of(key)
            end = names.position(job.req_context, key)
            tokens = self._chunk_tokens[group] if group < len(self._chunk_tokens) else 1
            last = runs[-1] if runs else None
            # The order of the job's keys where the scheduler does not know their place.
            at = max(end // tokens - 1, 0) if end else (last.first + len(last.keys) if last else 0)
            if last is None or last.group != group or at != last.first + len(last.keys):
                last = _Run(group, at)
                runs.append(last)
            last.keys.append(key)
            last.chunks.append(int(chunk))
        return runs

    def _submit(self, given: names.TransferJob, load: bool) -> _Job:
        context = given.req_context
        # A request that has finished meanwhile is known until its last job has ended, and no longer.
        if context.req_id not in self._requests:
            self._request(context).finished = True
        request = self._request(context)
        job = _Job(given.job_id, context.req_id, request, [], load, time.monotonic(), len(given.keys))
        request.jobs += 1
        with self._lock:
            self._jobs += 1
        if not self._closed:
            for key in given.keys:
                self._key(request, key, context)
            self._begin(request, context)
            job.runs = self._runs(given)
        return job

    def _begin(self, request: _Request, context: names.ReqContext) -> None:
        """What the scheduler knows of the request now; the threads tell the store of it."""
        if not request.begun:
            request.begun = True
            request.known = dict(names.positions(context))
            lacking = [key for key in request.known if key not in request.keys]
            request.keys.update(zip(lacking, self._store.digest_keys(lacking)))

    def submit_store(self, job_metadata: names.TransferJob) -> None:
        job = self._submit(job_metadata, False)
        # The chunks of a store are pinned until it has ended. A slow medium must not take the CPU's cache away.
        if self._closed or (self._pinned and self._pinned + job.nr > self._pinned_most):
            self.counters["dropped"] += job.nr
            job.runs, job.nr, job.success = [], 0, not self._closed
            self._end(job)
            return
        self._pinned += job.nr
        if self._names is not None:
            for run in job.runs:
                self._names.update((job.request.keys[key], key) for key in run.keys)
        self._storing.submit(self._guard, self._store_job, job)

    def submit_load(self, job_metadata: names.TransferJob) -> None:
        job = self._submit(job_metadata, True)
        if self._closed:
            job.success = False
            self._end(job)
            return
        self._loading.submit(self._guard, self._start_loads, job)

    def get_finished_jobs(self) -> Iterable[Any]:
        self._take_loads()
        while True:
            with self._lock:
                if not self._ended:
                    return
                job = self._ended.popleft()
            yield self._result(job)

    def _take_loads(self) -> None:
        while ended := self._queue.take():
            for job in ended:
                self._load_ended(job)

    def _result(self, job: _Job) -> Any:
        request = job.request
        request.jobs -= 1
        good = job.good if job.load else []
        if job.load:
            if job.loads and not self._closed:
                self._loading.submit(self._guard, self._close_loads, job)
            wanted = [key for run in job.runs for key in run.keys]
            job.success = len(good) == len(wanted)
            if not job.success:
                request.failed.update(set(wanted).difference(good))
            self.counters["loaded"] += len(good)
            self.counters["failed"] += len(wanted) - len(good)
        else:
            self._pinned -= job.nr
        self._let_go(job.request_id, request)
        return names.job_result(
            job_id=job.job_id, success=job.success, successful_keys=tuple(good) if good and not job.success else None,
            transfer_time=time.monotonic() - job.begun, transfer_bytes=(len(good) if job.load else job.nr) * self._slot_bytes)

    def on_request_finished(self, req_context: names.ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is None:
            return
        request.finished = True
        # Also one that found all in faster caches: what is used there is no less worth keeping here.
        if not self._closed:
            self._begin(request, req_context)
        self._let_go(req_context.req_id, request)

    def _let_go(self, request_id: str, request: _Request) -> None:
        if request.finished and request.jobs == 0 and self._requests.pop(request_id, None) and not self._closed:
            self._storing.submit(self._guard, self._close_sessions, request)

    def drain_jobs(self) -> None:
        while True:
            self._take_loads()  # nobody else does now
            with self._idle:
                if self._jobs == 0:
                    return
                self._idle.wait(0.001)

    def take_events(self) -> Iterable[Any]:
        if self._names is None or self._closed:
            return
        stored: list[bytes] = []
        removed: list[bytes] = []
        events, lost = self._store.events()
        for event in events:
            name = self._names.get(event.key)
            if name is None:
                continue
            if event.kind == "copied" and event.key not in self._here:
                self._here.add(event.key)
                stored.append(name)
            elif event.kind == "forgotten":
                self._here.discard(event.key)
                del self._names[event.key]
                removed.append(name)
        if lost:  # what left unseen
            for key in [key for key in self._here if key not in self._engine]:
                self._here.discard(key)
                removed.append(self._names.pop(key))
        for keys, gone in ((stored, False), (removed, True)):
            if keys:
                yield names.OffloadingEvent(keys=keys, medium=self.medium, removed=gone, locality=self.locality)

    def shutdown(self) -> None:
        if self._closed:
            return
        self.drain_jobs()
        self._closed = True
        self._storing.shutdown(wait=True)
        self._loading.shutdown(wait=True)
        for request in self._requests.values():
            self._close_sessions(request, tell=False)
        self._requests.clear()
        for job in self._ended:
            self._close_loads(job)
        if self._planning is not None:
            self._planning.close()
        try:
            self._engine.flush()
        except NeoTierError as error:  # without a durable tier, or one that is out of service
            logger.info("secondary tier '%s': %s", self.tier_type, error)
        logger.info("secondary tier '%s': %s", self.tier_type, ", ".join(f"{name} {nr}" for name, nr in self.counters.items()))
        self._engine.close()
        self._pages.release()

    def stats(self) -> dict[str, Any]:
        """Counters of chunks, and the store's own (neotier_kv_stats())."""
        return {**self.counters, "store": self._store.stats()}

    # ---- threads

    def _guard(self, work: Any, what: Any) -> None:
        """A thread's failure ends its job, or nothing; never the thread, and never in silence."""
        try:
            work(what)
        except Exception as error:
            self._log.warn(f"{type(error).__name__}: {error}")
            if isinstance(what, _Job) and work != self._close_loads:
                what.success = False
                self._end(what)

    def _end(self, job: _Job) -> None:
        with self._idle:
            self._ended.append(job)
            self._jobs -= 1
            self._idle.notify_all()

    def _session(self, request: _Request, group: int) -> KvSession:
        """The request's session of a group. The store is told of the request first, whole, by the first that asks."""
        with request.lock:
            if not request.sessions:
                by_group: dict[int, list[tuple[int, bytes]]] = {}
                for key, end in request.known.items():
                    by_group.setdefault(names.group_of(key), []).append((end, request.keys[key]))
                for one, known in by_group.items():
                    session = request.sessions[one] = self._store.session(self._tenant)
                    known.sort(key=lambda pair: pair[0])
                    session.request([key for _, key in known], category=request.category)
            session = request.sessions.get(group)
            if session is None:
                session = request.sessions[group] = self._store.session(self._tenant)
            return session

    def _close_sessions(self, request: _Request, tell: bool = True) -> None:
        if tell and not request.sessions and request.known:
            self._session(request, 0)
        for session in request.sessions.values():
            session.close()

    def _store_job(self, job: _Job) -> None:
        for run in job.runs:
            stored = self._session(job.request, run.group).store(
                [job.request.keys[key] for key in run.keys], self._pages.pieces(run.chunks), run.first)
            with self._lock:
                for name in ("stored", "present", "passed"):
                    self.counters[name] += getattr(stored, name)
        self._end(job)

    def _decide(self, what: tuple[_Request, list[bytes], int]) -> None:
        request, keys, first = what
        found, load = 1, 1  # where it cannot be decided, as if nothing was asked
        try:
            if self._planning is None:
                self._planning = self._store.session(self._tenant)
            plan = self._planning.plan([request.keys[key] for key in keys], PlanOptions(), first)
            # What is not here may come: it is decided then. What was here just now and is gone is a miss.
            found, load = max(plan.found, 1), plan.load
            self.counters["declined"] += plan.found - plan.load
        finally:
            request.worth.update((key, i < load) for i, key in enumerate(keys[:found]))
            request.deciding = False

    def _start_loads(self, job: _Job) -> None:
        try:
            for run in job.runs:
                load = self._session(job.request, run.group).load(
                    [job.request.keys[key] for key in run.keys], self._pages.pieces(run.chunks), run.first)
                job.loads.append(load)
            # When all of it is on its way: the first that has ended must not find the job half made.
            job.waiting = len(job.loads)
            for load in job.loads:
                self._queue.add(load, job)
        except Exception:
            # Nothing may write to the CPU's cache any more when the job has ended.
            job.waiting = -1
            self._close_loads(job)
            raise

    def _close_loads(self, job: _Job) -> None:
        for load in job.loads:
            load.close()

    def _load_ended(self, job: _Job) -> None:
        job.waiting -= 1
        if job.waiting != 0:
            return
        for run, load in zip(job.runs, job.loads):
            try:
                load.wait(0)
            except NeoTierError as error:
                self._log.warn(f"{error}; {len(run.keys) - load.good} of {len(run.keys)} chunks are computed anew")
            job.good += run.keys[:load.good]
        self._end(job)

