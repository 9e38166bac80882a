#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""neotier.lmcache in LMCache's own StorageManager: objects come back, the policy, locks, accounts, faults, restarts. TAP.
tests/engines/run calls it with the LMCache that scripts/engines has installed."""
import os
import random
import resource
import select
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
import lmcache_host as host  # noqa: E402
import neotier  # noqa: E402
import tap  # noqa: E402
import torch  # noqa: E402

from neotier.kv import KvSession  # noqa: E402
from neotier.lmcache import NeoTierAdapter  # noqa: E402

REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "10000"))  # of the long test
TRACE = int(os.environ.get("ENGINE_TRACE", "4000"))  # of the shared trace


class Listener:
    """What LMCache's own listeners would know."""

    def __init__(self):
        self.here = {}

    def on_l2_keys_stored(self, keys, sizes):
        self.here.update(zip(keys, sizes))

    def on_l2_keys_accessed(self, keys):
        pass

    def on_l2_keys_deleted(self, keys):
        for key in keys:
            del self.here[key]


class Base(common.InFolder):
    def params(self, tiers, **settings):
        # Small objects are sooner made anew than read from a busy disk.
        return {"tiers": tiers.replace("ssd=", f"ssd=64M:file={self.folder}/kv"), "recompute_us_per_kib": 1000, **settings}

    def server(self, tiers="dram=64M", *, settings=None, **more):
        made = host.Server(host.neotier(self.params(tiers, **(settings or {}))), **more)
        self.addCleanup(made.close)  # also where the test fails
        return made

    def adapter(self, tiers="dram=64M", **settings):
        made = NeoTierAdapter(self.params(tiers, **settings))
        self.addCleanup(made.close)
        return made

    def closed(self, server):
        """What every run has to leave."""
        server.settle()
        status = server.manager.report_status()
        self.assertEqual((server.wrong, server.adapter.report_status()["locked"]), (0, 0))
        self.assertTrue(all(status[name]["thread_alive"] for name in ("store_controller", "prefetch_controller")))
        server.close()

    def wait(self, descriptor, query, *given):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        self.assertTrue(poll.poll(10000), "no event")
        os.eventfd_read(descriptor)
        return query(*given)


