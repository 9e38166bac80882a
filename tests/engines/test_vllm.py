#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""neotier.vllm in vLLM's own managers: cache policies against the replay, the tier under faults. TAP. tests/engines/run calls it with
each vLLM that scripts/engines has installed."""
import collections
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, "tests", "python"))
import common  # noqa: E402
import neotier  # noqa: E402
import tap  # noqa: E402
import vllm as engine  # noqa: E402
import vllm_host as host  # noqa: E402
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # noqa: E402

from neotier.kv import KvSession, KvStore  # noqa: E402

MODULE = "neotier.vllm"
REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "10000"))  # of the long test


def chat(nr, most=60, **more):
    return ([host.key(block) for block in blocks] for blocks in common.chat(nr, most=most, **more))


class Policies(unittest.TestCase):
    def run_policy(self, name, capacity, module=None):
        manager = CPUOffloadingManager(num_chunks=capacity, cache_policy=name, cache_policy_module_path=module)
        found = asked = 0
        for number, (_, blocks) in enumerate(common.conversation()):
            request = host.Request(number, [host.key(block) for block in blocks])
            manager.on_new_request(request.context)
            hits = 0
            while hits < len(request.keys) and manager.lookup(request.keys[hits], request.context) is host.LookupResult.HIT:
                hits += 1
            found += hits
            asked += len(request.keys)
            if hits:
                manager.prepare_load(request.keys[:hits], request.context)
            output = manager.prepare_store(request.keys[hits:], request.context) if hits < len(request.keys) else None
            if hits:
                manager.complete_load(request.keys[:hits], request.context)
            if output and output.keys_to_store:
                manager.complete_store(output.keys_to_store, request.context)
            manager.on_request_finished(request.context)
        return found / asked

    def replay(self, name, capacity):
        text = subprocess.run([
            os.path.join(ROOT, "build", "bin", "neotier"), "kv", "replay",
            os.path.join(common.data_folder(), "mooncake", "conversation_trace.jsonl"), "--policy", name, "--capacity-blocks", str(capacity),
            "--history-blocks", str(max(4 * capacity, 4096)), "--engine-rules", "--json", "-", "-q"],
            check=True, capture_output=True, text=True).stdout
        figures = json.loads(text)
        return figures.get("result", figures)["prefix_hit_rate"]

    def test_as_replayed(self):
        """conversation trace: vLLM's cache with our policies finds what the replay under its rules finds; more than with its own"""
        if common.conversation() is None:
            self.skipTest("the shared conversation trace is not there")
        for capacity in (5000, 10000, 20000):
            own = {name: self.run_policy(name, capacity) for name in ("lru", "arc")}
            ours = {name: self.run_policy(name, capacity, MODULE + ".policies") for name in ("hazard", "s3-fifo")}
            print(f"# {capacity} chunks, vLLM {engine.__version__}: " + ", ".join(f"{k} {v:.4f}" for k, v in {**own, **ours}.items()),
                  flush=True)
            for name, rate in ours.items():
                self.assertAlmostEqual(rate, self.replay(name, capacity), delta=0.00005)
            self.assertGreater(ours["hazard"], max(own.values()))

    def test_unknown(self):
        """a policy that is none is refused by vLLM's factory, with ours named"""
        with self.assertRaisesRegex(AttributeError, "unknown policy 'hasard'.*hazard"):
            CPUOffloadingManager(num_chunks=8, cache_policy="hasard", cache_policy_module_path=MODULE + ".policies")
        with self.assertRaisesRegex(AttributeError, "knows the future"):
            CPUOffloadingManager(num_chunks=8, cache_policy="belady", cache_policy_module_path=MODULE + ".policies")

    def test_being_written(self):
        """a chunk that is being written is not evicted, whatever its worth"""
        manager = CPUOffloadingManager(num_chunks=4, cache_policy="lfu", cache_policy_module_path=MODULE + ".policies")

        def request(number, blocks):
            made = host.Request(number, [host.key(block) for block in blocks])
            manager.on_new_request(made.context)
            return made, manager.prepare_store(made.keys, made.context)

        written, output = request(0, (1, 2))
        for number in range(1, 4):
            ready, stored = request(number, (3, 4))
            manager.complete_store(stored.keys_to_store, ready.context)
            manager.on_request_finished(ready.context)
        _, other = request(4, (5, 6))
        self.assertEqual(set(other.evicted_keys), {host.key(3), host.key(4)}, "used three times, and yet")
        manager.complete_store(output.keys_to_store, written.context)
        self.assertIs(manager.lookup(host.key(1), written.context), host.LookupResult.HIT)

    def test_reset(self):
        """a reset forgets all, and the cache goes on"""
        manager = CPUOffloadingManager(num_chunks=8, cache_policy="hazard", cache_policy_module_path=MODULE + ".policies")
        for number in range(40):
            if number == 20:
                manager.reset_cache()
                self.assertIs(manager.lookup(host.key(18), host.Request(0, []).context), host.LookupResult.MISS)
            request = host.Request(number, [host.key(number), host.key(1000 + number)])
            manager.on_new_request(request.context)
            output = manager.prepare_store(request.keys, request.context)
            manager.complete_store(output.keys_to_store, request.context, number % 3 > 0)
            manager.on_request_finished(request.context)
        # Those whose copy failed (number % 3 == 0) are gone, the others of the last requests there.
        there = [number for number in range(40) if manager.lookup(host.key(number), host.Request(0, []).context) is host.LookupResult.HIT]
        self.assertEqual(there[-2:], [37, 38])
        self.assertTrue(all(number % 3 for number in there), there)


