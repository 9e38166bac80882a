#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""neotier.sglang in SGLang's own HiCacheController: every layout, the policy beside SGLang's file backend, faults, restarts. TAP.
tests/engines/run calls it with the SGLang that scripts/engines has installed."""
import os
import random
import resource
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, "tests", "python"))
import common  # noqa: E402
import neotier  # noqa: E402
import sglang_host as host  # noqa: E402
import tap  # noqa: E402
import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402

from neotier.kv import KvSession  # noqa: E402

REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "10000"))  # of the long test
TRACE = int(os.environ.get("ENGINE_TRACE", "4000"))  # of the shared trace


class Base(common.InFolder):
    def server(self, tiers="dram=64M", *, settings=None, **more):
        made = host.Server({"tiers": tiers.replace("ssd=", f"ssd={{}}:file={self.folder}/kv").replace("{}", "64M"), **(settings or {})}, **more)
        self.addCleanup(made.close)  # also where the test fails
        return made

    def closed(self, server):
        """What every run has to leave."""
        self.assertEqual(server.wrong, 0)
        self.assertTrue(all(thread.is_alive() for thread in server.threads()), "one of SGLang's threads has died")
        server.close()

    def refused(self, words, tiers="dram=64M", **more):
        with self.assertRaisesRegex((ValueError, neotier.NeoTierError), words) as caught:
            self.server(tiers, **more)
        self.assertNotIn("\n", str(caught.exception))


class Pages(Base):
    def test_layouts(self):
        """every kind and layout of host pool: what the host's cache has lost comes back, to the byte"""
        kinds = {"mha": {}, "mla": {"kind": "mla"}, "heads of two sizes": {"v_head": 16}, "fp8": {"dtype": torch.float8_e4m3fn}}
        seen = []
        for kind, pool in kinds.items():
            for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
                with self.subTest(kind=kind, layout=layout):
                    try:
                        server = self.server("dram=4M,ssd=", layout=layout, model=f"{kind} {layout}", **pool)
                    except ValueError as error:
                        self.assertIn("layout", str(error))  # SGLang has no such pool
                        continue
                    served = [server.serve(blocks) for blocks in (range(40), range(100, 140), range(40))]
                    self.assertEqual(served, [0, 0, 40])
                    self.assertEqual(server.from_storage, 40)
                    self.closed(server)
                    seen.append((kind, layout))
        self.assertEqual(len(seen), 13)

    def test_copied_pages(self):
        """a pool whose pages do not lie in memory in pieces goes through SGLang's flat pages"""
        kind = type(host.host_pool(host.device_pool(), 8, "page_first"))
        with mock.patch.object(kind, "get_page_buffer_meta", side_effect=NotImplementedError):
            server = self.server()
            self.assertEqual(server.storage._pools["kv"].parts, [])
            served = [server.serve(blocks) for blocks in (range(40), range(100, 140), range(40))]
            self.assertEqual(served, [0, 0, 40])
            self.closed(server)
        own = kind.get_page_buffer_meta
        with mock.patch.object(kind, "get_page_buffer_meta", lambda self, rows: tuple(part[::2] for part in own(self, rows))):
            server = self.server(model="another")  # what is told is half of a page
            self.assertEqual(server.storage._pools["kv"].parts, [])
            self.assertEqual([server.serve(blocks) for blocks in (range(40), range(100, 140), range(40))], [0, 0, 40])
            self.closed(server)
        self.refused("no pages of pool 'kv'.*page_unified.*page_first_direct", layout="page_unified")

    def test_no_copies(self):
        """the store reads and writes the host's pool where it lies"""
        server = self.server()
        server.serve(range(8))
        before = server.view(server.cached[host.hashes([0])[0]])
        pieces = server.storage._pieces(server.storage._pools["kv"], server.cached[host.hashes([0])[0]])
        self.assertEqual([view.data_ptr() for view in before], pieces.addresses)
        self.closed(server)

    def test_restart(self):
        """pages are there after a restart; not for another model, data type, layout or rank"""
        requests = list(common.chat(60))
        self.closed(self.run_all(self.server("ssd="), requests))
        for more, found in (({"model": "another"}, 0), ({"dtype": torch.float16}, 0), ({"layout": "page_first"}, 0), ({}, len(requests[-1]))):
            server = self.server("ssd=", **more)
            self.assertEqual(server.serve(requests[-1]), found, more)
            self.closed(server)

    def run_all(self, server, requests):
        for blocks in requests:
            server.serve(blocks)
        return server

    def test_position(self):
        """pages are told with their place in the prompt, where SGLang passes prefix keys"""
        seen = []
        own = KvSession.store
        with mock.patch.object(KvSession, "store", lambda self, names, data, position=0: (seen.append(position), own(self, names, data, position))[1]):
            for passes, positions in ((True, [0, 8, 16]), (False, [0, 0, 0])):
                server = self.server(pages=32, prefix_keys=passes)
                server.serve(range(20))
                self.assertEqual(seen, positions)
                seen.clear()
                self.closed(server)

    def test_metrics(self):
        """pages and speeds for SGLang's metrics, since the last call; counters and the engine's metrics"""
        server = self.server()
        for blocks in (range(40), range(100, 140), range(40)):
            server.serve(blocks)
        metrics = server.storage.get_stats()
        self.assertEqual((sum(metrics.prefetch_pgs), sum(metrics.backup_pgs)), (40, 80))
        self.assertEqual((len(metrics.prefetch_bandwidth), len(metrics.backup_bandwidth)), (len(metrics.prefetch_pgs), len(metrics.backup_pgs)))
        self.assertGreater(min(metrics.prefetch_bandwidth + metrics.backup_bandwidth), 0)
        self.assertEqual(server.storage.get_stats().prefetch_pgs, [])
        stats = server.storage.stats()
        self.assertEqual((stats["found"], stats["loaded"], stats["failed"], stats["stored"]), (40, 40, 0, 80))
        self.assertIn("kv", stats["pools"])
        self.assertIn("neotier_tier_used_bytes", server.storage.prometheus())
        self.closed(server)

    def test_clear(self):
        """clear: nothing is found any more, also after a restart; what comes after is kept"""
        for tiers in ("dram=64M", "ssd=", "dram=4M,ssd="):
            server = self.server(tiers, model=tiers, settings={"write": "through"})
            for blocks in (range(20), range(100, 120)):
                server.serve(blocks)
            self.assertTrue(server.storage.clear())
            server.forget()
            self.assertEqual(server.serve(range(20)), 0)
            server.forget()
            self.assertEqual(server.serve(range(20)), 20)
            self.closed(server)
            if "ssd" in tiers:
                server = self.server(tiers, model=tiers)
                self.assertEqual([server.serve(range(20)), server.serve(range(100, 120))], [20, 0], tiers)
                self.closed(server)
                os.remove(os.path.join(self.folder, "kv"))

    def test_clear_waits(self):
        """clear waits for what is under way, and what comes meanwhile is a miss"""
        server = self.server()
        server.serve(range(20))
        server.forget()
        own = KvSession.plan
        inside, go = threading.Event(), threading.Event()

        def slow(self, *given):
            inside.set()
            go.wait(10)
            return own(self, *given)

        names = host.hashes(range(20))
        with mock.patch.object(KvSession, "plan", slow):
            under_way = threading.Thread(target=server.storage.batch_exists, args=(names,))
            under_way.start()
            inside.wait(10)
            clearing = threading.Thread(target=server.storage.clear)
            clearing.start()
            self.assertTrue(host.until(lambda: server.storage._clearing))
            self.assertEqual(server.storage.batch_exists(names), 0)
            self.assertTrue(clearing.is_alive())
            go.set()
            under_way.join()
            clearing.join()
        self.assertEqual(server.storage.batch_exists(names), 0)
        self.closed(server)

    def test_decide(self):
        """decide: a page that is sooner computed than loaded is not told of; without it it is"""
        for decide, rate, found in ((False, 10**9, 20), (True, 10**9, 0), (True, 10, 20)):
            server = self.server(settings={"decide": decide, "prefill_tokens_per_s": rate})
            server.serve(range(20))
            server.forget()
            self.assertEqual(server.serve(range(20)), found, (decide, rate))
            self.closed(server)

    def test_attach_again(self):
        """SGLang detaches and attaches it while it runs; no thread and no lock on the file is left"""
        before = {thread.ident for thread in threading.enumerate()}
        for _ in range(3):
            server = self.server("ssd=")
            found = server.serve(range(20))
            self.closed(server)
        self.assertEqual(found, 20)
        self.assertTrue(host.until(lambda: {thread.ident for thread in threading.enumerate()} <= before))

    def test_wrong_configuration(self):
        """a configuration that is none is one line, and leaves nothing"""
        for tiers, settings, words in (("", {}, "tiers is missing"), ("tape=1G", {}, "no kind of tier 'tape'"),
                                       ("ssd=", {"write": "often"}, "write is back, selective, through, not 'often'"),
                                       ("ssd=", {"interface_v1": 0}, 'write "interface_v1": 1'),
                                       ("ssd=", {"timeout_s": "long"}, "timeout_s is 'long'; it wants float"),
                                       ("ssd=", {"decide": 1}, "decide is 1; it wants true or false"),
                                       ("ssd=", {"store_after": 0}, "store_after is 0; at least 1")):
            self.refused(words, tiers, settings=settings)
        self.refused("write {rank} in its name", "ssd=", split={"tp_size": 2, "attn_tp_size": 2})
        self.refused("with MLA and tensor parallelism", kind="mla", split={"tp_size": 2, "attn_tp_size": 2})
        self.assertEqual(os.listdir(self.folder), [])

    def test_ranks(self):
        """each rank has a file of its own"""
        for rank in (0, 1):
            server = host.Server({"tiers": f"ssd=64M:file={self.folder}/kv-{{rank}}"}, split={"tp_size": 2, "tp_rank": rank})
            self.addCleanup(server.close)
            self.assertEqual(server.serve(range(4)), 0)
            self.closed(server)
        self.assertEqual(sorted(os.listdir(self.folder)), ["kv-0-0-0-0", "kv-0-0-0-1"])


