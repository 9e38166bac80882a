# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side of the KV connector. It opens no tiers: a mirror says which blocks all ranks have, as they tell it step by step.

A hit is a promise that may be broken: what left the tiers meanwhile is a failed load. vLLM computes such blocks anew, and they are
misses from then on. What was computed in the same step, or in one that was planned before the failure was seen, may rest on blocks that
never came. It is not stored, whichever rank failed: messages.Work.bad tells the workers.
"""
from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ..connector import SparingLog
from ..engine import Engine
from ..kv import KvStore
from . import names
from .messages import Begun, Report, Run, Told, Work
from .settings import Settings

MOST_OBJECTS = 1 << 20  # neotier.h's default of max_objects
MOST_FAILURES = 3  # layerwise loads for one request


@dataclass
class _Request:
    """hashes: vLLM's, as far as `keys` of each space were made. saved: leading blocks that are stored or were offered. local: leading
    blocks that vLLM's own cache had. failed: hashes that could not be loaded for it. failures: loads."""

    request: Any
    hashes: list[bytes] = field(default_factory=list)
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)
    begun: bool = False
    saved: int = 0
    local: int = 0
    failures: int = 0


class Mirror:
    """Which keys are stored on all ranks. Ranks of one space (a pipeline stage) have equal keys, so that one entry says it for all of
    them; each space has `most` entries at most, and what was told first is forgotten first."""

    def __init__(self, world: int, most: int) -> None:
        self._world, self._most = world, most
        self._spaces: dict[int, str] = {}  # by rank
        self._whole: set[int] = set()
        self._ranks: dict[str, int] = {}  # of each space, as bits
        self._keys: dict[str, OrderedDict[bytes, int]] = {}

    def hello(self, rank: int, space: str) -> None:
        former = self._spaces.get(rank)
        if former is not None:
            raise ValueError(f"rank {rank} comes twice")
        self._spaces[rank] = space
        self._ranks[space] = self._ranks.get(space, 0) | 1 << rank
        self._keys.setdefault(space, OrderedDict())

    def whole(self, rank: int) -> None:
        self._whole.add(rank)

    @property
    def ready(self) -> bool:
        """All ranks have told what they have."""
        return len(self._spaces) == len(self._whole) == self._world

    @property
    def spaces(self) -> list[str]:
        return list(self._ranks)

    def add(self, rank: int, keys: list[bytes]) -> None:
        here = self._keys[self._spaces[rank]]
        for key in keys:
            here[key] = here.get(key, 0) | 1 << rank
            if len(here) > self._most:
                here.popitem(last=False)

    def remove(self, rank: int, keys: list[bytes]) -> None:
        here = self._keys[self._spaces[rank]]
        for key in keys:
            ranks = here.get(key, 0) & ~(1 << rank)
            if ranks:
                here[key] = ranks
            else:
                here.pop(key, None)

    def has(self, space: str, key: bytes) -> bool:
        return self._keys[space].get(key, 0) == self._ranks[space]

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))


