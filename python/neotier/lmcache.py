# SPDX-License-Identifier: Apache-2.0
"""An L2 adapter of LMCache (MP mode): objects below its L1, over DRAM, CXL memory and SSDs. docs/serving.md.

LMCache's two controller threads call it and must not wait: what takes time is done by threads here, and an event descriptor tells of
its end. Each task ends, with what could be done of it; no exception reaches the controllers.

An object is a block of ours, of one layer. Objects of one size share a store. LMCache names neither the request nor an object's place
in it, so the policy is told of each task as of a request that begins at position 0.
"""
from __future__ import annotations

import hashlib
import heapq
import json
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
    from lmcache.v1.platform import create_event_notifier
    try:
        from lmcache.lmcache_native import Bitmap
    except ImportError:
        from lmcache.native_storage_ops import Bitmap
except ImportError as error:
    raise ImportError(f"neotier.lmcache: this LMCache takes no L2 adapters of others ({error}); LMCache 0.5.6 does") from None

from . import BusyError, Engine, FullError, KvStore, NeoTierError, NotFoundError, Pin
from .connector import SparingLog, check_storage, finish_load, setting
from .engine import KEY_BYTES
from .kv import Pieces

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import KeyListPage, MemoryLayoutDesc, ObjectKey
    from lmcache.v1.memory_management import MemoryObj

logger = logging.getLogger(__name__)

_SETTINGS = ("tiers", "write", "store_after", "recompute_us_per_kib", "timeout_s", "lock_s", "threads", "max_objects", "seed")
_MOST_SIZES = 64  # of objects; each has a store