class Pools(Base):
    """v2 calls: a second pool beside the first."""

    def both(self, hit_policy, last=1):
        server = self.server(layout="page_first")
        side = host.host_pool(host.device_pool(), 64, "page_first")  # alike, so that only its name keeps it apart
        server.storage.register_mem_host_pool_v2(side, PoolName.MAMBA)
        names = host.hashes(range(12))
        rows = server.host.alloc(12 * host.TOKENS)
        self.assertTrue(all(server.storage.batch_set_v1(names, rows)))
        return server, side, names, PoolTransfer(PoolName.MAMBA, keys=names[:last], hit_policy=hit_policy)

    def keep(self, server, side, names, which):
        for at in which:
            rows = side.alloc(host.TOKENS)
            side.kv_buffer[:, rows[0]:rows[0] + host.TOKENS] = at
            done = server.storage.batch_set_v2([PoolTransfer(PoolName.MAMBA, host_indices=rows, keys=[names[at]])])
            self.assertEqual(done, {PoolName.MAMBA: [True]})

    def test_all_pages(self):
        """ALL_PAGES: as far as each page is in both pools"""
        server, side, names, transfer = self.both(PoolHitPolicy.ALL_PAGES)
        self.keep(server, side, names, (0, 1, 2, 5))
        result = server.storage.batch_exists_v2(names, [transfer])
        self.assertEqual((result.kv_hit_pages, result.extra_pool_hit_pages), (3, {PoolName.KV: 12, PoolName.MAMBA: 3}))
        self.assertEqual(result.restorable_prefix_pages, [1, 2, 3])
        self.closed(server)

    def test_trailing_pages(self):
        """TRAILING_PAGES: prefixes that end where the last pages are there"""
        server, side, names, transfer = self.both(PoolHitPolicy.TRAILING_PAGES, 2)
        self.keep(server, side, names, (2, 3, 4, 8, 9))
        result = server.storage.batch_exists_v2(names, [transfer])
        self.assertEqual((result.kv_hit_pages, result.restorable_prefix_pages), (10, [4, 5, 10]))
        self.closed(server)

    def test_block_groups(self):
        """BLOCK_GROUPS: not kept, and gates nothing"""
        server, side, names, transfer = self.both(PoolHitPolicy.BLOCK_GROUPS)
        result = server.storage.batch_exists_v2(names, [transfer])
        self.assertEqual((result.kv_hit_pages, result.extra_pool_hit_pages), (12, {PoolName.KV: 12}))
        self.closed(server)

    def test_bytes(self):
        """pages of both pools come back; the same hash in two pools is two pages"""
        server, side, names, _ = self.both(PoolHitPolicy.ALL_PAGES)
        self.keep(server, side, names, (3, 4))
        side.kv_buffer.zero_()
        rows = side.alloc(3 * host.TOKENS)
        done = server.storage.batch_get_v2([PoolTransfer(PoolName.MAMBA, host_indices=rows, keys=names[3:6])])
        self.assertEqual(done, {PoolName.MAMBA: [True, True, False]})
        got = [side.kv_buffer[:, row].unique().tolist() for row in rows[::host.TOKENS].tolist()]
        self.assertEqual(got, [[3.0], [4.0], [0.0]])
        self.closed(server)

    def test_wrong_calls(self):
        """an unknown pool, rows that are not so many pages, no keys: no page, no exception"""
        server, side, names, _ = self.both(PoolHitPolicy.ALL_PAGES)
        rows = side.alloc(host.TOKENS)
        for transfer in (PoolTransfer(PoolName.SWA, host_indices=rows, keys=names[:1]), PoolTransfer(PoolName.MAMBA, host_indices=rows, keys=names[:2]),
                         PoolTransfer(PoolName.MAMBA, keys=names[:1])):
            for call in (server.storage.batch_set_v2, server.storage.batch_get_v2):
                self.assertEqual(call([transfer]), {transfer.name: [False] * len(transfer.keys)})
        self.assertEqual(server.storage.batch_get_v2([PoolTransfer(PoolName.MAMBA)]), {PoolName.MAMBA: []})
        self.assertEqual((server.storage.batch_exists([]), server.storage.batch_get_v1([], rows[:0]), server.storage.batch_set_v1([], rows[:0])), (0, [], []))
        self.assertEqual(server.storage.batch_exists(["", "\N{SNOWMAN}" * 500], HiCacheStorageExtraInfo()), 0)
        self.closed(server)