class Tiers(common.InFolder):
    def scheduler(self, *given, **more):
        made = host.Scheduler(*given, **more)
        self.addCleanup(made.close)  # also where the test fails
        return made

    def tier(self, tiers="dram=8M,ssd=128M", **more):
        return [{"type": "NeoTier", "module_path": MODULE, "tiers": tiers.replace("M,ssd=128M", f"M,ssd=128M:file={self.folder}/kv"),
                 "seed": 1, **more}]

    def ssd(self, size="128M", **more):
        return self.tier(f"ssd={size}:file={self.folder}/kv", **more)

    def closed(self, scheduler):
        """What every run has to leave."""
        tier = scheduler.settle().tier
        self.assertEqual((scheduler.wrong, scheduler.again), (0, 0))
        self.assertEqual((tier._requests, tier._jobs, tier._pinned, len(tier._ended)), ({}, 0, 0, 0))
        scheduler.close()
        self.assertEqual([name for name in os.listdir("/dev/shm") if f"neotier-{os.getpid()}" in name], [])
        self.assertEqual([thread.name for thread in threading.enumerate() if thread.name.startswith("neotier")], [])

    def test_found_again(self):
        """what the CPU's cache has lost comes back from the tier, whole, also after a restart"""
        requests = list(chat(200))
        alone = self.scheduler([]).run_in_turn(requests)
        alone_found = alone.found
        alone.close()
        scheduler = self.scheduler(self.ssd(pinned_share=1)).run_in_turn(requests)
        self.assertEqual(scheduler.tier.counters["dropped"], 0)
        self.assertGreater(scheduler.found, 1.3 * alone_found)
        self.assertGreater(scheduler.tier.counters["loaded"], 100)
        self.closed(scheduler)
        last = requests[-1]
        scheduler = self.scheduler(self.ssd(pinned_share=1), name="again").run([last])
        self.assertEqual(scheduler.served, [len(last)])
        self.closed(scheduler)

    def test_load_or_compute(self):
        """a request is told of what is sooner loaded than computed, of nothing else, and never waits for the decision"""
        blocks = [host.key(block) for block in range(40)]
        others = [[host.key(1000 * part + block) for block in range(200)] for part in (1, 2, 3)]
        for tokens_per_s, decide, found in ((10, True, 40), (1e12, True, 0), (1e12, False, 40)):
            with self.subTest(tokens_per_s=tokens_per_s, decide=decide):
                name = f"decide-{tokens_per_s:.0f}-{decide}"
                scheduler = self.scheduler(self.tier(tiers="dram=64M", pinned_share=1, prefill_tokens_per_s=tokens_per_s, decide=decide),
                                           name=name).run_in_turn([blocks, *others, blocks])
                self.assertEqual(scheduler.served[-1], found)
                self.assertEqual(scheduler.tier.counters["declined"], 40 - found)
                self.closed(scheduler)

    def test_undecided(self):
        """where it cannot be decided what is sooner, chunks are loaded; the log says why"""
        own = KvSession.plan
        KvSession.plan = lambda self, *given: (_ for _ in ()).throw(neotier.NeoTierError("no plan"))
        try:
            blocks, others = [host.key(block) for block in range(40)], [host.key(1000 + block) for block in range(400)]
            scheduler = self.scheduler(self.tier(tiers="dram=64M", pinned_share=1, decide=True)).run_in_turn([blocks, others, blocks])
        finally:
            KvSession.plan = own
        self.assertEqual(scheduler.served[-1], 40)
        self.closed(scheduler)

    def test_groups(self):
        """layers in several groups are kept apart"""
        scheduler = self.scheduler(self.ssd(pinned_share=1), groups=2, running=1)
        blocks = list(range(30))
        mixed = [host.key(block, group) for block in blocks for group in (0, 1)]
        for _ in range(2):
            scheduler.run_in_turn([mixed, *([host.key(1000 * part + block) for block in range(100)] for part in (1, 2, 3))])
        self.assertEqual(scheduler.served[4], 60)
        self.closed(scheduler)

    def test_other_layout(self):
        """chunks of another layout are not found, those of the same one are"""
        requests = list(chat(30))
        self.closed(self.scheduler(self.ssd(pinned_share=1)).run_in_turn(requests))
        for groups, found in ((2, 0), (1, len(requests[-1]))):
            scheduler = self.scheduler(self.ssd(pinned_share=1), name=f"again-{groups}", groups=groups).run(requests[-1:])
            self.assertEqual(scheduler.served, [found])
            self.closed(scheduler)

    def test_never_in_the_scheduler(self):
        """the scheduler's thread copies nothing and waits for nothing"""
        seen = collections.Counter()
        wrapped = {}

        def watch(kind, name):
            wrapped[kind, name] = own = getattr(kind, name)

            def called(self, *given, **more):
                seen[name, threading.get_ident() == main] += 1
                return own(self, *given, **more)

            setattr(kind, name, called)

        main = threading.get_ident()
        for kind, name in ((KvSession, "store"), (KvSession, "load"), (KvSession, "request"), (KvSession, "close"), (neotier.Load, "close"),
                           (KvStore, "session")):
            watch(kind, name)
        try:
            scheduler = self.scheduler(self.ssd()).run_in_turn(chat(150))
            time.sleep(0.2)
            now = dict(seen)
        finally:
            for (kind, name), own in wrapped.items():
                setattr(kind, name, own)
        self.closed(scheduler)
        self.assertEqual([name for name, by_main in now if by_main], [])
        self.assertEqual({name for name, _ in now}, {"store", "load", "request", "close", "session"})

    def test_a_slow_medium(self):
        """stores that take long pin a share of the CPU's cache, and no more; requests go on"""
        own = KvSession.store
        KvSession.store = lambda self, *given: (time.sleep(0.05), own(self, *given))[1]
        try:
            scheduler = self.scheduler(self.ssd(store_threads=1, pinned_share=0.25), cpu_bytes=8 << 20)
            most = 0
            for keys in chat(150):
                scheduler.run([keys])
                most = max(most, scheduler.tier._pinned)
        finally:
            KvSession.store = own
        self.assertGreater(scheduler.tier.counters["dropped"], 0)
        # One job may be larger, where nothing else is pinned.
        self.assertLessEqual(most, max(scheduler.spec.num_chunks // 4, scheduler.prefill))
        self.closed(scheduler)

    def test_a_corrupt_medium(self):
        """chunks that were changed on the disk are misses, once for each request, and are computed anew"""
        requests = list(chat(200))
        scheduler = self.scheduler(self.ssd()).run_in_turn(requests)
        path = os.path.join(self.folder, "kv")
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            for at in range(1 << 20, size, 65536):
                file.seek(at + 4096)
                file.write(b"not what was written")
        os.sync()
        scheduler.run_in_turn(requests)
        self.assertGreater(scheduler.tier.counters["failed"], 0)
        self.assertGreater(len(scheduler.failed), 0)
        self.closed(scheduler)

    def test_gone_and_back(self):
        """a tier that is gone gives misses, and hits again when it is back"""
        scheduler = self.scheduler(self.ssd(pinned_share=1), cpu_bytes=4 << 20, running=1)
        block = lambda at: [host.key(at * 100 + i) for i in range(30)]  # noqa: E731  the CPU's cache has room for 64 chunks

        def serve(*which):
            for at in which:
                scheduler.run([block(at)]).settle()
            return scheduler.served[-1]

        serve(0, 1, 2, 3)
        self.assertEqual(serve(0), 30)
        common.service(scheduler.tier._engine, False)
        self.assertEqual(serve(1), 0)
        self.assertEqual(serve(1), 30, "from the CPU's cache")
        common.service(scheduler.tier._engine, True)
        self.assertEqual(serve(2), 30)
        self.closed(scheduler)

    def test_more_than_the_cache(self):
        """a request that finds more chunks than the CPU's cache has room for is served with a part of them"""
        scheduler = self.scheduler(self.ssd(pinned_share=1), cpu_bytes=2 << 20, running=1, prefill=8)
        self.assertEqual(scheduler.spec.num_chunks, 32)
        keys = [host.key(block) for block in range(48)]
        for part in (0, 16, 32):  # each part as a request of its own: the tier has all of them then
            scheduler.run_in_turn([keys[part:part + 16]])
        scheduler.run_in_turn([[host.key(1000 + block) for block in range(30)], keys])
        self.assertEqual(scheduler.served[-1], 16, "half of it")
        self.closed(scheduler)

    def test_full(self):
        """a tier that is much too small keeps what its policy wants, and takes new chunks for ever"""
        scheduler = self.scheduler(self.ssd("24M"), cpu_bytes=4 << 20).run_in_turn(chat(300))
        stored = scheduler.tier.counters["stored"]
        scheduler.run_in_turn(chat(150, seed=2))
        self.assertGreater(scheduler.tier.counters["stored"], stored + 50)
        self.closed(scheduler)

    def test_reset_and_shutdown_under_way(self):
        """a reset, and a shutdown, wait for what is under way; what is asked after is a miss"""
        scheduler = self.scheduler(self.tier(), cpu_bytes=4 << 20).run(chat(60))
        for keys in chat(20, seed=3):
            scheduler.add(keys)
        for _ in range(5):
            scheduler.step()
        tier = scheduler.tier
        scheduler.storing, scheduler.running, scheduler.waiting = [], [], collections.deque()
        scheduler.manager.reset_cache()
        self.assertEqual(tier._jobs, 0)
        if hasattr(scheduler.manager, "on_reset_flushed"):
            scheduler.manager.on_reset_flushed()
        for keys in chat(20, seed=4):
            scheduler.add(keys)
        scheduler.step()
        scheduler.step()
        scheduler.close()
        self.assertIs(tier.lookup(host.key(1), host.Request(10**6, []).context), host.LookupResult.MISS)
        tier.shutdown()

    def test_events(self):
        """routers are told of what is here and what has gone: what was told last is true"""
        scheduler = self.scheduler(self.ssd("24M", enable_kv_events=True), cpu_bytes=4 << 20, extra={"events": True}).run_in_turn(chat(200))
        here = set()
        for event in [*scheduler.events, *scheduler.manager.take_events()]:
            if event.medium is not scheduler.tier.medium:
                continue
            (here.difference_update if event.removed else here.update)(event.keys)
        self.assertGreater(len(here), 50)
        order = sorted(here)
        own = zip(order, scheduler.tier._store.digest_keys(order))
        self.assertEqual({one for one, key in own if key in scheduler.tier._engine}, here)
        self.closed(scheduler)

    def test_wrong_configuration(self):
        """a configuration that is none is one line, and leaves nothing"""
        for tiers, words in ((self.tier(""), "tiers is missing"), (self.tier("tape=1G"), "no kind of tier 'tape'"),
                             (self.tier("ssd=64M"), "file=PATH is missing"), (self.ssd(pinned_share=0), "pinned_share"),
                             (self.ssd(write="often"), "write is back, selective, through, not 'often'"),
                             (self.ssd(decide="yes"), "decide is true or false, not 'yes'")):
            with self.assertRaisesRegex((ValueError, neotier.NeoTierError), words):
                self.scheduler(tiers)
        with self.assertRaisesRegex(ValueError, "write {dp} in its name"):
            self.scheduler(self.ssd(), data_parallel=2)
        scheduler = self.scheduler(self.tier(f"ssd=64M:file={self.folder}/kv-{{dp}}"), data_parallel=2)
        self.assertTrue(os.path.exists(f"{self.folder}/kv-0"))
        self.closed(scheduler)
        self.assertEqual(sorted(os.listdir(self.folder)), ["kv-0"])

    def test_faults(self):
        """long: requests while loads and stores fail, tiers go and come back: none waits for ever, no wrong byte, nothing grows"""
        rng = random.Random(7)
        store, load, plan = KvSession.store, KvSession.load, KvSession.plan

        def between(scheduler):
            dice = rng.random()
            if dice < 0.0005:
                common.service(scheduler.tier._engine, False)
            elif dice < 0.01:
                common.service(scheduler.tier._engine, True)

        scheduler = self.scheduler(self.tier(pinned_share=0.75, decide=True), cpu_bytes=8 << 20, running=8)
        KvSession.store, KvSession.load, KvSession.plan = (common.failing(own, rng, 0.05, (neotier.IoError,)) for own in (store, load, plan))
        sizes = []
        try:
            for part in range(10):
                scheduler.run(chat(REQUESTS // 10, conversations=100, seed=10 + part), between)
                sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        finally:
            KvSession.store, KvSession.load, KvSession.plan = store, load, plan
        self.assertEqual(len(scheduler.served), REQUESTS // 10 * 10)
        counters = scheduler.tier.counters
        print(f"# {len(scheduler.served)} requests: {scheduler.found} of {scheduler.asked} chunks found, {counters}, "
              f"{sizes[2] >> 10} MiB after 3 tenths, {sizes[-1] >> 10} at the end", flush=True)
        if REQUESTS >= 5000:  # fewer may be spared
            self.assertGreater(min(counters["failed"], counters["loaded"], counters["stored"]), 0)
        self.assertLess(sizes[-1] - sizes[2], 64 << 10)
        common.service(scheduler.tier._engine, True)
        self.closed(scheduler)


if __name__ == "__main__":
    tap.main()
