# SPDX-License-Identifier: Apache-2.0
"""A storage backend of SGLang's HiCache: pages that leave the host's cache, over DRAM, CXL memory and SSDs. docs/serving.md.

Its callers are SGLang's own threads, which may wait. No exception reaches them: a page that cannot be had is a miss, one that cannot
be kept is said to be so.

A page is a block of ours. SGLang names it by a hash of its whole prefix, and its memory is read and written where it lies.
"""
from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

try:
    from sglang.srt.mem_cache.hicache_storage import (HiCacheStorage, HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer,
                                                      PoolTransferResult)
    from sglang.srt.observability.metrics_collector import StorageMetrics
except ImportError as error:
    raise ImportError(f"neotier.sglang: this SGLang takes no storage of others ({error}); SGLang 0.5.23 does") from None

from . import Engine, FullError, KvStore, NeoTierError, NotFoundError, PlanOptions
from .connector import SparingLog, check_storage, finish_load, setting
from .kv import Pieces

logger = logging.getLogger(__name__)

_GENERATION = hashlib.blake2b(b"neotier.sglang generation", digest_size=16).digest()
_MOST_PIECES = 4096  # of a page
_Answer = TypeVar("_Answer")


@dataclass
class _Pool:
    """One of SGLang's host pools. parts: (piece, offset) of each of the page's parts of one size; none: pages go through a copy."""

    host: Any
    store: KvStore
    tenant: int
    page_rows: int
    piece_sizes: list[int]
    part_bytes: int
    parts: list[tuple[int, int]] = field(default_factory=list)