class Schedule:
    """Thread safety: none; vLLM's scheduler has one thread."""

    def __init__(self, settings: Settings, log: SparingLog) -> None:
        self._settings, self._log = settings, log
        # Of a request that has failed to load between steps vLLM keeps room reserved. Asked to load again, it would wait for its own.
        self._most_failures = MOST_FAILURES if settings.layerwise else 1
        self.manager: Any = None  # vLLM's KVCacheManager
        # Only to make keys: nothing is put there.
        self._naming = Engine("dram=64K", events=64, max_objects=64)
        self._stores: dict[str, KvStore] = {}  # by space
        self._generation = 0
        self._mirror = self._fresh_mirror()
        self._asked: float | None = None  # when the ranks were first waited for
        self._requests: dict[str, _Request] = {}
        self._step = self._judged = self._tainted = 0
        self._bad: list[int] = []
        self._planned: list[tuple[_Request, Run]] = []  # loads of the step that is being planned
        # Layerwise, by step until it is judged.
        self._loading: dict[int, list[tuple[_Request, Run]]] = {}
        self._coming: dict[bytes, int] = {}  # hashes of planned and loading ones
        # Between steps, by request until it has arrived.
        self._waiting: dict[str, tuple[_Request, Run]] = {}
        self._saves: dict[int, tuple[list[bytes], set[int]]] = {}  # by step: hashes, and ranks that have not ended them
        self._saving: set[bytes] = set()
        self.counters = dict.fromkeys(("asked", "hit", "failed", "offered", "waited"), 0)

    def _fresh_mirror(self) -> Mirror:
        return Mirror(self._settings.world, self._settings.max_objects or MOST_OBJECTS)

    @property
    def layerwise(self) -> bool:
        return self._settings.layerwise

    # ---- a request

    def _of(self, request: Any) -> _Request:
        known = self._requests.get(request.request_id)
        if known is None or known.request is not request:
            known = self._requests[request.request_id] = _Request(request)
        return known

    def _name(self, known: _Request) -> None:
        """Keys for the hashes that have come since; for all of them where vLLM has taken some back."""
        hashes, at = known.request.block_hashes, len(known.hashes)
        if at > len(hashes) or (at and known.hashes[-1] != hashes[at - 1]):
            known.hashes, known.keys, at = [], {}, 0
            known.saved = 0
        known.hashes += [bytes(one) for one in hashes[at:]]
        for space in self._mirror.spaces:
            keys = known.keys.setdefault(space, [])
            if len(keys) < len(known.hashes):
                keys += self._stores[space].digest_keys(known.hashes[len(keys):])

    def _stored(self, known: _Request, block: int) -> bool:
        return all(self._mirror.has(space, known.keys[space][block]) for space in self._mirror.spaces)

    def matched(self, request: Any, computed: int) -> int | None:
        """Tokens beyond `computed` that can be loaded; None: ask again."""
        tokens = self._settings.block_tokens
        known = self._of(request)
        known.local = computed // tokens
        if computed % tokens or known.failures >= self._most_failures or getattr(request, "skip_reading_prefix_cache", False):
            return 0
        if not self._mirror.ready:
            # What a former process has left is told in the first steps, which come also where nothing else is to do.
            now = time.monotonic()
            self._asked = self._asked or now
            return None if now - self._asked < self._settings.timeout else 0
        self._name(known)
        # A block that vLLM's own cache has for it may be one that another request is just loading. If that load fails, vLLM lets this
        # request read it before the other has computed it anew. So it waits, for a step or two.
        if self._coming and any(one in self._coming for one in known.hashes[:known.local]):
            self.counters["waited"] += 1
            return None
        # vLLM has to compute one token at least.
        most = min((request.num_tokens - 1) // tokens, len(known.hashes))
        at = known.local
        while at < most and known.hashes[at] not in known.failed and self._stored(known, at):
            at += 1
        return max(at - known.local, 0) * tokens

    def allocated(self, request: Any, table: list[int], external: int) -> None:
        known = self._of(request)
        # Tokens of a part of a block come with the block.
        blocks, first = -(-external // self._settings.block_tokens), known.local
        if request.num_computed_tokens == 0:  # else it was asked for before, and has arrived
            self.counters["asked"] += max(request.num_tokens // self._settings.block_tokens - first, 0)
        if not blocks:
            return
        self.counters["hit"] += blocks
        run = Run(request.request_id, first, known.hashes[first:first + blocks], table[first:first + blocks])
        self._planned.append((known, run))
        if self.layerwise:
            self._come(run.hashes, 1)
        else:
            self._waiting[run.request] = known, run

    def _come(self, hashes: list[bytes], more: int) -> None:
        for one in hashes:
            nr = self._coming.get(one, 0) + more
            if nr:
                self._coming[one] = nr
            else:
                del self._coming[one]

    def finished(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    # ---- a step

    def step(self, output: Any) -> Work:
        self._step += 1
        work = Work(self._step, self._generation, self._judged, self._bad, finished=list(output.finished_req_ids))
        self._bad = []
        planned, self._planned = self._planned, []
        if planned and self.layerwise:
            self._loading[self._step] = planned
        work.uncertain = bool(self._loading)
        for known, run in planned:
            self._begin(known, work)
            work.loads.append(run)
        try:
            self._plan_saves(output, work)
        except Exception as error:  # loads must go out, whatever becomes of saves
            self._log.warn(f"blocks are not stored: {type(error).__name__}: {error}", trace=True)
            work.saves = []
        return work

    @staticmethod
    def _begin(known: _Request, work: Work) -> None:
        if not known.begun:
            known.begun = True
            work.begun.append(Begun(known.request.request_id, [bytes(one) for one in known.request.block_hashes],
                                    names.request_category(getattr(known.request, "kv_transfer_params", None))))

    def _plan_saves(self, output: Any, work: Work) -> None:
        ready = self._mirror.ready
        loaded = {run.request: range(run.first, run.first + len(run.hashes)) for run in work.loads}
        hashes: list[bytes] = []
        for name, scheduled in output.num_scheduled_tokens.items():
            known = self._requests.get(name)
            if known is None:
                continue
            self._begin(known, work)
            if not ready:
                continue
            tokens, computed = self._settings.block_tokens, known.request.num_computed_tokens
            # After a failed load, or when it was preempted, blocks are computed again.
            known.saved = min(known.saved, computed // tokens)
            if (computed + scheduled) // tokens <= known.saved:
                continue
            self._name(known)
            # Tokens that are only guessed have no hash.
            full = min((computed + scheduled) // tokens, len(known.hashes))
            wanted = [at for at in range(known.saved, full) if at not in loaded.get(name, ()) and
                      known.hashes[at] not in self._saving and not self._stored(known, at)]
            known.saved = max(full, known.saved)
            if not wanted:
                continue
            table = names.block_ids(output, self.manager, name)
            last: Run | None = None
            for at in wanted:
                if last is None or at != last.first + len(last.hashes):
                    last = Run(name, at, [], [])
                    work.saves.append(last)
                last.hashes.append(known.hashes[at])
                last.blocks.append(table[at])
                hashes.append(known.hashes[at])
                self._saving.add(known.hashes[at])
        if hashes:
            self.counters["offered"] += len(hashes)
            self._saves[self._step] = hashes, set(range(self._settings.world))

    def told(self, report: Report | None, invalid: set[int], arrived: set[str]) -> None:
        """What the workers say of a step. invalid: blocks of vLLM's cache that did not come. arrived: requests that no rank loads any
        more, whether it came or not."""
        parts = report.parts if report is not None else []
        step = max((part.step for part in parts), default=self._judged)
        loads = [*self._waiting.values(), *(one for planned in self._loading.values() for one in planned)]
        for part in parts:
            self._hear(part, loads)
        for known, run in loads:
            known.failures += bool(invalid.intersection(run.blocks))
        for name in arrived:
            self._waiting.pop(name, None)
        if self.layerwise and (invalid or any(part.failed for part in parts)):
            self._tainted = self._step
            self._forget_cached(loads, invalid)
        for judged in range(self._judged + 1, step + 1):
            if judged <= self._tainted:
                self._bad.append(judged)
                # What it would have saved is offered again, if it is not there by then.
                for known in self._requests.values():
                    known.saved = 0
            for _, run in self._loading.pop(judged, ()):
                self._come(run.hashes, -1)
        self._judged = max(self._judged, step)

    def _hear(self, part: Told, loads: list[tuple[_Request, Run]]) -> None:
        for step in part.ended:
            hashes, ranks = self._saves.get(step, ([], set()))
            ranks.discard(part.rank)
            if not ranks and self._saves.pop(step, None):
                self._saving.difference_update(hashes)
        if part.generation > self._generation:  # a reset that another rank did not live to see
            self._generation = part.generation
            self._forget_all()
        if part.generation != self._generation:
            return
        if part.hello:
            space = part.hello.space
            self._mirror.hello(part.rank, space)
            if space not in self._stores:
                self._stores[space] = KvStore(self._naming, layers=1, layer_bytes=512, space=space)
        self._mirror.remove(part.rank, part.removed)
        self._mirror.add(part.rank, part.added)
        if part.failed:
            self.counters["failed"] += len(part.failed)
            self._mirror.remove(part.rank, part.failed)
            gone = set(part.failed)
            for known, _ in loads:
                for keys in known.keys.values():
                    known.failed.update(one for one, key in zip(known.hashes, keys) if key in gone)
        if part.whole:
            self._mirror.whole(part.rank)

    def _forget_cached(self, loads: list[tuple[_Request, Run]], invalid: set[int]) -> None:
        """vLLM's own cache keeps the name of a block whose load failed, and of those computed from it: a request that comes next would
        use them before they are computed anew."""
        for _, run in loads:
            if run.request not in self._requests or not invalid.intersection(run.blocks):
                continue
            table = list(self.manager.get_block_ids(run.request)[0])
            first = next((at for at, block in enumerate(table) if block in invalid), len(table))
            self.manager.evict_blocks(set(table[first:]))

    # ---- the whole

    def _forget_all(self) -> None:
        self._mirror = self._fresh_mirror()
        for store in self._stores.values():
            store.close()
        self._stores = {}
        self._asked = None
        self._saves, self._saving = {}, set()
        for known in self._requests.values():
            known.hashes, known.keys, known.saved = [], {}, 0

    def reset(self) -> None:
        self._generation += 1
        self._forget_all()

    def stats(self) -> dict[str, Any]:
        return {**self.counters, "known": len(self._mirror), "requests": len(self._requests), "saving": len(self._saving)}

    def close(self) -> None:
        self._naming.close()
        self._stores = {}
        self._requests.clear()
