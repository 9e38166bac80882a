#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""neotier.vllm's KV connector under vLLM's own Scheduler: each byte that attention would read, and each token that follows from it. TAP.
tests/engines/run calls it with each vLLM that scripts/engines has installed."""
import contextlib
import logging
import os
import random
import re
import sys
import threading
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, "tests", "python"))
import common  # noqa: E402
import neotier  # noqa: E402
import tap  # noqa: E402
import torch  # noqa: E402
import vllm as engine  # noqa: E402
import vllm_connector_host as host  # noqa: E402
from prometheus_client import REGISTRY  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm  # noqa: E402
from vllm_connector_host import TOKENS, prompt  # noqa: E402

from neotier.kv import KvSession, KvStore, Load  # noqa: E402
from neotier.vllm import blocks, metrics, work  # noqa: E402
from neotier.vllm.schedule import Mirror  # noqa: E402

REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "1000"))  # of the long test
logging.disable(logging.WARNING)  # vLLM's and ours, of faults that are meant


class Connector(common.InFolder):
    def host(self, tiers="dram=64M", settings=None, **more):
        file = f"{self.folder}/kv" + ("-{rank}" if more.get("world", 1) > 1 else "")
        tiers = tiers.replace("ssd=128M", f"ssd=128M:file={file}")
        made = host.Host({"tiers": tiers, "seed": 1, **(settings or {})}, **more)
        self.addCleanup(made.close)  # also where the test fails
        return made

    def closed(self, served, stats=True):
        """What every run has to leave."""
        self.assertEqual(served.wrong, 0)
        schedule = served.schedule
        self.assertEqual((schedule._requests, schedule._coming, schedule._loading, schedule._saves, schedule._saving, schedule._planned),
                         ({}, {}, {}, {}, set(), []))
        self.assertEqual(schedule._waiting, {})
        for rank in served.ranks:
            worker = rank.connector._worker
            self.assertEqual((worker._sessions, worker._held, worker._finishing, worker._unfinished), ({}, [], [], {}))
            self.assertEqual((worker._coming, worker._arrived, worker._errors), ([], set(), set()))
            if stats:
                self.assertEqual(worker._store.stats()["loaded_blocks"], worker.counters["loaded"])
        served.close()
        self.assertEqual([thread.name for thread in threading.enumerate() if thread.name.startswith("neotier")], [])
        for rank in served.ranks:
            self.assertIsNone(rank.connector._worker._engine)

    # ---- bytes

    def test_loaded(self):
        """a second request of a prompt loads its blocks, every byte right, whatever the layout of the paged cache and the layers' sizes"""
        text = prompt(*range(10)) + [5] * 7
        for layout in host.LAYOUTS:
            for sizes in ((16, 16, 16), (16, 32, 8)):
                with self.subTest(layout=layout, sizes=sizes):
                    served = self.host(layout=layout, sizes=sizes).run([text], new=3)
                    served.forget()
                    served.run([text, prompt(*range(100, 120))], new=3)
                    self.assertEqual(served.served, [0, 160, 0])
                    self.assertEqual(served.worker.counters["loaded"], 10)
                    self.closed(served)

    def test_own_order(self):
        """the calls of vLLM's own model runner, in their order"""
        text = prompt(*range(20)) + [1]
        for asynchronous in (False, True):
            for deferred in (False, True):
                served = self.host(asynchronous=asynchronous, deferred=deferred, mixin=True).run([text], new=20)
                served.forget()
                with self.failing_load(served.ranks[0], at=1):
                    served.run([text], new=20).forget()
                    served.run([text], new=20).forget()
                    served.run([text], new=20)
                self.assertEqual((served.failed_steps, served.worker.counters["loaded"]), (1, 40))
                # In a step it is admitted with what then fails.
                self.assertEqual(served.served, [0, 320, 0 if asynchronous else 320, 320])
                self.closed(served)

    def test_between_steps(self):
        """blocks that are loaded between steps: other requests go on meanwhile, and none is used before it is there"""
        text = prompt(*range(20)) + [1]
        for asynchronous in (False, True):
            served = self.host(settings={"layerwise": False}, asynchronous=asynchronous).run([text])
            served.forget()
            own, began, late = Load.wait, {}, 0.05

            def wait(load, timeout=None, layer=None):
                first = began.setdefault(id(load), time.monotonic())
                if time.monotonic() < first + late and timeout is not None and timeout < late:
                    raise neotier.TimeoutError("still under way")
                time.sleep(max(first + late - time.monotonic(), 0))
                return own(load, timeout, layer)

            steps = []  # before the first request has its blocks

            def between(one):
                if "1" not in one.hits:
                    steps.append(one.steps)

            with mock.patch.object(Load, "wait", wait):
                served.run([text, prompt(*range(100, 103))], new=5, between=between)
            self.assertGreater(len(steps), 5)
            self.assertEqual((list(served.finished), served.served), (["0", "2", "1"], [0, 0, 320]))
            self.assertEqual(served.worker.counters["loaded"], 20)
            self.closed(served)

    def test_generated(self):
        """blocks of generated tokens are saved when they are full, and found by a request that goes on from them"""
        for asynchronous in (False, True):
            served = self.host(asynchronous=asynchronous).run([prompt(1, 2)], new=70)
            served.forget()
            # The last token is sampled and not computed: 2 + 4 blocks are whole.
            served.run([served.finished["0"] + [1]])
            self.assertEqual(served.served, [0, 6 * TOKENS])
            self.closed(served)

    def test_one_token_is_left(self):
        """of a prompt that is there whole, one block is left: vLLM has to compute a token"""
        served = self.host().run([prompt(*range(10))])
        served.forget()
        self.assertEqual(served.run([prompt(*range(10))]).served, [0, 9 * TOKENS])
        self.closed(served)

    def test_chunked_prefill(self):
        """a prompt that is computed in chunks is saved in chunks, and each block once"""
        text = prompt(*range(40))
        served = self.host(batch=56).run([text, prompt(*range(100, 120))], new=40)
        self.assertGreater(served.steps, 20)
        stats = served.worker._store.stats()
        self.assertEqual((stats["stored"], stats["present"]), (60 + 2 * 2, 0))
        served.forget()
        served.run([prompt(*range(40), *range(200, 210))])
        self.assertEqual(served.served[-1], 40 * TOKENS)
        self.closed(served)

    def test_own_cache(self):
        """what vLLM's own cache has is not loaded, and saved if the tiers lack it; without that cache all is loaded"""
        text = prompt(*range(10)) + [5]
        served = self.host().run_in_turn([text, text])
        self.assertEqual((served.served, served.worker.counters["loaded"]), ([0, 160], 0))
        for key in list(served.worker._here)[:6]:
            served.worker._engine.remove(key)
        served.idle()
        served.run([text])
        self.assertEqual((served.served[-1], served.worker.counters["stored"], len(served.schedule._mirror)), (160, 16, 10))
        served.forget()
        # Half of it there, half of it to load.
        served.run([prompt(*range(5)) + [3]])
        self.assertEqual(served.worker.counters["loaded"], 5)
        served.run([text])
        self.assertEqual((served.served[-1], served.worker.counters["loaded"]), (160, 10))
        self.closed(served)
        served = self.host(caching=False).run_in_turn([text, text, text])
        self.assertEqual((served.served, served.worker.counters["loaded"]), ([0, 160, 160], 20))
        self.closed(served)

    def test_preemption(self):
        """requests that are preempted and resumed go on with the right tokens, and take from the tiers what they had"""
        for asynchronous in (False, True):
            for caching in (True, False):
                with self.subTest(asynchronous=asynchronous, caching=caching):
                    served = self.host(blocks=40, asynchronous=asynchronous, caching=caching)
                    preempted = 0

                    def between(one):
                        nonlocal preempted
                        preempted += sum(request.num_preemptions > 0 for request in one.scheduler.requests.values())

                    for at in range(8):
                        served.add(prompt(*range(at * 10, at * 10 + 6)), new=60)
                    served.run(between=between)
                    self.assertGreater(preempted, 0)
                    self.assertGreater(served.worker.counters["loaded"], 0)
                    self.assertEqual(len(served.served), 8)
                    self.closed(served)

    def test_lost_while_preempted(self):
        """what leaves the tiers while its request is preempted is computed, and saved, again"""
        for asynchronous in (False, True):
            served = self.host(blocks=40, asynchronous=asynchronous, caching=False)
            store, hashes, seen = served.worker._store, {}, {}

            def between(one):
                for name, request in one.scheduler.requests.items():
                    hashes[name] = request.block_hashes
                    if request.num_preemptions > seen.get(name, 0):
                        seen[name] = request.num_preemptions
                        for key in store.digest_keys([bytes(part) for part in request.block_hashes]):
                            if key in one.worker._engine:
                                one.worker._engine.remove(key)

            for at in range(8):
                served.add(prompt(*range(at * 10, at * 10 + 6)), new=60)
            served.run(between=between)
            self.assertGreater(len(seen), 0)
            for name, tokens in served.finished.items():
                keys = store.digest_keys([bytes(part) for part in hashes[name][:(len(tokens) - 1 - asynchronous) // TOKENS]])
                self.assertEqual(served.worker._engine.lookup_prefix(keys), len(keys))
            self.closed(served)

    def test_salt(self):
        """requests of another salt find nothing"""
        served = self.host()
        found = []
        for salt in ("a", "b", "a"):
            served.add(prompt(*range(10)) + [1], salt=salt)
            served.run().forget()
            found.append(served.served[-1])
        self.assertEqual(found, [0, 0, 160])
        self.closed(served)

    def test_policy(self):
        """the policy is told of each request once, whole, with its kind"""
        seen = []
        own = KvSession.request

        def request(session, keys, **more):
            seen.append((len(keys), more["category"]))
            return own(session, keys, **more)

        with mock.patch.object(KvSession, "request", request):
            served = self.host(batch=64)
            served.add(prompt(*range(10)) + [1], new=20, params={"neotier_category": 3})
            served.run()
            served.add(prompt(*range(10)) + [1], params={"neotier_category": "three"})
            served.run()
        self.assertEqual(seen, [(10, 3), (10, 0)])
        self.closed(served)

    def test_metrics(self):
        """vLLM's log and its Prometheus metrics have what scheduler and workers count, once, and of all ranks"""
        served = self.host(settings={"store_after": 2}, world=2, blocks=64)
        for _ in range(4):
            served.run([prompt(*range(number, number + 20)) + [1] for number in range(0, 80, 20)])
        expected = {name: served.schedule.counters[name] for name in metrics.PLANNED}
        for rank in served.ranks:
            for name in metrics.MOVED:
                expected[name] = expected.get(name, 0) + rank.connector._worker.counters[name]
        for name in ("asked", "hit", "offered", "loaded", "stored", "passed"):
            self.assertGreater(expected[name], 0, name)
        log, prometheus = KVConnectorLogging(served.config.kv_transfer_config), KVConnectorProm(served.config, ["engine"], {0: ["0"], 1: ["1"]})
        lines = []
        for at, told in enumerate(served.told):
            log.observe(told)
            prometheus.observe({**told, "of another release": 1}, at % 2)
        log.log(lambda text, told: lines.append(text % told))
        log.log(lambda *_: self.fail("told again"))
        self.assertEqual(lines, ["KV Transfer metrics: " + ", ".join(f"NeoTier blocks {name}={nr}" for name, nr in expected.items() if nr)])
        for name, nr in expected.items():
            self.assertEqual(sum(REGISTRY.get_sample_value(f"vllm:neotier_{name}_blocks_total", {"engine": engine}) for engine in "01"), nr)
        self.assertGreater(REGISTRY.get_sample_value("vllm:neotier_loaded_blocks_total", {"engine": "1"}), 0)
        self.closed(served)

    # ---- media

    def test_restart(self):
        """after a restart a new engine finds what is on the SSD, from the first request on; another layout finds nothing of it"""
        text = prompt(*range(30)) + [1]
        self.closed(self.host("dram=1M,ssd=128M", {"write": "through"}).run([text], new=5))
        for more, found in ((dict(sizes=(16, 32, 16)), 0), (dict(layout="kv", sizes=(16, 16, 32)), 0), ({}, 480)):
            served = self.host("dram=1M,ssd=128M", {"write": "through"}, **more).run([text])
            self.assertEqual(served.served, [found], more)
            self.closed(served)

    def test_reset(self):
        """after a reset nothing is found any more, also after a restart; what comes after it is"""
        text = prompt(*range(10)) + [1]
        served = self.host("ssd=128M").run([text])
        self.assertIs(served.scheduler.reset_prefix_cache(reset_connector=True), True)
        served.run([text])
        self.assertEqual(served.served, [0, 0])
        served.forget()
        self.assertEqual(served.run([text]).served[-1], 160)
        self.assertTrue(served.scheduler.reset_prefix_cache(reset_connector=True))
        served.run([prompt(50, 51, 52)])
        self.closed(served, stats=False)  # its store is a new one
        served = self.host("ssd=128M").run_in_turn([text, prompt(50, 51, 52)])
        self.assertEqual(served.served, [0, 32])
        self.closed(served)

    def test_a_corrupt_medium(self):
        """blocks that were changed on the disk are computed anew, stored anew, and then found; no request asks for ever"""
        texts = [prompt(*range(at * 40, at * 40 + 40)) + [1] for at in range(4)]
        served = self.host("ssd=128M", sizes=(64, 64, 64)).run(texts)
        path = os.path.join(self.folder, "kv")
        with open(path, "r+b") as file:
            for at in range(1 << 20, os.path.getsize(path), 24 << 10):
                file.seek(at)
                if any(file.read(64)):
                    file.seek(at)
                    file.write(b"not what was written" * 3)
        os.sync()
        for _ in range(3):
            served.forget()
            served.run_in_turn(texts, new=4)
        failed = served.failed_steps
        self.assertGreater(failed, 0)
        for _ in range(40):  # a run of each text finds one bad block at most
            served.forget()
            served.run_in_turn(texts, new=4)
            if served.failed_steps == failed:
                break
            failed = served.failed_steps
        self.assertEqual(served.served[-4:], [640] * 4)
        self.closed(served)

    def test_gone_and_back(self):
        """a tier that is gone gives misses, and hits again when it is back and they were offered again"""
        text = prompt(*range(20)) + [1]
        served = self.host("ssd=128M").run([text])
        common.service(served.worker._engine, False)
        for _ in range(2):
            served.forget()
            served.run([text], new=3)
        self.assertEqual((served.worker.counters["loaded"], served.failed_steps > 0), (0, True))
        common.service(served.worker._engine, True)
        for _ in range(2):
            served.forget()
            served.run([text], new=3)
        self.assertEqual((served.served[-1], served.worker.counters["loaded"]), (320, 20))
        self.closed(served)

    def test_a_small_tier(self):
        """a tier that is much too small: what it has lost is known, or is computed anew; the mirror is as large as the tier"""
        served = self.host("dram=12M", sizes=(1024, 1024, 1024))  # some 100 blocks
        rng = random.Random(3)
        for _ in range(60):
            at = rng.randrange(20)
            served.run([prompt(*range(at * 100, at * 100 + 30)) + [1]], new=2)
            served.forget()
        self.assertGreater(served.worker.counters["loaded"], 0)
        there = sum(key in served.worker._engine for key in served.worker._here)
        self.assertEqual((there, len(served.schedule._mirror)), (len(served.worker._here), there))
        self.assertLess(there, 200)
        self.closed(served)

    def test_slow(self):
        """a load that takes longer than timeout_s has failed, and delays its step by no more than that"""
        text = prompt(*range(10)) + [1]
        served = self.host(settings={"timeout_s": 0.1}).run([text])
        served.forget()

        def late(load, timeout=None, layer=None):
            time.sleep(min(timeout, 1))
            raise neotier.TimeoutError("still under way")

        with mock.patch.object(Load, "wait", late), mock.patch.object(Load, "good", 0):
            began = time.monotonic()
            served.run([text], new=3)
            self.assertLess(time.monotonic() - began, 1)
        self.assertEqual((served.failed_steps, served.worker.counters["loaded"]), (1, 0))
        self.assertEqual(served.worker._store.stats()["stored"], 10)
        self.closed(served, stats=False)  # the tier had them ready all the same

    # ---- failures

    def failing_load(self, rank, at=0, nr=1):
        """From the at-th load of a rank on nr fail, and nothing is written for them."""
        own, count = rank.connector._worker._memory.load, [0]

        def load(*given, **more):
            count[0] += 1
            if at < count[0] <= at + nr:
                raise neotier.IoError("an injected fault")
            return own(*given, **more)

        return mock.patch.object(rank.connector._worker._memory, "load", load)

    def test_a_failed_load(self):
        """blocks that do not come are computed anew, in chunks, with what rests on them; nothing of that step is stored"""
        for asynchronous in (False, True):
            for deferred in (False, True):
                with self.subTest(asynchronous=asynchronous, deferred=deferred):
                    text, longer = prompt(*range(20)) + [1], prompt(*range(20), 30, 31, 32, 33)
                    served = self.host(batch=64, asynchronous=asynchronous, deferred=deferred).run([text])
                    served.forget()
                    with self.failing_load(served.ranks[0]):
                        served.run([longer, prompt(*range(100, 110))], new=20)
                    self.assertEqual((served.failed_steps, served.worker.counters["failed"]), (1, 20))
                    # Between steps no request rests on blocks that have not come.
                    self.assertEqual(served.worker.counters["withheld"] > 0, not asynchronous)
                    served.forget()
                    served.run([prompt(*range(20), 30, 31, 32, 33, 34)])
                    self.assertGreater(served.served[-1], 20 * TOKENS)
                    self.closed(served)

    def test_not_twice(self):
        """what failed for a request is not asked for again, also when the request comes back after a preemption"""
        served = self.host(blocks=24, caching=False).run([prompt(*range(6)) + [1]])
        served.forget()
        failed, preempted = [], set()

        def load(session, keys, into, first, **more):
            raise neotier.IoError("an injected fault")

        def between(one):
            step = one.worker._step
            failed.extend((run.request, run.hashes[0]) for run in (step.work.loads if step else ()))
            preempted.update(name for name, request in one.scheduler.requests.items() if request.num_preemptions)

        with mock.patch.object(served.worker._memory, "load", load):
            for at in range(3):
                served.add(prompt(*range(6)) + [1 + at], new=80)
            served.run(between=between, most=3000)
        self.assertGreater(min(len(failed), len(preempted)), 0)
        self.assertEqual(len(set(failed)), len(failed))
        self.closed(served)

    def test_shared_while_loading(self):
        """a request that would share blocks that are just being loaded waits for them, and reads none that failed"""
        text = prompt(*range(20)) + [1]
        for fails in (False, True):
            for asynchronous, threshold in ((False, 0), (False, 32), (True, 0)):
                # With a threshold vLLM takes others into a step in which a prompt is computed in part only.
                with self.subTest(fails=fails, asynchronous=asynchronous, threshold=threshold):
                    served = self.host(batch=64 + 8 * threshold, asynchronous=asynchronous, threshold=threshold).run([text])
                    served.forget()
                    with self.failing_load(served.ranks[0], nr=int(fails)):
                        served.run([text, text + [2] * 20, prompt(*range(20), 50, 51)], new=5)
                    self.assertEqual(served.schedule.counters["waited"] > 0, not asynchronous)
                    self.assertEqual(served.failed_steps, int(fails))
                    self.assertEqual(len(served.served), 4)
                    self.closed(served)

    def test_left_meanwhile(self):
        """a block that leaves the tiers between the scheduler's look and the load is a failed load; those before it are used"""
        text = prompt(*range(20)) + [1]
        served = self.host().run([text])
        served.forget()
        keys = served.worker._store.digest_keys([bytes(one) for one in self.hashes(served, text)])
        served.worker._engine.remove(keys[7])
        served.run([text], new=2)
        self.assertEqual((served.failed_steps, served.worker.counters["loaded"], served.worker.counters["failed"]), (1, 7, 13))
        served.forget()
        served.run([text])
        self.assertEqual((served.served[-1], served.failed_steps), (320, 1))
        self.closed(served)

    @staticmethod
    def hashes(served, tokens):
        name = served.add(tokens)
        hashes = list(served.scheduler.requests[name].block_hashes)
        served.scheduler.finish_requests(name, host.RequestStatus.FINISHED_ABORTED)
        served.sequences.pop(name)
        return hashes

    # ---- ranks

    def test_two_ranks(self):
        """a block counts where all ranks have it: one that one rank has lost is a miss, and is stored there again"""
        text = prompt(*range(20)) + [1]
        served = self.host(world=2).run([text])
        first, second = (rank.connector._worker for rank in served.ranks)
        key = second._store.digest_keys([bytes(one) for one in self.hashes(served, text)])[12]
        second._engine.remove(key)
        served.idle()
        served.forget()
        served.run([text])
        self.assertEqual((served.served[-1], served.failed_steps), (12 * TOKENS, 0))
        served.forget()
        served.run([text])
        self.assertEqual((served.served[-1], first.counters["loaded"], second.counters["loaded"]), (320, 32, 32))
        self.assertEqual((first._store.stats()["stored"], second._store.stats()["stored"]), (20, 21))
        self.closed(served)

    def test_one_rank_fails(self):
        """where a load fails in one rank, no rank keeps what was computed from it"""
        for asynchronous in (False, True):
            for rank in (0, 1):
                with self.subTest(asynchronous=asynchronous, rank=rank):
                    served = self.host("dram=64M,ssd=128M", world=2, asynchronous=asynchronous).run([prompt(*range(10)) + [1]])
                    served.forget()
                    longer = prompt(*range(20))
                    with self.failing_load(served.ranks[rank]):
                        served.run([longer, prompt(*range(100, 105))], new=40)
                    self.assertEqual(served.failed_steps, 1)
                    self.assertEqual(served.ranks[1 - rank].connector._worker.counters["withheld"] > 0, not asynchronous)
                    served.forget()
                    served.run([prompt(*range(20), 40)])
                    self.assertGreater(served.served[-1], 9 * TOKENS)
                    self.closed(served)
                    for at in (0, 1):
                        os.remove(f"{self.folder}/kv-{at}")

    def test_ranks_files(self):
        """ranks have files of their own; one that another rank wrote is refused"""
        served = self.host("dram=1M,ssd=128M", {"write": "through"}, world=2).run([prompt(*range(20)) + [1]])
        self.closed(served)
        self.assertEqual(sorted(os.listdir(self.folder)), ["kv-0", "kv-1"])
        served = self.host("dram=1M,ssd=128M", {"write": "through"}, world=2).run([prompt(*range(20)) + [1]])
        self.assertEqual(served.served, [320])
        self.closed(served)
        os.rename(f"{self.folder}/kv-0", f"{self.folder}/kv-2")
        os.rename(f"{self.folder}/kv-1", f"{self.folder}/kv-0")
        os.rename(f"{self.folder}/kv-2", f"{self.folder}/kv-1")
        with self.assertRaisesRegex(ValueError, "tiers of rank 0 of 2 were written by rank 1 of 2"):
            self.host("dram=1M,ssd=128M", world=2)

    # ---- as on a GPU

    def gpu_like(self, delay=0.0):
        host.GpuLike.delay = delay
        return mock.patch.object(work.Worker, "_reach", lambda worker, store: host.GpuLike(store, worker._cache.layer_pieces))

    def test_saves_in_a_thread(self):
        """where copies are made layer by layer and stored by a thread: each layer once and written, all of them told when they are there"""
        for more in ({}, {"asynchronous": True}, {"world": 2}, {"deferred": True}):
            with self.subTest(**more), self.gpu_like(0.002):
                text = prompt(*range(30)) + [1]
                served = self.host(sizes=(16, 32, 8), batch=64, **more).run([text], new=30)
                self.settle(served)
                served.forget()
                served.run([text], new=30)
                self.assertEqual((served.served, host.GpuLike.twice), ([0, 480], 0))
                self.settle(served)
                self.closed(served)

    def settle(self, served):
        for _ in range(500):
            served.idle()
            if not served.schedule._saving:
                return
            time.sleep(0.002)
        self.fail("saves do not end")

    def test_slow_saves(self):
        """of stores that take long so many are under way, and no more; what is beyond is dropped, and offered again; a shutdown waits"""
        with self.gpu_like(0.05):
            served = self.host(settings={"unfinished_saves": 2}, batch=64)
            text = prompt(*range(40)) + [1]
            most = 0

            def between(one):
                nonlocal most
                most = max(most, len(one.worker._finishing))

            served.run([text], between=between)
            self.assertEqual(most, 2)
            self.assertGreater(served.worker.counters["dropped"], 0)
            for _ in range(30):
                self.settle(served)
                served.run([text])
            self.settle(served)
            self.assertEqual(len(served.schedule._mirror), 40)
            self.closed(served)
            served = self.host(settings={"unfinished_saves": 100})
            served.idle()
            served.add(text)
            served.step()
            self.assertEqual(len(served.worker._finishing), 1)
            served.close()
            self.assertEqual([thread.name for thread in threading.enumerate() if thread.name.startswith("neotier")], [])

    # ---- configurations

    def test_wrong_configuration(self):
        """a configuration that is none is one line, and leaves nothing"""
        for settings, words in (({"tiers": ""}, "tiers is missing"), ({"write": "often"}, "write is back, selective, through"),
                                ({"timeout_s": 0}, "timeout_s is 0; at least 0.001"), ({"unfinished_saves": 0}, "at least 1"),
                                ({"prefill_tokens_per_s": "fast"}, "wants float"), ({"tiers": "tape=1G"}, "no kind of tier 'tape'")):
            with self.assertRaisesRegex((ValueError, neotier.NeoTierError), words):
                self.host(settings=settings)
        with self.assertRaisesRegex(ValueError, "\"kv_load_failure_policy\": \"recompute\""):
            self.host(kv_load_failure_policy="fail")
        with self.assertRaisesRegex(ValueError, "kv_role is \"kv_both\""):
            self.host(kv_role="kv_producer")
        for part in ("ssd=1G:file=/x", "remote=1G:url=[redis://a:1,b:2]:namespace=m"):
            with self.assertRaisesRegex(ValueError, f"workers cannot share '{re.escape(part)}'; write {{rank}}"):
                host.Host({"tiers": f"dram=1M,{part},cxl=1M"}, world=2)
        with self.assertRaisesRegex(ValueError, "give vLLM --no-async-scheduling"):
            self.host(settings={"layerwise": True}, asynchronous=True)
        made = host.config({"tiers": "dram=1M"})
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
        shape = dict(block_size=TOKENS, num_kv_heads=2, head_size=8, dtype=torch.bfloat16)
        full, window = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=64)
        for groups, words in (([KVCacheGroupSpec(["a"], full), KVCacheGroupSpec(["b"], window)], "has 2 groups of KV cache"),
                              ([KVCacheGroupSpec(["a"], window)], "this model's KV cache is SlidingWindowSpec")):
            cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)
            for role in (host.KVConnectorRole.SCHEDULER, host.KVConnectorRole.WORKER):
                with self.assertRaisesRegex(ValueError, words):
                    host.KVConnectorFactory.create_connector(made, role, cache)
        self.assertEqual(os.listdir(self.folder), [])

    def test_layouts(self):
        """tensors that cannot be used are refused in one line; layers that share a tensor are one"""
        for one, words in ((torch.zeros(3, 5), "has 0 dimensions of 8 blocks"), ([torch.zeros(8)], "keeps a list"),
                           (torch.zeros(3, 8, 8), "has 2 dimensions of 8 blocks"),
                           (torch.zeros(16, 700, 8).permute(2, 1, 0)[:, :, ::2], "what is inside a block must be contiguous"),
                           (torch.zeros(1, 16).expand(8, 16), "what is inside a block must be contiguous")):
            with self.assertRaisesRegex(ValueError, words):
                blocks.layer("a", one, 8)
        with self.assertRaisesRegex(ValueError, "no KV cache"):
            blocks.Cache({}, 8)
        one, two = torch.zeros(8, 16, dtype=torch.uint8), torch.zeros(8, 32, dtype=torch.uint8)
        cache = blocks.Cache({"layers.10": two, "layers.2": one, "layers.11": one}, 8)
        self.assertEqual(cache.index, {"layers.2": 0, "layers.10": 1, "layers.11": 0})
        self.assertEqual((cache.piece_bytes, cache.block_bytes), ([16, 32], 48))
        self.assertEqual(list(cache.pieces([3, 1]).addresses),
                         [one[3].data_ptr(), one[1].data_ptr(), two[3].data_ptr(), two[1].data_ptr()])
        with self.assertRaises(IndexError):
            cache.pieces([8])
        # Heads before tokens is another meaning of the same bytes.
        hnd, nhd = torch.zeros(8, 2, 16, 4), torch.zeros(8, 16, 2, 4).permute(0, 2, 1, 3)
        self.assertNotEqual(blocks.layer("a", hnd, 8).order, blocks.layer("a", nhd, 8).order)

    def test_held_save(self):
        """a save that has to wait keeps the bytes that it had when its step ended; one that need not reads them where they lie"""
        served = self.host()
        worker, view = served.worker, served.ranks[0].views[host.LAYERS[0]][0]
        keys = worker._store.digest_keys([bytes([at] * 32) for at in range(2)])
        with worker._store.session(worker._tenant) as session:
            for key, waits, block in ((keys[0], True, 3), (keys[1], False, 4)):
                view[block] = 7
                save = worker._memory.save(session, [key], worker._cache.pieces([block]))
                if waits:
                    save.behind()
                view[block] = 9
                save.finish()
                self.assertEqual(worker._engine.read(key)[0], 7 if waits else 9)
                save.close()
        self.closed(served)

    def test_mirror(self):
        """a mirror has an end, and says of a key that it is there where all ranks of its stage have it"""
        mirror = Mirror(3, 4)
        for rank, space in ((0, "a"), (1, "a"), (2, "b")):
            self.assertFalse(mirror.ready)
            mirror.hello(rank, space)
            mirror.whole(rank)
        self.assertTrue(mirror.ready)
        keys = [bytes([at] * 16) for at in range(8)]
        mirror.add(0, keys[:3])
        mirror.add(1, keys[1:4])
        mirror.add(2, keys[:1])
        self.assertEqual([mirror.has("a", key) for key in keys[:4]], [False, True, True, False])
        self.assertTrue(mirror.has("b", keys[0]))
        mirror.remove(0, keys[1:2])
        self.assertFalse(mirror.has("a", keys[1]))
        mirror.add(0, keys)
        self.assertEqual(len(mirror), 4 + 1)
        self.assertTrue(mirror.has("b", keys[0]))

    def test_nothing_is_raised(self):
        """whatever call of the store fails, vLLM is not told; blocks are misses or are not stored, and nothing is left"""
        rng = random.Random(5)
        faults = [(KvStore, "session"), (KvStore, "digest_keys"), (KvStore, "events"), (KvSession, "request"), (KvSession, "load"),
                  (KvSession, "store"), (Load, "wait")]
        for more in ({}, {"world": 2}, {"asynchronous": True}, {"deferred": True}):
            with self.subTest(**more), contextlib.ExitStack() as patched:
                served = self.host(blocks=200, batch=128, **more).run(prompt(*range(at, at + 12)) + [1] for at in range(0, 60, 10))
                for kind, name in faults:
                    failing = common.failing(getattr(kind, name), rng, 0.1, (neotier.IoError, MemoryError))
                    patched.enter_context(mock.patch.object(kind, name, failing))
                for _ in range(8):
                    served.run([prompt(*range(at, at + 15)) + [1] for at in range(0, 60, 7)], new=4)
                    served.forget()
                patched.close()
                self.assertGreater(served.failed_steps, 0)
                self.assertEqual(len(served.served), 6 + 8 * 9)
                served.idle()
                self.assertEqual((served.wrong, served.schedule._coming, served.schedule._waiting), (0, {}, {}))
                for rank in served.ranks:
                    worker = rank.connector._worker
                    self.assertEqual((worker._sessions, worker._held, worker._coming, worker._unfinished), ({}, [], [], {}))

    def test_aborted(self):
        """requests that are aborted, waiting or running, leave nothing"""
        served = self.host(batch=64).run([prompt(*range(20)) + [1]])
        served.forget()
        names = [served.add(prompt(*range(at, at + 20)) + [1], new=20) for at in range(0, 30, 3)]
        for _ in range(4):
            served.step()
        served.scheduler.finish_requests(names, host.RequestStatus.FINISHED_ABORTED)
        served.run([prompt(*range(7))])
        self.closed(served)

    # ---- long

    def trace(self, served, requests, seed, rate):
        """Requests of the conversation trace, a block for each of its blocks, while loads and stores fail, blocks leave, tiers go and
        come back."""
        rng = random.Random(seed)
        ranks = [rank.connector._worker for rank in served.ranks]

        def between(_):
            dice, worker = rng.random(), rng.choice(ranks)
            if dice < 0.002:
                common.service(worker._engine, False)
            elif dice < 0.05:
                common.service(worker._engine, True)
            elif dice < 0.1 and worker._here:
                try:
                    worker._engine.remove(next(iter(worker._here)))
                except neotier.NeoTierError:
                    pass

        own = KvSession.load, KvSession.store
        errors = (neotier.IoError,)
        with mock.patch.object(KvSession, "load", common.failing(own[0], rng, rate, errors)), \
                mock.patch.object(KvSession, "store", common.failing(own[1], rng, rate, errors)):
            for at in range(0, len(requests), 20):
                for number, words in enumerate(requests[at:at + 20]):
                    served.add(prompt(*words[:60]) + [1 + number], new=rng.randrange(1, 24))
                served.run(between=between)
                if rng.random() < 0.5:
                    served.forget()
        for worker in ranks:
            common.service(worker._engine, True)
        served.idle()

    def test_trace(self):
        """long: requests of the conversation trace with faults: each ends, no wrong byte or token, nothing is left"""
        trace = common.conversation()
        if trace is None:
            self.skipTest("skipped: the shared conversation trace is not there")
        files = len(os.listdir("/proc/self/fd"))
        for more, nr in (({}, REQUESTS), ({"world": 2}, REQUESTS // 4), ({"asynchronous": True}, REQUESTS // 4),
                         ({"asynchronous": True, "world": 2}, REQUESTS // 10)):
            with self.subTest(**more):
                served = self.host("dram=4M,ssd=128M", {"timeout_s": 2}, blocks=400, batch=512, **more)
                self.trace(served, [words for _, words in trace[:nr]], seed=len(more), rate=0.02 if nr > 500 else 0.2)
                counters, schedule = dict(served.worker.counters), dict(served.schedule.counters)
                print(f"# vLLM {engine.__version__} {more}: {len(served.served)} requests, {schedule}, {counters}, "
                      f"{served.failed_steps} steps failed of {served.steps}", flush=True)
                self.assertEqual(len(served.served), nr)
                self.assertLess(served.steps, 4 * nr + 200, "requests wait for what does not come")
                # What the scheduler believed in is what came and what failed.
                self.assertEqual(schedule["hit"], counters["loaded"] + counters["failed"])
                if nr >= 250:
                    self.assertGreater(min(counters["failed"], counters["loaded"], counters["stored"]), 0)
                    self.assertEqual(counters["withheld"] > 0, not more.get("asynchronous", False))
                self.closed(served)
                for name in os.listdir(self.folder):
                    os.remove(os.path.join(self.folder, name))
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), files + 2)


if __name__ == "__main__":
    tap.main()