class Objects(Base):
    def test_found_again(self):
        """what L1 has lost comes back, to the byte, also after a restart; not for another model"""
        requests = list(common.chat(60))
        server = self.server("ssd=")
        for blocks in requests:
            server.serve(blocks)
        server.forget()
        self.assertEqual(server.serve(requests[-1]), len(requests[-1]))
        self.assertGreaterEqual(server.from_l2, len(requests[-1]))
        self.closed(server)
        for more, found in (({"model": "b/model"}, 0), ({"object_bytes": 32768}, 0), ({}, len(requests[-1]))):
            server = self.server("ssd=", **more)
            self.assertEqual(server.serve(requests[-1]), found, more)
            self.closed(server)

    def test_groups(self):
        """object groups of several sizes, as hybrid models have them"""
        server = self.server("dram=4M,ssd=", groups=3, l1_bytes=16 << 20)
        served = []
        for blocks in (range(30), range(100, 130), range(30)):
            served.append(server.serve(blocks))
            server.forget()
        self.assertEqual(served, [0, 0, 30])
        self.assertEqual(len(server.adapter._stores), 3)
        self.closed(server)

    def test_keys(self):
        """model, rank, group and salt are parts of the name"""
        adapter = self.adapter()
        buffer = torch.ones(4096, dtype=torch.uint8)
        held = mock.Mock(data_ptr=buffer.data_ptr(), get_size=lambda: 4096)
        keys = [host.key(1), host.key(1, model="b/model"), host.key(1, rank=1), host.key(1, group=1), host.key(1, salt="s"), host.key(2)]
        for nr, one in enumerate(keys):
            task = adapter.submit_lookup_and_lock_task(keys, {group: host.layout(4096) for group in (0, 1)})
            found = self.wait(adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, task)
            self.assertEqual(found.get_indices_list(), list(range(nr)))
            adapter.submit_unlock(keys[:nr])
            adapter.submit_store_task([one], [held])
            result = self.wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
            self.assertEqual([(one.is_successful(), one.bytes_transferred()) for one in result.values()], [(True, 4096)])

    def test_tasks(self):
        """three descriptors; a result is given once; without a layout a key is found; what is not there is no load"""
        adapter = self.adapter()
        buffers = [torch.full((4096,), at, dtype=torch.uint8) for at in range(4)]
        objects = [mock.Mock(data_ptr=buffer.data_ptr(), get_size=lambda: 4096) for buffer in buffers]
        keys = [host.key(at) for at in range(4)]
        descriptors = {adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()}
        self.assertEqual(len(descriptors), 3)
        task = adapter.submit_store_task([keys[0], keys[2]], [objects[0], objects[2]])
        result = self.wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
        self.assertEqual((list(result), result[task].bytes_transferred()), ([task], 8192))
        self.assertEqual(adapter.pop_completed_store_tasks(), {})
        task = adapter.submit_lookup_and_lock_task(keys)
        found = self.wait(adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, task)
        self.assertEqual(found.get_indices_list(), [0, 2])
        self.assertIsNone(adapter.query_lookup_and_lock_result(task))
        for buffer in buffers:
            buffer.fill_(77)
        task = adapter.submit_load_task(keys, objects)
        loaded = self.wait(adapter.get_load_event_fd(), adapter.query_load_result, task)
        self.assertEqual(loaded.get_indices_list(), [0, 2])
        self.assertEqual([buffer.unique().tolist() for buffer in buffers], [[0], [77], [2], [77]])
        self.assertIsNone(adapter.query_load_result(task))
        adapter.submit_unlock([*keys, *keys])

    def store(self, adapter, numbers, size=65536, **names):
        buffer = torch.zeros(size, dtype=torch.uint8)
        adapter.submit_store_task([host.key(at, **names) for at in numbers], [mock.Mock(data_ptr=buffer.data_ptr(), get_size=lambda: size)] * len(numbers))
        return self.wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)

    def lock(self, adapter, numbers, size=65536):
        task = adapter.submit_lookup_and_lock_task([host.key(at) for at in numbers], {0: host.layout(size)})
        found = self.wait(adapter.get_lookup_and_lock_event_fd(), adapter.query_lookup_and_lock_result, task)
        return [numbers[at] for at in found.get_indices_list()]

    def test_locks(self):
        """what is locked is not evicted, as often as it is locked; a lock ends with its lease"""
        adapter = self.adapter("dram=1M:policy=lru")
        self.store(adapter, [1, 2])
        self.assertEqual(self.lock(adapter, [1, 2]), [1, 2])
        self.assertEqual(self.lock(adapter, [1]), [1])
        adapter.submit_unlock([host.key(1), host.key(2)])
        for at in range(100, 140):
            self.store(adapter, [at])
        self.assertEqual(self.lock(adapter, [1, 2]), [1], "1 was locked twice")
        adapter.submit_unlock([host.key(1)] * 2)
        for at in range(200, 240):
            self.store(adapter, [at])
        self.assertEqual(self.lock(adapter, [1]), [])
        adapter = self.adapter("dram=1M:policy=lru", lock_s=0.05)
        self.store(adapter, [1])
        self.assertEqual(self.lock(adapter, [1]), [1])
        time.sleep(0.2)
        for at in range(100, 140):
            self.store(adapter, [at])
        self.assertEqual(self.lock(adapter, [1]), [])
        adapter.submit_unlock([host.key(1)])

    def test_a_look_up_that_fails(self):
        """a look-up that fails half-way finds nothing and leaves no lock"""
        adapter = self.adapter()
        self.store(adapter, [1, 2, 3])
        own, calls = neotier.Session.pin, []

        def third(self, *given):
            calls.append(given)
            if len(calls) == 3:
                raise MemoryError("an injected fault")
            return own(self, *given)

        with mock.patch.object(neotier.Session, "pin", third):
            self.assertEqual(self.lock(adapter, [1, 2, 3]), [])
        self.assertEqual((len(calls), adapter.report_status()["locked"], adapter.counters["found"]), (3, 0, 0))
        self.assertEqual(self.lock(adapter, [1, 2, 3]), [1, 2, 3])

    def test_delete(self):
        """what is deleted is gone; what is locked stays"""
        adapter = self.adapter()
        listener = Listener()
        adapter.register_listener(listener)
        self.store(adapter, [1, 2, 3])
        self.assertEqual(self.lock(adapter, [2]), [2])
        adapter.delete([host.key(at) for at in (1, 2, 9)])
        self.assertEqual(set(listener.here), {host.key(2), host.key(3)})
        self.assertEqual(self.lock(adapter, [1, 2, 3]), [2, 3])

    def test_list(self):
        """what is there, page by page, each once; of one model; what is gone is not"""
        adapter = self.adapter()
        self.store(adapter, list(range(25)), 4096)
        self.store(adapter, [100, 101], 4096, model="b/model")
        adapter.delete([host.key(at) for at in (3, 4)])
        here = {host.key(at).chunk_hash.hex() for at in range(25) if at not in (3, 4)}
        for size in (1, 7, 24, 25, 26, 500):
            found, cursor = [], None
            while True:
                page = adapter.list_l2_keys(page_size=size, cursor=cursor)
                self.assertLessEqual(len(page.entries), size)
                found += page.entries
                cursor = page.next_page_token
                if cursor is None:
                    break
            self.assertEqual(len(found), 25, size)
            self.assertEqual({one.key.chunk_hash_hex for one in found if one.key.model_name != "b/model"}, here)
            self.assertEqual({one.size_bytes for one in found}, {4096})
        self.assertEqual({one.key.chunk_hash_hex for one in adapter.list_l2_keys("b/model").entries},
                         {host.key(at, model="b/model").chunk_hash.hex() for at in (100, 101)})
        self.assertEqual(adapter.list_l2_keys("c/model").entries, ())
        for wrong in ({"page_size": 0}, {"cursor": "xyz"}, {"cursor": "00"}, {"cursor": 5}):
            with self.assertRaises(ValueError, msg=wrong):
                adapter.list_l2_keys(**wrong)
        adapter.close()
        self.assertEqual(adapter.list_l2_keys().entries, ())

    def test_accounts(self):
        """what LMCache's listeners are told is what is there, also of what the policy evicts; usage is there after a restart"""
        server = self.server("ssd=", settings={"max_objects": 20000})
        listener = Listener()
        server.adapter.register_listener(listener)
        for blocks in common.chat(700, conversations=200):
            server.serve(blocks)
        server.settle()
        adapter = server.adapter
        adapter._tell()
        store, _ = adapter._store_of(server.object_bytes)
        self.assertTrue(listener.here)
        order = list(listener.here)
        self.assertEqual([key for key, name in zip(order, adapter._names(store, order)) if name not in adapter._engine], [])
        usage = adapter.get_usage()
        self.assertEqual(usage.bytes_by_cache_salt[""], len(listener.here) * server.object_bytes)
        self.assertLess(len(listener.here), adapter.counters["stored"], "some were evicted")
        self.assertGreater(usage.usage_fraction, 0.5)
        self.closed(server)
        again = self.adapter("ssd=", max_objects=20000)
        self.assertGreater(again.get_usage().total_bytes_used, 0.9 * usage.total_bytes_used)

    def test_wrong_configuration(self):
        """a configuration that is none is one line, and leaves nothing"""
        for tiers, settings, words in (("", {}, "tiers is missing"), ("tape=1G", {}, "no kind of tier 'tape'"),
                                       ("ssd=", {"write": "often"}, "write is back, selective, through, not 'often'"),
                                       ("ssd=", {"treads": 2}, "no setting 'treads'; there are tiers"),
                                       ("ssd=", {"timeout_s": "long"}, "timeout_s is 'long'; it wants float"),
                                       ("ssd=", {"threads": 0}, "threads is 0; at least 1")):
            with self.assertRaisesRegex((ValueError, neotier.NeoTierError), words) as caught:
                self.server(tiers, settings=settings)
            self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(os.listdir(self.folder), [])

    def test_one_limit(self):
        """timeout_s is of a whole task: objects that hang do not wait one after the other"""
        adapter = self.adapter(timeout_s=0.2)
        self.store(adapter, list(range(20)), 4096)
        buffer = torch.zeros(4096, dtype=torch.uint8)

        waits = []

        def hang(self, timeout=None, layer=None):
            waits.append(timeout)
            time.sleep(timeout)
            raise neotier.TimeoutError("late")

        begun = time.monotonic()
        with mock.patch.object(neotier.Load, "wait", hang), mock.patch.object(neotier.Load, "good", new_callable=mock.PropertyMock, return_value=0):
            task = adapter.submit_load_task([host.key(at) for at in range(20)], [mock.Mock(data_ptr=buffer.data_ptr(), get_size=lambda: 4096)] * 20)
            loaded = self.wait(adapter.get_load_event_fd(), adapter.query_load_result, task)
        self.assertEqual(loaded.popcount(), 0)
        self.assertLess(time.monotonic() - begun, 2, "twenty times .2 s is 4")
        self.assertLess(len(waits), 4, "once the time is over nothing more is begun")

    def test_told_before_a_failure(self):
        """what was stored before a store failed is told to listeners, and counts"""
        adapter = self.adapter()
        listener = Listener()
        adapter.register_listener(listener)
        own = KvSession.store

        def half(self, names, data, position=0):
            own(self, names[:2], type(data)(data.addresses[:2], data.stride, data.owner), position)
            raise neotier.IoError("the disk")

        with mock.patch.object(KvSession, "store", half):
            result = next(iter(self.store(adapter, [1, 2, 3], 4096).values()))
        self.assertFalse(result.is_successful())
        self.assertEqual(set(listener.here), {host.key(1), host.key(2)})

    def test_sizes(self):
        """objects of ever new sizes, as LMCache's serde makes them, fail after some, and nothing else does"""
        adapter = self.adapter()
        good = [next(iter(self.store(adapter, [at], 4096 + 16 * at).values())).is_successful() for at in range(70)]
        self.assertEqual(good, [True] * 64 + [False] * 6)
        self.assertTrue(next(iter(self.store(adapter, [1000], 4096).values())).is_successful())

    def test_close_under_way(self):
        """closed while tasks are under way: each has ended, no thread is left"""
        before = {thread.ident for thread in threading.enumerate()}
        server = self.server("ssd=")
        for blocks in common.chat(20):
            server.serve(blocks)
        server.close()
        end = time.monotonic() + 10
        while not {thread.ident for thread in threading.enumerate()} <= before and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual([thread.name for thread in threading.enumerate() if thread.name.startswith("neotier")], [])
        server = self.server("ssd=")
        adapter = server.adapter
        adapter.close()
        adapter.submit_unlock([host.key(1)])
        task = adapter.submit_lookup_and_lock_task([host.key(1)])
        self.assertEqual(adapter.query_lookup_and_lock_result(task).popcount(), 0)
        adapter.close()


