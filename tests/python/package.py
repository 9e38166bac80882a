#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package: buffers without copies, errors, asyncio, KV blocks. TAP. With $NEOTIER_LIBRARY and PYTHONPATH=python in a clone,
without them as it was installed."""
import array
import asyncio
import gc
import io
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import neotier  # noqa: E402
import tap  # noqa: E402

from neotier.connector import SparingLog, check_storage, setting  # noqa: E402

MIB = 1 << 20


def key(number):
    return number.to_bytes(16, "big")


class Objects(unittest.TestCase):
    def setUp(self):
        self.engine = neotier.Engine("dram=64M", max_objects=10000, events=65536)
        self.addCleanup(self.engine.close)

    def test_buffers(self):
        """bytes, bytearray, memoryview and arrays go in and out where they lie"""
        data = bytes(range(256)) * 256
        for number, given in enumerate((data, bytearray(data), memoryview(data), array.array("I", data))):
            self.engine.put(key(number), given)
            into = bytearray(len(data))
            self.engine.get(key(number), into)
            self.assertEqual(into, data)
        middle = array.array("Q", bytes(80))
        self.engine.get(key(0), memoryview(middle)[2:4], offset=256)
        self.assertEqual(middle.tobytes(), bytes(16) + data[256:272] + bytes(48))
        self.assertEqual(self.engine.read(key(1)), data)

    def test_no_copy(self):
        """a get writes to the caller's memory, and not to what cannot be written"""
        self.engine.put(key(1), b"x" * 64)
        with self.assertRaises((BufferError, TypeError, ValueError)):
            self.engine.get(key(1), bytes(64))
        shared = memoryview(bytearray(64))
        self.engine.get(key(1), shared)
        self.assertEqual(shared.obj, b"x" * 64)

    def test_errors(self):
        """each of neotier.h's errors is an exception, and Python's own where it has one"""
        with self.assertRaises(neotier.NotFoundError) as raised:
            self.engine.get(key(1), bytearray(8))
        self.assertIsInstance(raised.exception, KeyError)
        self.assertEqual((str(raised.exception), raised.exception.code), ("no such object", -2))
        self.engine.put(key(1), b"12345678")
        with self.assertRaises(neotier.ExistsError):
            self.engine.put(key(1), b"12345678")
        with self.assertRaises(neotier.InvalidError) as raised:
            self.engine.get(key(1), bytearray(9))
        self.assertIsInstance(raised.exception, ValueError)
        with self.assertRaises(neotier.InvalidError):
            self.engine.put(key(2), b"")
        with self.assertRaises(neotier.FullError):
            for number in range(2, 80):
                self.engine.put(key(number), bytes(MIB))
        with self.assertRaisesRegex(neotier.InvalidError, "no kind of tier 'tape'"):
            neotier.Engine("tape=1G")
        with self.assertRaisesRegex(ValueError, "no setting 'colour'; there are background_share"):
            neotier.Engine("dram=1M", colour=1)
        for wrong in (b"", b"x" * 15, b"x" * 32):
            with self.assertRaisesRegex(ValueError, "a key has 16"):
                self.engine.lookup(wrong)

    def test_lookup(self):
        """what lookup tells; `in`; the first keys that are there"""
        self.engine.put(key(1), b"x" * 100, kind="kv", recompute_ns=5000)
        info = self.engine.lookup(key(1))
        self.assertEqual((info.kind, info.bytes, info.recompute_ns, info.tier), ("kv", 100, 5000, "dram"))
        self.assertIsNone(self.engine.lookup(key(2)))
        self.assertIn(key(1), self.engine)
        self.assertNotIn(key(2), self.engine)
        self.assertEqual(self.engine.lookup_prefix([key(1), key(2)]), 1)
        self.assertEqual(self.engine.lookup_prefix(key(1) * 3), 3)
        self.engine.remove(key(1))
        self.assertNotIn(key(1), self.engine)

    def test_pin(self):
        """a pin shows the bytes where they lie, read only, and holds them"""
        self.engine.put(key(1), b"x" * 100)
        with self.engine.session() as session:
            with session.pin(key(1)) as pin:
                self.assertEqual(pin.data, b"x" * 100)
                self.assertTrue(pin.data.readonly)
                with self.assertRaises(neotier.BusyError):
                    self.engine.remove(key(1))
            session.pin(key(1))
        self.engine.remove(key(1))

    def test_waiting_lets_others_run(self):
        """a thread that waits does not hold the interpreter"""
        self.engine.put(key(1), os.urandom(MIB))
        tickets = [self.engine.get_async(key(1), bytearray(MIB)) for _ in range(32)]
        waiters = [threading.Thread(target=ticket.wait) for ticket in tickets]
        for thread in waiters:
            thread.start()
        for thread in waiters:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual([ticket.progress() for ticket in tickets], [(0, 1, 0)] * 32)

    def test_forgotten_tickets(self):
        """a ticket that nobody holds writes to no memory that is gone"""
        self.engine.put(key(1), os.urandom(MIB))
        for _ in range(200):
            self.engine.get_async(key(1), bytearray(MIB))
        gc.collect()
        # A buffer with views of it cannot be resized: of one that was let go, nobody has any.
        own = bytearray(MIB)
        ticket = self.engine.get_async(key(1), own)
        with self.assertRaises(BufferError):
            own.append(0)
        del ticket
        gc.collect()
        own.append(0)

    def test_queue(self):
        """a queue is readable as long as there is something to take, and takes each tag once"""
        self.engine.put(key(1), os.urandom(4096))
        queue = neotier.CompletionQueue()
        readable = lambda seconds: bool(select.select([queue], [], [], seconds)[0])  # noqa: E731
        self.assertFalse(readable(0))
        tickets = [self.engine.get_async(key(1), bytearray(4096)) for _ in range(50)]
        for number, ticket in enumerate(tickets):
            queue.add(ticket, number)
        seen = []
        while len(seen) < 50:
            self.assertTrue(readable(10))
            seen += queue.take(7)
        self.assertEqual(sorted(seen), list(range(50)))
        self.assertFalse(readable(0))
        queue.add(tickets[0])
        self.assertEqual(queue.take(), [tickets[0]])

    def test_asyncio(self):
        """tickets are awaited in any number, in two loops, and cancelled tasks do no harm"""
        self.engine.put(key(1), os.urandom(MIB))
        data = self.engine.read(key(1))

        async def load():
            into = bytearray(MIB)
            await self.engine.get_async(key(1), into)
            return into == data

        async def many():
            tasks = [asyncio.ensure_future(load()) for _ in range(64)]
            await asyncio.sleep(0)
            for task in tasks[::4]:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        async def fails():
            await self.engine.get_async(key(2), bytearray(4))

        for _ in range(2):
            came = asyncio.run(many())
            self.assertEqual([one for number, one in enumerate(came) if number % 4], [True] * 48)
            for one in came[::4]:
                self.assertTrue(one is True or isinstance(one, asyncio.CancelledError), one)
        with self.assertRaises(neotier.NotFoundError):
            asyncio.run(fails())

    def test_moves(self):
        """objects move between tiers, what a tier's withdrawal leaves is known"""
        with neotier.Engine("dram=16M,cxl=16M") as engine:
            engine.put(key(1), bytes(4096))
            engine.move([key(1)], "cxl").wait(10)
            self.assertEqual(engine.lookup(key(1)).tier, "cxl")
            with self.assertRaises(neotier.UnsupportedError):
                engine.write_back([key(1)]).wait(10)
            engine.tier_service("cxl", False)
            with self.assertRaises(neotier.GoneError):
                engine.get(key(1), bytearray(4096))
            engine.tier_service("cxl", True)
            engine.get(key(1), bytearray(4096))
            self.assertIn(engine.decide(key(1)).choice, ("load", "recompute", "compute_on_cpu"))
            self.assertEqual([tier["name"] for tier in engine.metrics()["tiers"]], ["dram", "cxl"])
            self.assertIn('neotier_tier_in_service{tier="cxl"', engine.prometheus())

    def test_closed(self):
        """a closed engine is told in one line, also where tickets are left"""
        engine = neotier.Engine("dram=16M")
        engine.put(key(1), bytes(4096))
        ticket = engine.get_async(key(1), bytearray(4096))
        engine.close()
        engine.close()
        with self.assertRaisesRegex(ValueError, "the engine is closed"):
            engine.lookup(key(1))
        del ticket
        gc.collect()


