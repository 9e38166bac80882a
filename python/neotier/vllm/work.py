# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the KV connector: its tiers, and the blocks that a step loads and saves.

A step: begin(), start_loads(), then wait_layer() and save_layer() for each layer, end_step(). Where a layer is never named, end_step()
does what is left. No step leaves anything that writes to the paged cache: its loads are closed when it ends.

What a step computes may rest on a load that failed, here or in another rank, and is then not stored. A worker that is alone knows at the
step's end. Others keep such saves until the scheduler has judged the step.
"""
from __future__ import annotations

import hashlib
import json
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import kv
from ..connector import SparingLog, finish_load
from ..engine import Engine
from ..errors import FullError, NeoTierError, NotFoundError, TimeoutError
from ..kv import KvSession, KvStore, Stored
from .blocks import Cache
from .memory import HostMemory
from .messages import Hello, Run, Told, Work
from .schedule import MOST_OBJECTS
from .settings import Settings

logger = logging.getLogger(__name__)

_STATE = hashlib.blake2b(b"neotier.vllm connector", digest_size=16).digest()
_EVENTS = 65536  # of a step


@dataclass
class _Session:
    """Of a request. It is closed when the request has finished and no save of it is under way."""

    session: KvSession
    users: int = 0
    finished: bool = False


@dataclass
class _Loading:
    run: Run
    keys: list[bytes]
    load: Any
    session: "_Session | None"
    deadline: float
    good: int | None = None  # when it has ended


@dataclass
class _Saving:
    step: int
    keys: list[bytes]
    save: Any
    session: _Session
    ended: "Future[Stored] | None" = None


@dataclass
class _Step:
    work: Work
    loads: list[_Loading] = field(default_factory=list)
    saves: list[_Saving] = field(default_factory=list)
    layers: set[int] = field(default_factory=set)  # that were offered to the saves
    loading: bool = False  # loads were started
    saving: bool = False
    ended: bool = False


class Worker:
    """Thread safety: none, but for finish(), which a thread of its own calls where the cache is a GPU's."""

    def __init__(self, settings: Settings, log: SparingLog) -> None:
        self._settings, self._log = settings, log
        self._engine: Engine | None = None
        self._store: KvStore | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._step: _Step | None = None
        self._errors: set[int] = set()  # blocks that did not come, until vLLM has asked
        self._coming: list[_Loading] = []  # between steps
        self._arrived: set[str] = set()  # requests, until vLLM has asked
        self.counters = dict.fromkeys(("loaded", "failed", "stored", "present", "passed", "refused", "dropped", "withheld"), 0)

    @property
    def opened(self) -> bool:
        return self._store is not None

    # ---- tiers

    def register(self, tensors: dict[str, Any]) -> None:
        if self._engine is not None:
            self.close()
        settings = self._settings
        self._cache = Cache(tensors, settings.blocks)
        if self._cache.device.type not in ("cpu", "cuda"):
            raise ValueError(f"neotier.vllm: the KV cache lies on '{self._cache.device.type}'; the connector serves cuda and cpu")
        if self._cache.device.type == "cuda" and not hasattr(kv, "GpuMemory"):
            raise ValueError("neotier.vllm: this build of NeoTier cannot reach a GPU's memory")
        tiers = settings.tiers.replace("{rank}", str(settings.rank)).replace("{dp}", str(settings.dp))
        self._engine = Engine(tiers, max_objects=settings.max_objects, seed=settings.seed, discard=1,
                              events=max(_EVENTS, settings.max_objects or MOST_OBJECTS))
        try:
            durable = [tier["name"] for tier in self._engine.metrics()["tiers"] if tier.get("durable")]
            self._durable = durable[0] if durable else None
            self._open(self._former_generation())
            if not getattr(self._memory, "at_once", False):
                self._thread = ThreadPoolExecutor(1, "neotier-save")
        except Exception:
            self._engine.close()
            self._engine = self._store = None
            raise

    def _former_generation(self) -> int:
        """What reset_cache() made void stays so in a process that finds it on the disk. ValueError: it is another rank's."""
        assert self._engine is not None
        mine = f"{self._settings.rank} of {self._settings.world}"
        try:
            state = json.loads(self._engine.read(_STATE))
        except (NotFoundError, ValueError):
            self._state = {"rank": mine, "generation": 0}
            self._write_state()
            return 0
        if state["rank"] != mine and state["rank"].split()[0] != str(self._settings.rank):
            raise ValueError(f"neotier.vllm: the tiers of rank {mine} were written by rank {state['rank']}; give it another file, or "
                             "remove it")
        self._state = {"rank": mine, "generation": state["generation"]}
        return int(state["generation"])

    def _write_state(self) -> None:
        assert self._engine is not None
        if self._durable:
            self._engine.put(_STATE, json.dumps(self._state).encode(), tier=self._durable, replace=True)
            self._engine.flush()

    def _open(self, generation: int) -> None:
        assert self._engine is not None
        settings, cache = self._settings, self._cache
        self._generation = generation
        self._space = json.dumps({**settings.identity, "tokens": settings.block_tokens, "layers": cache.describe(),
                                  "generation": generation}, sort_keys=True, separators=(",", ":"))
        self._store = KvStore(self._engine, layers=len(cache.layers), piece_bytes=cache.piece_bytes, layer_pieces=cache.layer_pieces,
                              block_tokens=settings.block_tokens, space=self._space, write=settings.write, store_after=settings.store_after,
                              recompute_ns=max(1, int(settings.block_tokens / settings.tokens_per_s * 1e9)))
        self._tenant = self._store.tenant("vllm")
        self._memory = self._reach(self._store)
        self._sessions: dict[str, _Session] = {}
        self._held: list[_Saving] = []  # until their step is judged
        self._finishing: list[_Saving] = []  # in the thread
        self._unfinished: dict[int, int] = {}  # saves by step
        self._tainted = 0  # the last step in which a load failed here
        self._here: set[bytes] = set()
        self._told = Told(settings.rank, 0, generation, Hello(self._space))
        self._whole = False

    def _reach(self, store: KvStore) -> Any:
        """What copies between the tiers and the paged cache."""
        device = self._cache.device
        if device.type != "cuda":
            return HostMemory(store)
        index = torch.cuda.current_device() if device.index is None else device.index
        return kv.GpuMemory(store, index, self._settings.staging_bytes)

    def _close_store(self) -> None:
        for load in self._coming:
            if load.load is not None:
                load.load.cancel()
            load.deadline = 0
            self._end_load(load)
            self._arrived.add(load.run.request)
        self._coming = []
        self._step = None
        for one in self._held:
            one.save.close()
        for one in self._finishing:
            try:
                if one.ended is not None:
                    one.ended.result()
            except Exception as error:
                self._log.warn(f"blocks are not stored: {error}")
            one.save.close()
        self._held, self._finishing = [], []
        for session in self._sessions.values():
            session.session.close()
        self._sessions = {}
        self._memory.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    # ---- a step

    def begin(self, work: Work) -> None:
        if self._store is None:
            return
        if self._step is not None and not self._step.ended:  # a step that vLLM gave up
            self._end(self._step, keep=False)
        if work.generation > self._generation:
            self._close_store()
            self._state["generation"] = work.generation
            try:
                self._write_state()
            except NeoTierError as error:
                self._log.warn(f"a reset does not outlive this process: {error}")
            self._open(work.generation)
        self._step = _Step(work)
        self._told.step = work.step
        for begun in work.begun:
            self._begin_request(begun.request, begun.hashes, begun.category)
        held, self._held = self._held, []
        for one in held:
            if one.step > work.judged:
                self._held.append(one)
            elif one.step in work.bad:
                self._withhold(one)
            else:
                self._finish(one)
        for name in work.finished:
            session = self._sessions.get(name)
            if session is not None:
                session.finished = True
                self._let_go(name, session)

    def _begin_request(self, name: str, hashes: list[bytes], category: int) -> None:
        assert self._store is not None
        try:
            session = self._session(name)
            if hashes:
                session.session.request(self._store.digest_keys(hashes), category=category)
        except Exception as error:
            self._log.warn(f"the policy is not told of a request: {error}")

    def _session(self, name: str) -> _Session:
        assert self._store is not None
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(self._store.session(self._tenant))
        return session

    def _let_go(self, name: str, session: _Session) -> None:
        if session.finished and session.users == 0 and self._sessions.get(name) is session:
            del self._sessions[name]
            session.session.close()

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._cache.device).cuda_stream if self._cache.device.type == "cuda" else 0

    def start_loads(self) -> None:
        step = self._step
        if step is None or step.loading or self._store is None:
            return
        step.loading = True
        deadline = time.monotonic() + self._settings.timeout
        for run in step.work.loads:
            one = _Loading(run, [], None, None, deadline)
            (step.loads if self._settings.layerwise else self._coming).append(one)
            try:
                one.keys = self._store.digest_keys(run.hashes)
                one.session = self._session(run.request)
                one.session.users += 1
                one.load = self._memory.load(one.session.session, one.keys, self._cache.pieces(run.blocks), run.first,
                                             stream=self._stream())
            except Exception as error:
                self._log.warn(f"{len(run.blocks)} blocks could not be loaded: {error}")

    def wait_layer(self, name: str) -> None:
        step = self._step
        if step is None or not step.loads or step.ended:
            return
        layer = self._cache.index.get(name)
        if layer is None:  # it reads no registered tensor
            return
        for one in step.loads:
            if one.load is None or one.good is not None:
                continue
            try:
                one.load.wait(max(one.deadline - time.monotonic(), 0), layer=layer, stream=self._stream())
            except TimeoutError:
                one.load.cancel()
            except Exception:
                pass  # the other blocks go on; _end_load() says which have come

    def arrived(self) -> set[str]:
        """Requests whose loads between steps have ended, well or not, since the last call."""
        coming, self._coming = self._coming, []
        for one in coming:
            try:
                if one.load is not None:
                    one.load.wait(0)
            except TimeoutError:
                if time.monotonic() < one.deadline:
                    self._coming.append(one)
                    continue
            except Exception:
                pass  # _end_load() says which blocks have come
            self._end_load(one)
            self._arrived.add(one.run.request)
        arrived, self._arrived = self._arrived, set()
        return arrived

    def _end_loads(self, step: _Step) -> None:
        """All loads of the step have come, or are known not to. Nothing of them writes to the cache any more."""
        if not step.loading:  # vLLM did not start them: what comes now would come too late
            step.loading = True
            for run in step.work.loads:
                self._errors.update(run.blocks)
                if not self._settings.layerwise:
                    self._arrived.add(run.request)
        for one in step.loads:
            if one.good is None:
                self._end_load(one)
                if one.good < len(one.run.blocks):
                    self._tainted = step.work.step

    def _end_load(self, one: _Loading) -> None:
        one.good = 0
        if one.load is not None:
            try:
                one.good = finish_load(one.load, max(one.deadline - time.monotonic(), 0), self._log)
            except Exception as error:
                self._log.warn(f"{len(one.run.blocks)} blocks could not be loaded: {error}")
                one.load.cancel()
                one.good = 0
            one.load.close()
        self.counters["loaded"] += one.good
        self.counters["failed"] += len(one.run.blocks) - one.good
        if one.good < len(one.run.blocks):
            self._errors.update(one.run.blocks[one.good:])
            # Of those behind it nothing is known: only the first is a miss for others.
            self._told.failed.extend(one.keys[one.good:one.good + 1])
        if one.session is not None:
            self._release(one.session)

    def all_loading(self) -> set[int]:
        return {block for run in self._step.work.loads for block in run.blocks} if self._step else set()

    def load_errors(self) -> set[int]:
        if self._step is not None and self._store is not None:
            self._end_loads(self._step)
        errors, self._errors = self._errors, set()
        return errors

    def _begin_saves(self, step: _Step) -> None:
        if step.saving:
            return
        step.saving = True
        assert self._store is not None
        for run in step.work.saves:
            self._unfinished[step.work.step] = self._unfinished.get(step.work.step, 0) + 1
            if len(step.saves) + len(self._held) + len(self._finishing) >= self._settings.unfinished and self._waits(step):
                self.counters["dropped"] += len(run.blocks)
                self._ended(step.work.step)
                continue
            try:
                keys = self._store.digest_keys(run.hashes)
                session = self._session(run.request)
                save = self._memory.save(session.session, keys, self._cache.pieces(run.blocks), run.first)
                one = _Saving(step.work.step, keys, save, session)
                session.users += 1
                step.saves.append(one)
            except Exception as error:
                self.counters["dropped"] += len(run.blocks)
                self._log.warn(f"{len(run.blocks)} blocks are not stored: {error}")
                self._ended(step.work.step)

    def _waits(self, step: _Step) -> bool:
        """Its saves do not end with the step."""
        return self._thread is not None or (step.work.uncertain and self._settings.world > 1)

    def save_layer(self, name: str) -> None:
        step = self._step
        if step is None or not step.work.saves or step.ended or self._store is None or not self._settings.written_once:
            return
        self._begin_saves(step)
        layer = self._cache.index.get(name)
        if layer is not None and layer not in step.layers:
            step.layers.add(layer)
            for one in step.saves:
                one.save.layer(layer, self._stream())

    def end_step(self) -> None:
        if self._step is not None and not self._step.ended and self._store is not None:
            self._end(self._step)

    def _end(self, step: _Step, keep: bool = True) -> None:
        step.ended = True
        self._end_loads(step)
        if not step.work.saves:
            return
        self._begin_saves(step)
        saves, step.saves = step.saves, []
        # The scheduler may have planned this step before it knew of a failure.
        if not keep or self._tainted > step.work.judged:
            for one in saves:
                self._withhold(one)
            return
        stream = self._stream()
        for layer in range(len(self._cache.layers)):
            if layer not in step.layers:
                for one in saves:
                    one.save.layer(layer, stream)
        for one in saves:
            if self._waits(step):
                one.save.behind(stream)
            if step.work.uncertain and self._settings.world > 1:
                self._held.append(one)
            else:
                self._finish(one)

    def _withhold(self, one: _Saving) -> None:
        self.counters["withheld"] += len(one.keys)
        one.save.close()
        self._end_save(one)

    def _finish(self, one: _Saving) -> None:
        if self._thread is not None:
            one.ended = self._thread.submit(one.save.finish)
            self._finishing.append(one)
            return
        one.ended = Future()
        try:
            one.ended.set_result(one.save.finish())
        except Exception as error:
            one.ended.set_exception(error)
        self._take(one)

    def _take(self, one: _Saving) -> None:
        """A save that finish() has returned from."""
        assert one.ended is not None and self._engine is not None
        try:
            stored = one.ended.result()
            self.counters["stored"] += stored.stored
            self.counters["present"] += stored.present
            self.counters["passed"] += stored.passed + stored.filtered
        except FullError:
            self.counters["refused"] += len(one.keys)
        except Exception as error:
            self.counters["refused"] += len(one.keys)
            self._log.warn(f"{len(one.keys)} blocks are not stored: {error}")
        # Also one that was there before: the scheduler has asked for it, so it does not know.
        there = [key for key in one.keys if key in self._engine]
        self._told.added += there
        self._here.update(there)
        one.save.close()
        self._end_save(one)

    def _end_save(self, one: _Saving) -> None:
        self._release(one.session)
        self._ended(one.step)

    def _release(self, session: _Session) -> None:
        session.users -= 1
        for name, known in list(self._sessions.items()) if session.finished else ():
            if known is session:
                self._let_go(name, session)

    def _ended(self, step: int) -> None:
        left = self._unfinished[step] - 1
        if left:
            self._unfinished[step] = left
        else:
            del self._unfinished[step]
            self._told.ended.append(step)

    # ---- what the scheduler is told

    def report(self) -> Told:
        assert self._engine is not None and self._store is not None
        if self._finishing:
            ended = [one for one in self._finishing if one.ended is not None and one.ended.done()]
            self._finishing = [one for one in self._finishing if one not in ended]
            for one in ended:
                self._take(one)
        self._hear()
        told, self._told = self._told, Told(self._settings.rank, self._told.step, self._generation)
        return told

    def _hear(self) -> None:
        assert self._engine is not None and self._store is not None
        told = self._told
        events, lost = self._store.events(_EVENTS)
        added: dict[bytes, None] = {}
        removed: dict[bytes, None] = {}
        for event in events:
            if event.key == _STATE:
                continue
            if event.kind == "copied" and event.key not in self._here:
                self._here.add(event.key)
                removed.pop(event.key, None)
                added[event.key] = None
            elif event.kind == "forgotten":
                # It may have been stored again since.
                if event.key in self._here and event.key not in self._engine:
                    self._here.discard(event.key)
                    added.pop(event.key, None)
                    removed[event.key] = None
        if lost:  # what left unseen
            for key in [key for key in self._here if key not in self._engine]:
                self._here.discard(key)
                removed[key] = None
                added.pop(key, None)
        told.added = [key for key in told.added if key not in removed] + list(added)
        told.removed += removed
        if not self._whole and len(events) < _EVENTS:
            told.whole = self._whole = True

    def stats(self) -> dict[str, Any]:
        return {**self.counters, "sessions": len(getattr(self, "_sessions", ())), "held": len(getattr(self, "_held", ())),
                "store": self._store.stats() if self._store else {}}

    def prometheus(self) -> str:
        return self._engine.prometheus() if self._engine else ""

    def close(self) -> None:
        """What is on durable tiers is there for the next process. Saves that wait for a verdict are dropped."""
        if self._engine is None:
            return
        step, self._step = self._step, None
        if step is not None and not step.ended:
            self._end(step, keep=False)
        self._close_store()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
        if self._durable:
            try:
                self._engine.flush()
            except NeoTierError as error:  # it is out of service
                self._log.warn(str(error))
        self._engine.close()
        self._engine = None
        self._cache = None  # type: ignore[assignment]  vLLM's tensors