class Faults(Base):
    def test_gone_and_back(self):
        """a tier that is gone gives misses, and hits again when it is back"""
        server = self.server("ssd=")
        server.serve(range(20))
        for here, found in ((True, 20), (False, 0), (True, 20)):
            server.forget()
            common.service(server.adapter._engine, here)
            self.assertEqual(server.serve(range(20)), found)
        self.assertTrue(server.adapter.report_status()["is_healthy"])
        server.settle()
        common.service(server.adapter._engine, False)
        self.assertFalse(server.adapter.report_status()["is_healthy"])
        common.service(server.adapter._engine, True)
        self.closed(server)

    def test_a_corrupt_medium(self):
        """objects that were changed on the disk are misses, counted; those after them load"""
        server = self.server("ssd=", l1_bytes=16 << 20)
        server.serve(range(250))
        server.settle()
        server.adapter._engine.flush()
        path = os.path.join(self.folder, "kv")
        with open(path, "r+b") as file:
            for at in range(1 << 20, os.path.getsize(path), 1 << 17):
                file.seek(at)
                file.write(b"not what was written")
        os.sync()
        server.forget()
        self.assertLess(server.serve(range(250)), 250)
        counters = server.adapter.counters
        self.assertGreater(counters["failed"], 1)
        self.assertGreater(counters["loaded"], 150)
        self.closed(server)

    def test_full(self):
        """a tier that is much too small takes new objects for ever"""
        server = self.server("dram=1M")
        for blocks in common.chat(150):
            server.serve(blocks)
        stored = server.settle().adapter.counters["stored"]
        for blocks in common.chat(100, seed=2):
            server.serve(blocks)
        self.assertGreater(server.settle().adapter.counters["stored"], stored + 50)
        self.closed(server)

    def test_faults(self):
        """long: requests while loads and stores fail, tiers go and come back: none waits for ever, no wrong byte, nothing grows"""
        rng = random.Random(7)

        server = self.server("dram=2M,ssd=")
        sizes = []
        with mock.patch.object(KvSession, "store", common.failing(KvSession.store, rng, 0.05)), mock.patch.object(KvSession, "load", common.failing(KvSession.load, rng, 0.05)), \
                mock.patch.object(neotier.Session, "pin", common.failing(neotier.Session.pin, rng, 0.002)):
            for part in range(10):
                for blocks in common.chat(REQUESTS // 10, conversations=100, seed=10 + part):
                    dice = rng.random()
                    if dice < 0.002:
                        common.service(server.adapter._engine, False)
                    elif dice < 0.03:
                        common.service(server.adapter._engine, True)
                    server.serve(blocks)
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            server.settle()
        counters = server.adapter.counters
        print(f"# {len(server.served)} requests: {server.found} of {server.asked} objects found, {server.from_l2} of them in L2, {counters}, "
              f"{sizes[2] >> 10} MiB after 3 tenths, {sizes[-1] >> 10} at the end", flush=True)
        if REQUESTS >= 5000:  # fewer may be spared
            self.assertGreater(min(counters["loaded"], counters["stored"]), 0)
        self.assertLess(sizes[-1] - sizes[2], 64 << 10)
        common.service(server.adapter._engine, True)
        self.closed(server)


class Trace(Base):
    def test_trace(self):
        """conversation trace: hazard finds more than lru with equal room"""
        trace = common.conversation()
        if trace is None:
            self.skipTest("the shared conversation trace is not there")
        found = {}
        for name in ("hazard", "lru"):
            # 4 KiB an object: less would take as much of a tier, and of L1.
            server = self.server(f"dram=12000K:policy={name}:object=4K", settings={"seed": 1}, object_bytes=4096, l1_bytes=4096 * 256)
            for _, blocks in trace[:TRACE]:
                server.serve(blocks)
            found[name] = server.found / server.asked
            self.closed(server)
        print(f"# {TRACE} requests, 3000 objects of storage, 256 of L1: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()), flush=True)
        self.assertGreater(found["hazard"], found["lru"])


if __name__ == "__main__":
    host.quiet()
    tap.main()
