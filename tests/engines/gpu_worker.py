#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker's side of vLLM's KV connector on a GPU: steps as vLLM's model runner makes them, with tensors of PyTorch's on the device, every
byte compared. TAP. Run by hand where there is a GPU, with PyTorch and vLLM: of vLLM it imports names only, and runs nothing.
`--device cpu` runs it on the host's memory.

    PYTHONPATH=python NEOTIER_LIBRARY=build/lib/libneotier.so tests/engines/gpu_worker.py
"""
import argparse
import logging
import os
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import tap  # noqa: E402
import torch  # noqa: E402

from neotier.connector import SparingLog  # noqa: E402
from neotier.vllm import work  # noqa: E402
from neotier.vllm.messages import Begun, Run, Work  # noqa: E402
from neotier.vllm.settings import Settings  # noqa: E402

BLOCKS, TOKENS, LAYERS = 512, 16, 12
DEVICE = "cuda"  # --device


def settings(tiers, **others):
    given = {"tiers": tiers, "write": "through", "store_after": 1, "tokens_per_s": 10000, "timeout": 30, "unfinished": 32,
             "staging_bytes": 256 << 20, "max_objects": 0, "seed": 0, "block_tokens": TOKENS, "blocks": BLOCKS, "rank": 0, "world": 1,
             "dp": 0, "identity": {"model": "none"}}
    return Settings(**{**given, **others})


class OnADevice(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR"))
        self.addCleanup(self.folder.cleanup)
        self.log = SparingLog(logging.getLogger("gpu"), "test")
        self.step = 0

    def open(self, tiers, shape=(2, BLOCKS, TOKENS, 4, 128), **others):
        self.tensors = {f"model.layers.{layer}.attn": torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
                        for layer in range(LAYERS)}
        self.dim = shape.index(BLOCKS)
        worker = work.Worker(settings(tiers, **others), self.log)
        worker.register(self.tensors)
        self.addCleanup(worker.close)
        return worker

    def hashes(self, request, nr):
        return [request.to_bytes(8, "little") + at.to_bytes(24, "little") for at in range(nr)]

    def content(self, request, layer, nr):
        """Of a request's blocks in that layer, block by block."""
        shape = [size for at, size in enumerate(self.tensors["model.layers.0.attn"].shape) if at != self.dim]
        made = torch.Generator(device=DEVICE).manual_seed(request * 1000 + layer)
        return torch.randn((nr, *shape), generator=made, device=DEVICE, dtype=torch.float32).to(torch.bfloat16)

    def put(self, request, layer, blocks):
        tensor = self.tensors[f"model.layers.{layer}.attn"].movedim(self.dim, 0)
        tensor[torch.tensor(blocks, device=DEVICE)] = self.content(request, layer, len(blocks))

    def has(self, request, layer, blocks):
        tensor = self.tensors[f"model.layers.{layer}.attn"].movedim(self.dim, 0)
        return torch.equal(tensor[torch.tensor(blocks, device=DEVICE)], self.content(request, layer, len(blocks)))

    def run_step(self, worker, loads=(), saves=(), check=True):
        """What the model runner does. loads, saves: (request, blocks)."""
        self.step += 1
        runs = [[Run(str(request), 0, self.hashes(request, len(blocks)), blocks) for request, blocks in some] for some in (loads, saves)]
        worker.begin(Work(step=self.step, judged=self.step - 1, begun=[Begun(run.request, run.hashes, 0) for run in runs[0] + runs[1]],
                          loads=runs[0], saves=runs[1]))
        worker.start_loads()
        good = []
        weights = torch.randn(1024, 1024, device=DEVICE)
        for layer in range(LAYERS):
            name = f"model.layers.{layer}.attn"
            worker.wait_layer(name)
            # Attention reads here, on the stream that waits.
            if check:
                good += [self.has(request, layer, blocks) for request, blocks in loads]
            weights = weights @ weights * .01
            for request, blocks in saves:
                self.put(request, layer, blocks)
            worker.save_layer(name)
        worker.end_step()
        # The next step may overwrite the blocks at once.
        for _, blocks in saves:
            for tensor in self.tensors.values():
                tensor.movedim(self.dim, 0)[torch.tensor(blocks, device=DEVICE)] = 7
        return good

    def settle(self, worker, nr):
        deadline = time.monotonic() + 30
        while worker.counters["stored"] + worker.counters["present"] < nr and time.monotonic() < deadline:
            worker.report()
            time.sleep(.01)

    def test_steps(self):
        """saved and loaded by layers, in both layouts, from DRAM, and from an SSD"""
        for shape in ((2, BLOCKS, TOKENS, 4, 128), (BLOCKS, 2, TOKENS, 4, 128), (BLOCKS, TOKENS, 576)):
            file = f"file={self.folder.name}/{len(shape)}-{shape[0]}"
            for tiers in ("dram=512M", f"ssd=1G:{file}", f"dram=16M,ssd=1G:{file}-both"):
                with self.subTest(shape=shape, tiers=tiers):
                    worker = self.open(tiers, shape)
                    order = torch.randperm(BLOCKS).tolist()
                    requests = {r: order[r * 40:r * 40 + 30] for r in range(1, 6)}
                    for request, blocks in requests.items():
                        self.run_step(worker, saves=[(request, blocks)])
                    self.settle(worker, 150)
                    self.assertEqual(worker.counters["stored"], 150)
                    # To other places, while others are saved.
                    for request, blocks in requests.items():
                        places = torch.randperm(200).tolist()
                        there = [order[200 + at] for at in places[:30]]
                        other = [order[200 + at] for at in places[30:40]]
                        good = self.run_step(worker, loads=[(request, there)], saves=[(100 + request, other)])
                        self.assertEqual(good, [True] * LAYERS)
                        self.assertEqual(worker.load_errors(), set())
                    self.assertEqual(worker.counters["loaded"], 150)
                    self.assertEqual(worker.counters["failed"], 0)
                    worker.close()

    def test_between_steps(self):
        """a request waits for its blocks while others go on"""
        worker = self.open(f"dram=16M,ssd=1G:file={self.folder.name}/tier", layerwise=False)
        blocks = list(range(0, 60))
        self.run_step(worker, saves=[(1, blocks)])
        self.settle(worker, 60)
        there = list(range(100, 160))
        self.run_step(worker, loads=[(1, there)], check=False)
        steps = 0
        while "1" not in worker.arrived():
            steps += 1
            self.assertLess(steps, 1000)
            self.run_step(worker, saves=[(1000 + steps, [400 + steps % 100])])
        self.assertEqual(worker.load_errors(), set())
        for layer in range(LAYERS):
            self.assertTrue(self.has(1, layer, there))

    def test_larger_than_staging(self):
        """a prompt on an SSD of more blocks than staging takes at once comes whole, in a step and between steps"""
        tiers = f"ssd=1G:file={self.folder.name}/tier"
        worker = self.open(tiers)
        blocks = list(range(0, 120))
        self.run_step(worker, saves=[(1, blocks)])
        self.settle(worker, 120)
        worker.close()
        there = list(range(200, 320))
        for layerwise in (True, False):
            worker = self.open(tiers, staging_bytes=3 << 20, layerwise=layerwise)
            good = self.run_step(worker, loads=[(1, there)], check=layerwise)
            self.assertEqual(good, [True] * LAYERS * layerwise)
            while not layerwise and "1" not in worker.arrived():
                self.run_step(worker)
            self.assertEqual(worker.load_errors(), set())
            for layer in range(LAYERS):
                self.assertTrue(self.has(1, layer, there))
            worker.close()

    def test_not_there(self):
        """blocks that are not there are said to have failed, and the others are right"""
        worker = self.open("dram=512M")
        self.run_step(worker, saves=[(1, list(range(20)))])
        self.settle(worker, 20)
        worker.begin(Work(step=50, judged=49, begun=[], loads=[Run("1", 0, self.hashes(1, 25), list(range(100, 125)))]))
        worker.start_loads()
        for layer in range(LAYERS):
            worker.wait_layer(f"model.layers.{layer}.attn")
        worker.end_step()
        self.assertEqual(worker.load_errors(), set(range(120, 125)))
        for layer in range(LAYERS):
            tensor = self.tensors[f"model.layers.{layer}.attn"].movedim(self.dim, 0)
            self.assertTrue(torch.equal(tensor[100:120], self.content(1, layer, 20)))

    def test_speed(self):
        """how long the calls of a step take"""
        worker = self.open("dram=2G", shape=(2, BLOCKS, TOKENS, 8, 128))
        blocks = list(range(256))
        self.run_step(worker, saves=[(1, blocks)])
        self.settle(worker, 256)
        times = []
        for _ in range(5):
            worker.begin(Work(step=60, judged=59, loads=[Run("1", 0, self.hashes(1, 256), blocks)]))
            begin = time.perf_counter()
            worker.start_loads()
            started = time.perf_counter() - begin
            for layer in range(LAYERS):
                worker.wait_layer(f"model.layers.{layer}.attn")
            waited = time.perf_counter() - begin
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            came = time.perf_counter() - begin
            worker.end_step()
            times.append((came, started, waited))
        came, started, waited = min(times)
        size = 256 * worker._cache.block_bytes
        print(f"# {size >> 20} MiB: start_load_kv {started * 1e3:.2f} ms, all layers asked for {waited * 1e3:.2f} ms, there "
              f"{came * 1e3:.2f} ms, {size / came / 1e9:.1f} GB/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    DEVICE = parser.parse_args().device
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("1..0 # SKIP skipped: no GPU here")
        sys.exit(0)
    sys.argv = sys.argv[:1]
    tap.main()