class Blocks(unittest.TestCase):
    LAYERS, BYTES = 2, 4096

    def open(self, tiers="dram=16M", **settings):
        engine = neotier.Engine(tiers, max_objects=10000, events=65536)
        self.addCleanup(engine.close)
        return neotier.KvStore(engine, layers=self.LAYERS, layer_bytes=self.BYTES, seed="0",
                               **{"space": "model/bf16", "recompute_ns": 10**6, **settings})

    def data(self, nr):
        return [os.urandom(self.BYTES) for _ in range(nr * self.LAYERS)]

    def room(self, nr):
        return [bytearray(self.BYTES) for _ in range(nr * self.LAYERS)]

    def test_request(self):
        """a request: look up, load, store; layer by layer; also of blocks in the middle of a prefix"""
        store = self.open()
        session = store.session(store.tenant("a"))
        keys = store.keys(range(8 * 16))
        data = self.data(8)
        self.assertEqual(session.request(keys, category=1, cost_ns=[10**6] * 8), 0)
        self.assertEqual(session.store(keys, data), neotier.Stored(8, 0, 0, 0))
        self.assertEqual(session.request(keys), 8)
        into = self.room(8)
        with session.load(keys, into) as load:
            load.wait(10, layer=0)
            self.assertEqual(into[:8], data[:8])
            load.wait(10)
            self.assertEqual((load.blocks, load.good, into), (8, 8, data))
        into = self.room(3)
        with session.load(keys[5:], into, first_position=5) as load:
            load.wait(10)
            self.assertEqual(into, data[5:8] + data[13:])
        self.assertEqual(store.stats()["loaded_blocks"], 11)
        self.assertEqual([event.kind for event in store.events()[0]], ["copied"] * 8)
        session.close()

    def test_events(self):
        """a store keeps as many events as its engine: all that a restart finds, or the newest few"""
        blocks, size = 70000, 64
        with tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR")) as folder:
            for events, least, most in ((65536, 0, blocks), (1 << 17, blocks, blocks), (100, 100, 100)):
                with neotier.Engine(f"ssd=1200M:file={folder}/blocks", max_objects=1 << 17, events=events) as engine, \
                        neotier.KvStore(engine, layers=1, layer_bytes=size, seed="0") as store:
                    keys = store.keys(range(blocks * 16))
                    if least == 0:
                        with store.session(store.tenant("a")) as session:
                            for at in range(0, blocks, 1000):
                                session.store(keys[at : at + 1000], [bytes(size)] * 1000, first_position=at)
                        engine.flush()
                        continue
                    self.assertIn(keys[0], engine)
                    told, lost = store.events(1 << 20)
                    self.assertEqual((len({event.key for event in told}), lost), (most, blocks - most))

    def test_notify(self):
        """a load tells a queue that it has ended"""
        for size in (4096, 1 << 20):  # copied by the caller's thread, and by others
            engine = neotier.Engine("dram=64M", events=65536)
            store = neotier.KvStore(engine, layers=1, layer_bytes=size, recompute_ns=1, seed="0")
            session = store.session(store.tenant("a"))
            keys = store.keys(range(20 * 16))
            data = [bytes([i]) * size for i in range(20)]
            session.store(keys, data)
            queue, into = neotier.CompletionQueue(), [bytearray(size) for _ in range(20)]
            load = session.load(keys, into)
            queue.add(load)
            self.assertEqual(select.select([queue], [], [], 10)[0], [queue])
            self.assertEqual(queue.take(), [load])
            load.wait(0)
            self.assertEqual(into, data)
            with self.assertRaises(neotier.ExistsError):
                queue.add(load)
            engine.close()

    def test_layout(self):
        """a block in pieces of several sizes; each layer is told by itself"""
        sizes = [512, 512, 3000, 40, 41]
        engine = neotier.Engine("dram=64M", events=65536)
        self.addCleanup(engine.close)
        store = neotier.KvStore(engine, layers=3, piece_bytes=sizes, layer_pieces=[2, 1, 2], recompute_ns=1, seed="0")
        session = store.session(store.tenant("a"))
        keys = store.keys(range(4 * 16))
        data = [os.urandom(size) for size in sizes for _ in keys]
        self.assertEqual(session.store(keys, data), neotier.Stored(4, 0, 0, 0))
        self.assertEqual(engine.lookup(keys[0]).bytes, sum(sizes))
        queue, into = neotier.CompletionQueue(), [bytearray(size) for size in sizes for _ in keys]
        again = [bytearray(len(one)) for one in into]
        with session.load(keys, into) as load, session.load(keys, again) as other:
            queue.add_layers(load)
            queue.add_layers(other)
            told = []
            while len(told) < 6:
                self.assertEqual(select.select([queue], [], [], 10)[0], [queue])
                told += queue.take()
            for one in (load, other):
                self.assertEqual(sorted(layer for who, layer in told if who is one), [0, 1, 2])
            load.wait(0)
            self.assertEqual(into, data)
            for add in (queue.add_layers, queue.add):
                with self.assertRaises(neotier.ExistsError):
                    add(load)
            self.assertEqual(queue._held, {})
        with self.assertRaisesRegex(ValueError, "a buffer of 512 bytes; piece 2 of a block has 3000"):
            session.load(keys, into[:8] + into[4:8] + into[12:])
        with self.assertRaisesRegex(ValueError, "16 buffers for 4 blocks of 5 pieces"):
            session.load(keys, into[:16])
        for wrong, message in (({"piece_bytes": sizes}, "5 pieces for 3 layers"), ({"piece_bytes": []}, "the one without the other"),
                               ({"piece_bytes": sizes, "layer_pieces": [2, 2]}, "layer_pieces: 2 of 3 layers"),
                               ({"piece_bytes": sizes, "layer_pieces": [2, 1, 2], "layer_bytes": 8}, "give one of them"),
                               ({"layer_bytes": 8, "layer_pieces": [1, 1, 1]}, "layer_pieces without piece_bytes")):
            with self.assertRaisesRegex(ValueError, message):
                neotier.KvStore(engine, layers=3, **wrong)

    def test_plan(self):
        """load or recompute: by the costs given and by those seen; what is not worth loading is counted"""
        store = self.open(recompute_ns=0)
        session = store.session(store.tenant("a"))
        keys = store.keys(range(8 * 16))
        data, into = self.data(8), self.room(8)
        session.request(keys)
        session.store(keys, data)
        plan = session.plan(keys)
        self.assertEqual((plan.found, plan.load, plan.compute_all_ns), (8, 8, None))  # of no known cost
        for first in range(0, 400, 10):
            store.computed(2, 2000, first)
        plan = session.plan(keys, neotier.PlanOptions(after_ns=500))
        self.assertEqual((plan.found, plan.load), (8, 0))  # a microsecond a block: nothing is copied as fast
        self.assertLess(plan.ttft_ns, plan.load_all_ns)
        self.assertEqual(session.plan(keys, neotier.PlanOptions(overlap=True, compute_queue_ns=10**9)).load, 8)
        with session.load(keys, into, decide=neotier.PlanOptions()) as load:
            self.assertEqual((load.blocks, load.plan.found, load.plan.load), (0, 8, 0))
            load.wait(10)
        stats = store.stats()
        self.assertEqual((stats["decided_none"], stats["bypassed_blocks"]), (1, 8))
        self.assertEqual(sum(tier["bypassed_blocks"] for tier in stats["tiers"]), 8)
        for _ in range(40):
            store.computed(1, 10**9)
        with session.load(keys, into, decide=neotier.PlanOptions()) as load:
            load.wait(10)
            self.assertEqual((load.blocks, load.plan.load, into), (8, 8, data))
        with session.load(keys, into) as load:
            self.assertIsNone(load.plan)
        self.assertIn("neotier_kv_bypassed_blocks_total 8\n", store.prometheus())
        self.assertIn('neotier_kv_tenant_blocks{tenant="a"} 8\n', store.prometheus())
        self.assertIn('neotier_load_seconds_count{tier="dram"}', store._engine.prometheus())
        for wrong in ((0, 5), (5, 0)):
            with self.assertRaises(neotier.InvalidError):
                store.computed(*wrong)

    def test_digests(self):
        """keys of the caller's digests: equal in another process, other ones in another space or with another last byte"""
        digests = [bytes([i]) * 36 for i in range(4)]
        keys = self.open().digest_keys(digests)
        other = subprocess.run([sys.executable, "-c", (
            "import neotier; e = neotier.Engine('dram=1M', events=16)\n"
            "s = neotier.KvStore(e, layers=2, layer_bytes=4096, space='model/bf16')\n"
            "print(b''.join(s.digest_keys([bytes([i]) * 36 for i in range(4)])).hex())")], check=True, capture_output=True, text=True)
        self.assertEqual(other.stdout.strip(), b"".join(keys).hex())
        self.assertNotEqual(self.open(space="model/fp8").digest_keys(digests), keys)
        self.assertNotEqual(self.open(space="").digest_keys([digests[0][:-1] + b"\1"]), self.open(space="").digest_keys(digests[:1]))
        self.assertEqual(self.open().digest_keys([]), [])
        for wrong in ([b"x" * 15], [b"x" * 257], [b"x" * 16, b"x" * 17]):
            with self.assertRaises(ValueError):
                self.open().digest_keys(wrong)

    def test_wrong_buffers(self):
        """buffers of a wrong number or size are refused before anything is done"""
        store = self.open()
        session = store.session(store.tenant("a"))
        keys = store.keys(range(32))
        for wrong in ([bytearray(4096)] * 3, [bytearray(4095)] * 4):
            with self.assertRaises(ValueError):
                session.store(keys, wrong)
            with self.assertRaises(ValueError):
                session.load(keys, wrong)
        self.assertEqual(store.stats()["offered"], 0)

    def test_restart(self):
        """blocks on an SSD tier are there in the next process"""
        with tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR")) as folder:
            tiers = f"dram=4M,ssd=16M:file={folder}/kv"
            store = self.open(tiers, write="through")
            session = store.session(store.tenant("a"))
            keys, data = store.keys(range(64 * 16)), self.data(64)
            session.store(keys, data)
            store._engine.write_back(keys).wait(30)
            store._engine.flush()
            store._engine.close()
            store = self.open(tiers)
            into = self.room(64)
            with store.session(store.tenant("a")).load(keys, into) as load:
                load.wait(30)
                self.assertEqual((load.good, into), (64, data))
            store._engine.close()

    def test_left_open(self):
        """a program that ends with all of it open, loads under way, ends as any other"""
        for end in ("", "del engine, store, session\n", "engine._close()\n"):
            ended = subprocess.run([sys.executable, "-c", (
                "import neotier\n"
                "engine = neotier.Engine('dram=64M', events=65536)\n"
                "store = neotier.KvStore(engine, layers=1, layer_bytes=1 << 20, recompute_ns=1)\n"
                "session = store.session(store.tenant('a'))\n"
                "keys = store.keys(range(32 * 16))\n"
                "session.store(keys, [bytes(1 << 20)] * 32)\n"
                "loads = [session.load(keys, [bytearray(1 << 20) for _ in keys]) for _ in range(4)]\n"
                "ticket = engine.get_async(keys[0], bytearray(1 << 20))\n" + end)], capture_output=True, text=True,
                env=dict(os.environ, MALLOC_PERTURB_="165"))  # what is freed does not look as if it were not
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_closed(self):
        """a store ends its loads when its engine is closed"""
        store = self.open()
        session = store.session(store.tenant("a"))
        keys = store.keys(range(32))
        session.store(keys, self.data(2))
        load = session.load(keys, self.room(2))
        store._engine.close()
        with self.assertRaisesRegex(ValueError, "the store is closed"):
            session.request(keys)
        load.close()