class NeoTierStorage(HiCacheStorage):
    """Settings, in SGLang's extra config beside module_path and class_name:

    tiers: neotier.h's, fastest first, as "cxl=64G:node=1,ssd=200G:file=/var/cache/neotier-{rank}". "{rank}" becomes the place of the
    process among those that share a model: each has a part of every page, and a file of its own.

    interface_v1: 1, SGLang's own: without it SGLang copies each page twice.

    write: when a page is copied to the durable tier: "back" when it leaves the faster ones, "selective" once it was used twice,
    "through" at once. store_after: a page is stored when it is offered for the so-many-th time. prefill_tokens_per_s: what computing
    costs. decide: SGLang is not told of pages that are faster to compute than to load. timeout_s: a load that takes longer is a miss.
    max_objects, seed: as neotier.h.

    ValueError, with one line: a setting that is missing or wrong, or a split that it cannot serve.

    Thread safety: any calls at the same time; clear() waits for the others to end.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        config, extra = storage_config, dict(storage_config.extra_config or {})
        tiers, self._write = extra.get("tiers"), extra.get("write", "selective")
        check_storage("neotier.sglang", tiers, self._write, "ssd=200G:file=/var/cache/neotier-{rank}")
        if not extra.get("interface_v1"):
            raise ValueError('neotier.sglang: write "interface_v1": 1 beside class_name; without it SGLang copies each page twice')
        given = partial(setting, "neotier.sglang", extra)
        if config.is_mla_model and config.tp_size > 1:
            raise ValueError("neotier.sglang: with MLA and tensor parallelism one rank writes for all, and ours are one store a rank")
        rank = "-".join(str(n) for n in (config.dp_rank, config.pp_rank, config.attn_cp_rank, config.tp_rank))
        if config.tp_size * config.pp_size * config.attn_cp_size > 1 and "ssd=" in tiers and "{rank}" not in tiers:
            raise ValueError("neotier.sglang: ranks cannot share the SSD tier's file; write {rank} in its name")
        self._tokens_per_s = given("prefill_tokens_per_s", 10000, float, 1)
        self._timeout = given("timeout_s", 30, float, .001)
        self._decide = given("decide", False, bool)
        self._store_after = given("store_after", 1, int, 1)
        limits = given("max_objects", 0, int), given("seed", 0, int)
        self._identity = {"engine": "sglang", "model": config.model_name, "rank": rank,
                          "split": [config.tp_size, config.pp_size, config.attn_cp_size]}
        self._pools: dict[str, _Pool] = {}
        self.counters = dict.fromkeys(("found", "loaded", "failed", "stored", "present", "passed", "refused"), 0)
        self._log = SparingLog(logger, "neotier")
        self._lock = threading.Lock()  # of counters, metrics and calls
        self._metrics = StorageMetrics()
        self._idle = threading.Condition(self._lock)
        self._calls = 0
        self._clearing = False
        self._engine = Engine(tiers.replace("{rank}", rank), max_objects=limits[0], seed=limits[1], events=65536)
        try:
            # What clear() made void stays so in a process that finds it on the disk.
            durable = [tier["name"] for tier in self._engine.metrics()["tiers"] if tier.get("durable")]
            self._durable = durable[0] if durable else None
            try:
                self._generation = int.from_bytes(self._engine.read(_GENERATION), "little")
            except NotFoundError:
                self._generation = 0
        except Exception:
            self._engine.close()
            raise

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pools[str(PoolName.KV)] = self._pool(str(PoolName.KV), mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._pools[str(host_pool_name)] = self._pool(str(host_pool_name), host_pool)

    def _pool(self, name: str, host: Any) -> _Pool:
        rows = getattr(host, "page_size", 1) or 1
        sizes = self._sizes(host, rows)
        part = math.gcd(*sizes) if sizes else 0
        parts = [(piece, offset) for piece, size in enumerate(sizes) for offset in range(0, size, part)]
        if not parts or len(parts) > _MOST_PIECES:
            try:
                page = host.get_data_page(0)
            except (NotImplementedError, ValueError) as error:
                raise ValueError(f"neotier.sglang: SGLang gives no pages of pool '{name}' ({error}); another --hicache-mem-layout "
                                 "may do, as page_first_direct") from None
            sizes, parts, part = [], [], page.numel() * page.element_size()
        space = json.dumps({**self._identity, "pool": name, "layout": str(getattr(host, "layout", "")),
                            "dtype": str(getattr(host, "dtype", "")), "rows": rows, "pieces": sizes or [part],
                            "generation": self._generation}, sort_keys=True, separators=(",", ":"))
        store = KvStore(self._engine, layers=max(len(parts), 1), layer_bytes=part, space=space, write=self._write,
                        store_after=self._store_after, recompute_ns=max(1, int(rows / self._tokens_per_s * 1e9)))
        return _Pool(host, store, store.tenant("sglang"), rows, sizes, part, parts)

    @staticmethod
    def _sizes(host: Any, rows: int) -> list[int]:
        """Bytes of a page's pieces, in the order of their addresses; none where the pool's pages do not lie in memory like that."""
        try:
            _, sizes = host.get_page_buffer_meta(torch.arange(rows, dtype=torch.int64))
            addresses, two = host.get_page_buffer_meta(torch.arange(2 * rows, dtype=torch.int64))
            second, _ = host.get_page_buffer_meta(torch.arange(rows, 2 * rows, dtype=torch.int64))
        except (NotImplementedError, AttributeError, ValueError, TypeError, AssertionError):
            return []
        if list(two) != 2 * list(sizes) or list(addresses[len(sizes):]) != list(second):
            return []
        try:
            page = host.get_dummy_flat_data_page()
        except NotImplementedError:  # pools with heads of two sizes have no flat pages
            return list(sizes)
        return list(sizes) if sum(sizes) == page.numel() * page.element_size() else []

    def _names(self, pool: _Pool, keys: list[str]) -> list[bytes]:
        return pool.store.digest_keys([hashlib.blake2b(key.encode(), digest_size=32).digest() for key in keys])

    @staticmethod
    def _pieces(pool: _Pool, rows: torch.Tensor) -> Pieces:
        addresses, _ = pool.host.get_page_buffer_meta(rows)
        step = len(pool.piece_sizes)
        return Pieces([addresses[at + piece] + offset for piece, offset in pool.parts for at in range(0, len(addresses), step)],
                      pool.part_bytes, pool.host)

    # ---- pages

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, nr in more.items():
                self.counters[name] += nr

    def _measure(self, pages: list[int], speeds: list[float], nr: int, pool: _Pool, began: float) -> None:
        if nr and len(pages) < 4096:  # nobody fetches them where SGLang's metrics are off
            with self._lock:
                pages.append(nr)
                speeds.append(nr * max(len(pool.parts), 1) * pool.part_bytes / 1e9 / max(time.monotonic() - began, 1e-9))

    def _of(self, name: Any, keys: list[str], rows: torch.Tensor | None) -> _Pool | None:
        pool = self._pools.get(str(name))
        if pool is None or rows is None or rows.numel() != len(keys) * pool.page_rows:
            self._log.warn(f"pool {name}: {0 if rows is None else rows.numel()} rows for {len(keys)} pages" +
                           (f" of {pool.page_rows}" if pool else "; it is not registered"))
            return None
        return pool

    def _load(self, name: Any, keys: list[str], rows: torch.Tensor | None, position: int) -> list[bool]:
        """Of what comes after a page that is missing SGLang uses nothing."""
        pool = self._of(name, keys, rows)
        if pool is None or not keys:
            return [False] * len(keys)
        began = time.monotonic()
        pages = [] if pool.parts else [pool.host.get_dummy_flat_data_page().contiguous() for _ in keys]
        into: Any = self._pieces(pool, rows) if pool.parts else [page.view(torch.uint8).reshape(-1).numpy() for page in pages]
        with pool.store.session(pool.tenant) as session, session.load(self._names(pool, keys), into, position) as load:
            wanted, good = load.blocks, finish_load(load, self._timeout, self._log)
        for page, row in zip(pages[:good], range(0, good * pool.page_rows, pool.page_rows)):
            pool.host.set_from_flat_data_page(int(rows[row]), page)
        self._count(loaded=good, failed=wanted - good)
        self._measure(self._metrics.prefetch_pgs, self._metrics.prefetch_bandwidth, good, pool, began)
        return [at < good for at in range(len(keys))]

    def _keep(self, name: Any, keys: list[str], rows: torch.Tensor | None, position: int) -> list[bool]:
        pool = self._of(name, keys, rows)
        if pool is None or not keys:
            return [False] * len(keys)
        began = time.monotonic()
        data: Any = self._pieces(pool, rows) if pool.parts else [
            pool.host.get_data_page(int(rows[at])).contiguous().view(torch.uint8).reshape(-1).numpy()
            for at in range(0, rows.numel(), pool.page_rows)]
        names = self._names(pool, keys)
        with pool.store.session(pool.tenant) as session:
            try:
                stored = session.store(names, data, position)
            except FullError:
                there = [name in self._engine for name in names]
                self._count(stored=sum(there), refused=len(keys) - sum(there))
                return there
        self._count(stored=stored.stored, present=stored.present, passed=stored.passed + stored.filtered)
        self._measure(self._metrics.backup_pgs, self._metrics.backup_bandwidth, stored.stored, pool, began)
        # A page that the policy would rather not have is no failure: after one SGLang would not offer those that follow.
        return [True] * len(keys)

    @staticmethod
    def _position(extra_info: Any) -> int:
        return len(getattr(extra_info, "prefix_keys", None) or ())

    def _answer(self, what: str, otherwise: _Answer, call: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            if self._clearing:
                return otherwise
            self._calls += 1
        try:
            return call()
        except NeoTierError as error:
            self._log.warn(f"{what}: {error}")
            return otherwise
        except Exception as error:
            self._log.warn(f"{what}: {error}", trace=True)
            return otherwise
        finally:
            with self._lock:
                self._calls -= 1
                self._idle.notify_all()

    # ---- SGLang's calls

    def _found(self, keys: list[str], extra_info: Any) -> int:
        pool = self._pools[str(PoolName.KV)]
        if not keys:
            return 0
        with pool.store.session(pool.tenant) as session:
            plan = session.plan(self._names(pool, keys), PlanOptions(), self._position(extra_info))
        found = plan.load if self._decide else plan.found
        self._count(found=found)
        return found

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._answer("batch_exists", 0, lambda: self._found(keys, extra_info))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._answer("batch_get_v1", [False] * len(keys),
                            lambda: self._load(PoolName.KV, keys, host_indices, self._position(extra_info)))

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._answer("batch_set_v1", [False] * len(keys),
                            lambda: self._keep(PoolName.KV, keys, host_indices, self._position(extra_info)))

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[PoolTransfer] | None = None,
                        extra_info: Any = None) -> PoolTransferResult:
        def call() -> PoolTransferResult:
            nr = self._found(keys, extra_info)
            hits: dict[str, int] = {PoolName.KV: nr} if nr else {}
            lengths = set(range(1, nr + 1))  # prefixes that can be restored
            for transfer in pool_transfers or []:
                # BLOCK_GROUPS: a second form of pages that are there anyway. It is not kept, and never gates the others.
                if transfer.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
                    continue
                pool = self._pools.get(str(transfer.name))
                there = [name in self._engine for name in self._names(pool, keys[:nr])] if pool else [False] * nr
                if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                    mine = set(range(1, (there.index(False) if False in there else nr) + 1))
                else:
                    last = max(1, len(transfer.keys or ()))
                    mine = {end for end in range(1, nr + 1) if all(there[max(0, end - last):end])}
                if mine:
                    hits[transfer.name] = max(mine)
                lengths &= mine
            return PoolTransferResult(max(lengths, default=0), hits, sorted(lengths))
        return self._answer("batch_exists_v2", PoolTransferResult.empty(), call)

    def batch_get_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._each("batch_get_v2", self._load, transfers, extra_info)

    def batch_set_v2(self, transfers: list[PoolTransfer], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._each("batch_set_v2", self._keep, transfers, extra_info)

    def _each(self, what: str, call: Callable[..., list[bool]], transfers: list[PoolTransfer],
              extra_info: Any) -> dict[str, list[bool]]:
        position = self._position(extra_info)
        return {transfer.name: self._answer(f"{what} of {transfer.name}", [False] * len(transfer.keys or ()),
                                            lambda t=transfer: call(t.name, list(t.keys or ()), t.host_indices, position))
                for transfer in transfers}

    # Calls with tensors. SGLang makes none where interface_v1 is set; it must have them.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return False

    def clear(self) -> bool:
        """Nothing that is stored is found any more, by this process or a later one. Its room is taken as new pages want it."""
        with self._idle:
            self._clearing = True
            quiet = self._idle.wait_for(lambda: self._calls == 0, 2 * self._timeout)
        try:
            if not quiet:
                raise TimeoutError(f"calls are under way after {2 * self._timeout} s")
            self._engine.put(_GENERATION, (self._generation + 1).to_bytes(8, "little"), tier=self._durable, replace=True)
            self._generation += 1
            if self._durable:
                self._engine.flush()
            for name, pool in list(self._pools.items()):
                self._pools[name] = self._pool(name, pool.host)
                pool.store.close()
            return True
        except Exception as error:
            logger.error("neotier: what is stored could not be cleared: %s", error)
            return False
        finally:
            with self._lock:
                self._clearing = False

    def get_stats(self) -> StorageMetrics:
        """Since the last call: pages of each load and store, and their speeds in GB/s, for SGLang's metrics."""
        with self._lock:
            metrics, self._metrics = self._metrics, StorageMetrics()
        return metrics

    def stats(self) -> dict[str, Any]:
        """Pages by what became of them, and each pool's KvStore.stats()."""
        with self._lock:
            counters = dict(self.counters)
        return {**counters, "pools": {name: pool.store.stats() for name, pool in self._pools.items()}}

    def prometheus(self) -> str:
        """The engine's metrics: tiers, moves, how long loads take."""
        return self._engine.prometheus()

    def close(self) -> None:
        """What is on durable tiers is there for the next process. Nothing of it may be in use in another thread."""
        if self._durable:
            try:
                self._engine.flush()
            except NeoTierError as error:  # it is out of service
                self._log.warn(str(error))
        self._engine.close()