class Faults(Base):
    def test_gone_and_back(self):
        """a tier that is gone gives misses, and hits again when it is back"""
        server = self.server("ssd=")
        server.serve(range(20))
        for here, found in ((True, 20), (False, 0), (True, 20)):
            common.service(server.storage._engine, here)
            server.forget()
            self.assertEqual(server.serve(range(20)), found)
        self.closed(server)

    def test_a_corrupt_medium(self):
        """pages that were changed on the disk are misses, counted, and computed anew"""
        server = self.server("ssd=", pages=300)
        server.serve(range(250))
        server.storage._engine.flush()
        path = os.path.join(self.folder, "kv")
        with open(path, "r+b") as file:
            for at in range(1 << 20, os.path.getsize(path), 16384):
                file.seek(at)
                file.write(b"not what was written")
        os.sync()
        server.forget()
        self.assertLess(server.serve(range(250)), 250)
        self.assertGreater(server.storage.counters["failed"], 0)
        self.closed(server)

    def test_full(self):
        """a tier that is much too small takes new pages for ever"""
        server = self.server("dram=1M")
        for blocks in common.chat(150):
            server.serve(blocks)
        stored = server.storage.counters["stored"]
        for blocks in common.chat(100, seed=2):
            server.serve(blocks)
        self.assertGreater(server.storage.counters["stored"], stored + 50)
        self.closed(server)

    def test_slow(self):
        """a load that takes longer than timeout_s is a miss"""
        server = self.server(settings={"timeout_s": 0.05})
        server.serve(range(20))
        server.forget()
        with mock.patch.object(neotier.Load, "wait", side_effect=neotier.TimeoutError("late")), \
                mock.patch.object(neotier.Load, "good", new_callable=mock.PropertyMock, return_value=0):
            self.assertEqual(server.serve(range(20)), 0)
        self.assertEqual(server.storage.counters["failed"], 20)
        self.closed(server)

    def test_their_injector(self):
        """under SGLang's own injection of delays and failures: no wrong byte, its threads live on"""
        with mock.patch.dict(os.environ, {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.002", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.2"}):
            server = self.server("ssd=")
        self.assertNotEqual(type(server.storage).__name__, "NeoTierStorage")
        for blocks in common.chat(200):
            server.serve(blocks)
        self.assertGreater(server.from_storage, 0)
        self.closed(server)

    def test_faults(self):
        """long: requests while loads and stores fail, tiers go and come back: none waits for ever, no wrong byte, nothing grows"""
        rng = random.Random(7)

        server = self.server("dram=2M,ssd=")
        sizes = []
        with mock.patch.object(KvSession, "store", common.failing(KvSession.store, rng, 0.05)), mock.patch.object(KvSession, "load", common.failing(KvSession.load, rng, 0.05)), \
                mock.patch.object(KvSession, "plan", common.failing(KvSession.plan, rng, 0.02)):
            for part in range(10):
                for blocks in common.chat(REQUESTS // 10, conversations=100, seed=10 + part):
                    dice = rng.random()
                    if dice < 0.002:
                        common.service(server.storage._engine, False)
                    elif dice < 0.03:
                        common.service(server.storage._engine, True)
                    server.serve(blocks)
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        counters = server.storage.counters
        print(f"# {len(server.served)} requests: {server.found} of {server.asked} pages found, {server.from_storage} of them in the storage, {counters}, "
              f"{sizes[2] >> 10} MiB after 3 tenths, {sizes[-1] >> 10} at the end", flush=True)
        if REQUESTS >= 5000:  # fewer may be spared
            self.assertGreater(min(counters["loaded"], counters["stored"]), 0)
        self.assertLess(sizes[-1] - sizes[2], 64 << 10)
        common.service(server.storage._engine, True)
        self.closed(server)


class Trace(Base):
    def test_trace(self):
        """conversation trace: hazard finds more than lru and than SGLang's file backend with equal room"""
        trace = common.conversation()
        if trace is None:
            self.skipTest("the shared conversation trace is not there")
        small = {"layers": 1, "heads": 2, "head": 32}  # 4 KiB a page: less would take as much of a tier
        room, found = 3000, {}
        for name in ("hazard", "lru", "file"):
            if name == "file":
                given = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": self.folder, "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": str(room * 4096)}
                with mock.patch.dict(os.environ, given):
                    server = host.Server({}, pages=256, backend="file", **small)
            else:
                server = host.Server({"tiers": f"dram={4 * room}K:policy={name}:object=4K", "seed": 1}, pages=256, **small)
            self.addCleanup(server.close)
            for _, blocks in trace[:TRACE]:
                server.serve(blocks)
            found[name] = server.found / server.asked
            self.closed(server)
        print(f"# {TRACE} requests, {room} pages of storage, 256 of host cache: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()), flush=True)
        self.assertGreater(found["hazard"], max(found["lru"], found["file"]))


if __name__ == "__main__":
    host.quiet()
    tap.main()