class Plugged(unittest.TestCase):
    """What connectors have in common; they themselves are tested in their engines' packages (tests/engines)."""

    def test_settings(self):
        """a setting of an engine's configuration: its default, its kind, its least value"""
        given = {"a": 2, "b": True, "c": "x", "d": 0.5, "e": None, "f": float("nan"), "g": float("inf")}
        self.assertEqual([setting("w", given, *rest) for rest in (
            ("z", 7, int), ("a", 7, int), ("a", 7, float), ("b", False, bool), ("c", "", str), ("d", 1, float, 0.5))], [7, 2, 2.0, True, "x", 0.5])
        for name, kind, least, words in (("b", int, 0, "w: b is True; it wants int"), ("a", bool, 0, "w: a is 2; it wants true or false"),
                                         ("c", float, 0, "w: c is 'x'; it wants float"), ("a", int, 3, "w: a is 2; at least 3"),
                                         ("e", str, 0, "w: e is None; it wants str"), ("d", int, 0, "w: d is 0.5; it wants int"),
                                         ("f", float, 0, "w: f is nan; it wants float"), ("g", float, 0, "w: g is inf; it wants float")):
            with self.assertRaisesRegex(ValueError, f"^{words}$"):
                setting("w", given, name, kind(), kind, least)

    def test_check_storage(self):
        """tiers are a text, and there are three ways to write"""
        check_storage("w", "dram=1G", "through", "dram=8G")
        for tiers, write, words in (("", "back", 'w: tiers is missing; write for example "tiers": "dram=8G"'),
                                    (["dram=1G"], "back", "w: tiers is missing"), ("dram=1G", 1, "w: write is back, selective, through, not '1'"),
                                    ("dram=1G", [], "w: write is back")):
            with self.assertRaisesRegex(ValueError, words):
                check_storage("w", tiers, write, "dram=8G")

    def test_sparing_log(self):
        """one warning in so many seconds, which says how many others there were"""
        log = SparingLog(logging.getLogger("neotier.test"), "here", 0.2)
        with self.assertLogs("neotier.test") as said:
            for _ in range(3):
                log.warn("no disk")
            time.sleep(0.3)
            log.warn("no disk")
        self.assertEqual([record.getMessage() for record in said.records], ["here: no disk", "here: no disk (and 2 others since the last line)"])

    def test_tap(self):
        """a part of a test that fails has its line, and the others are run"""
        class Parts(unittest.TestCase):
            def runTest(self):  # noqa: N802  unittest's name
                """of three parts"""
                for part in range(3):
                    with self.subTest(part=part):
                        self.assertNotEqual(part, 1)

        result = tap.Result(io.StringIO())
        Parts().run(result)
        lines = [line for line in result.out.getvalue().splitlines() if not line.startswith("#")]
        self.assertEqual((len(lines), lines[0][:8], result.testsRun, result.wasSuccessful()), (1, "not ok 1", 1, False))


if __name__ == "__main__":
    tap.main()