class NeoTierAdapter(L2AdapterInterface):
    """adapter_params:

    tiers: neotier.h's, fastest first, as "cxl=64G:node=1,ssd=200G:file=/var/cache/neotier/lmcache".

    write: when an object is copied to the durable tier: "back" when it leaves the faster ones, "selective" once it was used twice,
    "through" at once. store_after: an object is stored when it is offered for the so-many-th time. recompute_us_per_kib: what computing
    costs, for the policy. timeout_s: a load that takes longer has failed. lock_s: a lock that nobody releases ends then. threads: loads
    and stores at a time, of each. max_objects, seed: as neotier.h.

    ValueError, with one line: a setting that is missing, wrong or unknown.

    Thread safety: any calls at the same time, but for close().
    """

    def __init__(self, config: dict[str, Any], l1_memory_desc: Any = None) -> None:
        # No capacity is told: what leaves is the engine's policy's choice, and LMCache's own eviction stays off.
        super().__init__(max_capacity_bytes=0)
        unknown = sorted(set(config) - set(_SETTINGS))
        if unknown:
            raise ValueError(f"neotier.lmcache: no setting '{unknown[0]}'; there are {', '.join(_SETTINGS)}")
        tiers, self._write = config.get("tiers"), config.get("write", "selective")
        check_storage("neotier.lmcache", tiers, self._write, "ssd=200G:file=/var/cache/neotier/lmcache")
        given = partial(setting, "neotier.lmcache", config)
        self._ns_per_kib = given("recompute_us_per_kib", 10, float, .001) * 1000
        self._timeout, self._lease = given("timeout_s", 30, float, .001), given("lock_s", 300, float, .001)
        self._store_after, threads = given("store_after", 1, int, 1), given("threads", 4, int, 1)
        limits = given("max_objects", 0, int), given("seed", 0, int)
        self._log = SparingLog(logger, "neotier")
        self.counters = dict.fromkeys(("found", "loaded", "failed", "stored", "present", "passed", "refused"), 0)
        self._engine = Engine(tiers, max_objects=limits[0], seed=limits[1], events=65536)
        self._session = self._engine.session()  # of the locks
        self._stores: dict[int, tuple[KvStore, int]] = {}  # by size: the store, its tenant
        self._telling = threading.Lock()  # of what listeners are told, and of _here
        self._lock = threading.Lock()  # of what follows, and of the counters
        self._next_task = 0
        self._ended: dict[str, dict[int, Any]] = {"store": {}, "lookup": {}, "load": {}}
        self._pins: dict[ObjectKey, deque[Pin]] = defaultdict(deque)
        self._here: dict[bytes, tuple[ObjectKey, int]] = {}  # by the engine's key: LMCache's, and bytes
        self._closed = False
        self._events = {kind: create_event_notifier() for kind in self._ended}
        self._threads = {kind: ThreadPoolExecutor(1 if kind == "lookup" else threads, f"neotier-{kind}") for kind in self._ended}

    # ---- names

    def _store_of(self, size: int) -> tuple[KvStore, int]:
        with self._lock:
            made = self._stores.get(size)
            if made is None:
                if len(self._stores) >= _MOST_SIZES:
                    raise ValueError(f"objects of more than {_MOST_SIZES} sizes; LMCache's serde is not served")
                space = json.dumps({"engine": "lmcache", "bytes": size}, separators=(",", ":"))
                store = KvStore(self._engine, layers=1, layer_bytes=size, space=space, write=self._write, store_after=self._store_after,
                                recompute_ns=max(1, int(size / 1024 * self._ns_per_kib)))
                made = self._stores[size] = store, store.tenant("lmcache")
            return made

    @staticmethod
    def _digest(key: ObjectKey) -> bytes:
        text = "\0".join((key.model_name, str(key.kv_rank), str(key.object_group_id), key.cache_salt)).encode()
        return hashlib.blake2b(len(text).to_bytes(4, "little") + text + key.chunk_hash, digest_size=32).digest()

    def _names(self, store: KvStore, keys: list[ObjectKey]) -> list[bytes]:
        return store.digest_keys([self._digest(key) for key in keys])

    @staticmethod
    def _alike(values: list[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = defaultdict(list)
        for at, value in enumerate(values):
            groups[value].append(at)
        return groups

    @staticmethod
    def _layout_bytes(layout: MemoryLayoutDesc) -> int:
        return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes))

    # ---- tasks

    def _submit(self, kind: str, otherwise: Any, work: Callable[[], Any]) -> int:
        with self._lock:
            task = self._next_task
            self._next_task += 1
            if self._closed:  # its threads and descriptors are gone
                self._ended[kind][task] = otherwise
                return task

        def run() -> None:
            try:
                result = otherwise if self._closed else work()
            except NeoTierError as error:
                self._log.warn(f"a {kind} failed: {error}")
                result = otherwise
            except Exception as error:
                self._log.warn(f"a {kind} failed: {error}", trace=True)
                result = otherwise
            with self._lock:
                self._ended[kind][task] = result
            self._events[kind].notify()

        self._threads[kind].submit(run)
        return task

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, nr in more.items():
                self.counters[name] += nr

    def get_store_event_fd(self) -> int:
        return self._events["store"].fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._events["lookup"].fileno()

    def get_load_event_fd(self) -> int:
        return self._events["load"].fileno()

    # ---- stores

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        keys, objects = list(keys), list(objects)
        return self._submit("store", L2StoreResult(False, 0), lambda: self._store(keys, objects))

    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult:
        nr_bytes, all_fit = 0, True
        for size, places in self._alike([one.get_size() for one in objects]).items():
            store, tenant = self._store_of(size)
            mine = [keys[at] for at in places]
            names = self._names(store, mine)
            held = [objects[at] for at in places]
            stored = None
            with store.session(tenant) as session:
                try:
                    stored = session.store(names, Pieces([one.data_ptr for one in held], size, held))
                except FullError:
                    all_fit = False
                finally:  # also of what came before a failure
                    new = self._tell(names, mine, size)
            if stored is None:
                self._count(stored=new, refused=len(mine) - new)
                nr_bytes += new * size
            else:
                self._count(stored=stored.stored, present=stored.present, passed=stored.passed + stored.filtered)
                nr_bytes += stored.stored * size
        # What a policy would rather not have has not failed: LMCache could only offer it again.
        return L2StoreResult(all_fit, nr_bytes)

    def _tell(self, names: Sequence[bytes] = (), keys: Sequence[ObjectKey] = (), size: int = 0) -> int:
        """LMCache's listeners hear of objects that have gone since, and of those of the names that are there and were not. How many
        these are. In order, of each object: that it is there, then that it has gone."""
        with self._telling:
            with self._lock:
                follower = next(iter(self._stores.values()), (None,))[0]  # each store is told of every object
            events, lost = follower.events(1 << 20) if follower else ([], 0)
            gone = list(self._here) if lost else [event.key for event in events if event.kind == "forgotten"]
            left = [self._here.pop(name) for name in dict.fromkeys(gone) if name in self._here and name not in self._engine]
            if left:
                self._notify_keys_deleted([key for key, _ in left], [size for _, size in left])
            new = [(name, key) for name, key in dict(zip(names, keys)).items() if name not in self._here and name in self._engine]
            self._here.update((name, (key, size)) for name, key in new)
            if new:
                self._notify_keys_stored([key for _, key in new], [size] * len(new))
            return len(new)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            ended, self._ended["store"] = self._ended["store"], {}
        return ended

    # ---- look-ups, which lock what they find

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc] | None = None) -> int:
        keys, layouts = list(keys), dict(group_layout_descs or {})
        return self._submit("lookup", Bitmap(len(keys)), lambda: self._look_up(keys, layouts))

    def _look_up(self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc]) -> Bitmap:
        found = Bitmap(len(keys))
        try:
            self._lock_found(keys, layouts, found)
        except Exception:  # LMCache is told of no lock then, and would release none
            self._unlock([keys[at] for at in found.get_indices_list()])
            raise
        self._count(found=found.popcount())
        return found

    def _lock_found(self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc], found: Bitmap) -> None:
        sizes = {group: [self._layout_bytes(layout)] for group, layout in layouts.items()}
        with self._lock:
            known = list(self._stores)
        for group, places in self._alike([key.object_group_id for key in keys]).items():
            mine = [keys[at] for at in places]
            for size in sizes.get(group, known):  # without a layout: whatever size it was stored with
                if size <= 0:
                    continue
                store, _ = self._store_of(size)
                for at, key, name in zip(places, mine, self._names(store, mine)):
                    if found.test(at):
                        continue
                    try:
                        pin = self._session.pin(name, self._lease)
                    except NeoTierError:  # it is not there, or cannot be held
                        continue
                    with self._lock:
                        self._pins[key].append(pin)
                    found.set(at)

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._ended["lookup"].pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        if not self._closed:  # else all locks are gone
            self._threads["lookup"].submit(self._unlock, list(keys))  # after the look-ups before it

    def _unlock(self, keys: list[ObjectKey]) -> None:
        for key in keys:
            with self._lock:
                pins = self._pins.get(key)
                pin = pins.popleft() if pins else None
                if not pins:
                    self._pins.pop(key, None)
            try:
                if pin is not None:
                    pin.release()
            except NeoTierError:  # its lease was over
                pass

    # ---- loads

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        keys, objects = list(keys), list(objects)
        return self._submit("load", Bitmap(len(keys)), lambda: self._load(keys, objects))

    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap:
        done, end = Bitmap(len(keys)), time.monotonic() + self._timeout
        for size, places in self._alike([one.get_size() for one in objects]).items():
            store, tenant = self._store_of(size)
            names = self._names(store, [keys[at] for at in places])
            with store.session(tenant) as session:
                at = 0
                while at < len(places) and time.monotonic() < end:  # a load takes leading objects that are there
                    held = [objects[place] for place in places[at:]]
                    with session.load(names[at:], Pieces([one.data_ptr for one in held], size, held)) as load:
                        wanted, good = load.blocks, finish_load(load, max(0.0, end - time.monotonic()), self._log)
                    done.batched_set(places[at:at + good])
                    self._count(loaded=good, failed=int(wanted > good))
                    at += good + 1  # that one failed, or is not there
        loaded = [keys[at] for at in done.get_indices_list()]
        if loaded:
            self._notify_keys_accessed(loaded)
        return done

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._ended["load"].pop(task_id, None)

    # ---- the rest

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> KeyListPage:
        """What this process has stored and is still there, in the order of the engine's keys; an earlier process's objects cannot be named.
        A page that is asked for later has what came meanwhile where its key is greater than the cursor. ValueError: page_size below 1, or
        a cursor that no page gave."""
        from lmcache.v1.distributed.api import KeyEntry, KeyListPage
        if page_size < 1:
            raise ValueError(f"page_size {page_size}: expected 1 or more")
        try:
            after = bytes.fromhex(cursor) if cursor is not None else b""
        except (TypeError, ValueError):
            after = None
        if after is None or (cursor is not None and len(after) != KEY_BYTES):
            raise ValueError(f"cursor {cursor!r}: none of a page of ours")
        if self._closed:
            return KeyListPage((), None)
        self._tell()
        with self._telling:
            wanted = ((name, key, size) for name, (key, size) in self._here.items()
                      if name > after and model_name in (None, key.model_name))
            page = heapq.nsmallest(page_size + 1, wanted, key=lambda one: one[0])
        rest, page = page[page_size:], page[:page_size]
        return KeyListPage(tuple(KeyEntry(key.to_encoded_object_key(), size) for _, key, size in page), page[-1][0].hex() if rest else None)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Objects that are locked stay, until nobody asks for them any more."""
        with self._lock:
            stores = list(self._stores.values())
        for store, _ in stores:
            for name in self._names(store, keys):
                try:
                    self._engine.remove(name)
                except (NotFoundError, BusyError):
                    pass
        self._tell()

    def get_usage(self) -> AdapterUsage:
        """Bytes in the tiers, also of what an earlier process left, and their capacity; by salt what this process has stored."""
        usage = super().get_usage()
        tiers = self._engine.metrics()["tiers"]
        return AdapterUsage(total_bytes_used=sum(tier["used_bytes"] for tier in tiers),
                            total_capacity_bytes=sum(tier["capacity_bytes"] for tier in tiers),
                            bytes_by_cache_salt=usage.bytes_by_cache_salt)

    def report_status(self) -> dict[str, Any]:
        """Counters of objects, and each tier."""
        with self._lock:
            counters, locked = dict(self.counters), sum(len(pins) for pins in self._pins.values())
        tiers = self._engine.metrics()["tiers"]
        return {"is_healthy": any(tier["in_service"] for tier in tiers), "type": "NeoTierAdapter", "locked": locked, **counters, "tiers": tiers}

    def close(self) -> None:
        """Waits for what is at a tier just now; other tasks end without effect. What is on durable tiers is there for the next
        process."""
        if self._closed:
            return
        self._closed = True
        for kind in ("store", "load", "lookup"):
            self._threads[kind].shutdown(wait=True)
        self._session.close()
        try:
            self._engine.flush()
        except NeoTierError as error:  # without a durable tier, or one that is out of service
            logger.info("neotier: %s", error)
        self._engine.close()
        for event in self._events.values():
            event.close()
