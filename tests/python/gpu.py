#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV blocks in and out of a GPU's memory, from Python. TAP. $NEOTIER_LIBRARY is the library on the stand-in for CUDA's run time, in
which any memory of the process is a GPU's; scripts/bench-gpu does the same on a GPU."""
import array
import ctypes
import gc
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import neotier  # noqa: E402
import tap  # noqa: E402

PIECE, LAYERS, NR = 4096, 3, 8


class GpuMemory(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR"))
        self.addCleanup(self.folder.cleanup)

    def open(self, tiers="dram=16M", staging=NR, **settings):
        self.engine = neotier.Engine(tiers, events=65536, discard=1)
        self.addCleanup(self.engine.close)
        self.store = neotier.KvStore(self.engine, layers=LAYERS, piece_bytes=[PIECE] * 2 * LAYERS, layer_pieces=[2] * LAYERS,
                                     recompute_ns=1, **settings)
        self.session = self.store.session(self.store.tenant("a"))
        self.keys = [number.to_bytes(16, "little") for number in range(1, NR + 1)]
        return neotier.GpuMemory(self.store, staging_bytes=staging * 2 * LAYERS * PIECE)

    def cache(self, fill=None):
        """Memory, and where its pieces lie: [piece][block]."""
        size = 2 * LAYERS * NR * PIECE
        memory = ctypes.create_string_buffer(os.urandom(size) if fill is None else bytes([fill]) * size, size)
        base = ctypes.addressof(memory)
        return memory, neotier.Pieces([base + at * PIECE for at in range(2 * LAYERS * NR)], PIECE, memory)

    def save(self, gpu, pieces):
        with gpu.save(self.session, self.keys, pieces) as save:
            self.assertEqual(save.blocks, NR)
            for layer in range(LAYERS):
                save.layer(layer)
            save.behind()
            return save.finish()

    def test_there_and_back(self):
        """from DRAM, CXL memory and an SSD, by streams' waits and by the host's"""
        for tiers in ("dram=16M", "cxl=16M", f"ssd=16M:file={self.folder.name}/tier"):
            gpu = self.open(tiers)
            memory, pieces = self.cache()
            self.assertEqual(self.save(gpu, pieces), neotier.Stored(NR, 0, 0, 0))
            for stream in (0, None):
                again, into = self.cache(7)
                with gpu.load(self.session, self.keys, into) as load:
                    self.assertEqual(load.blocks, NR)
                    for layer in range(LAYERS):
                        load.wait(10, layer=layer, stream=stream)
                    load.wait(10)
                    self.assertEqual(load.good, NR)
                    self.assertEqual(again.raw, memory.raw)
            self.engine.close()

    def test_larger_than_staging(self):
        """a load goes through one block's room, beside a save that has all it can get; the save is cut short"""
        gpu = self.open(f"ssd=16M:file={self.folder.name}/tier", staging=1)
        data = [os.urandom(PIECE) for _ in range(2 * LAYERS * NR)]
        self.assertEqual(self.session.store(self.keys, data).stored, NR)
        _, pieces = self.cache()
        with gpu.save(self.session, [bytes([9]) * 16] * NR, pieces) as save:
            self.assertEqual(save.blocks, 1)
            for stream in (0, None):
                again, into = self.cache(7)
                with gpu.load(self.session, self.keys, into) as load:
                    self.assertEqual(load.blocks, NR)
                    for layer in range(LAYERS):
                        load.wait(10, layer=layer, stream=stream)
                    load.wait(10)
                    self.assertEqual(load.good, NR)
                    self.assertEqual(again.raw, b"".join(data))

    def test_addresses_in_a_buffer(self):
        """as a list or as numbers of 64 bits"""
        gpu = self.open()
        memory, pieces = self.cache()
        many = neotier.Pieces(array.array("Q", pieces.addresses), PIECE, memory)
        self.assertEqual(self.save(gpu, many).stored, NR)
        again, into = self.cache(7)
        with gpu.load(self.session, self.keys, neotier.Pieces(memoryview(array.array("Q", into.addresses)), PIECE, again)) as load:
            load.wait(10)
        self.assertEqual(again.raw, memory.raw)
        for wrong in (array.array("I", [1] * len(pieces)), memoryview(array.array("Q", [1] * 2 * len(pieces)))[::2]):
            with self.assertRaisesRegex(ValueError, "addresses: a list, or a buffer of 64-bit numbers"):
                gpu.save(self.session, self.keys, neotier.Pieces(wrong, PIECE, memory))
        with self.assertRaisesRegex(ValueError, "buffers for 8 blocks of 6 pieces"):
            gpu.load(self.session, self.keys, neotier.Pieces([1, 2], PIECE, memory))

    def test_decides(self):
        """as a load to the host's memory does"""
        gpu = self.open()
        memory, pieces = self.cache()
        self.save(gpu, pieces)
        self.session.request(self.keys, cost_ns=[1] * NR)
        _, into = self.cache(7)
        with gpu.load(self.session, self.keys, into, decide=neotier.PlanOptions()) as load:
            self.assertEqual((load.plan.found, load.plan.load, load.blocks), (NR, 0, 0))

    def test_not_finished(self):
        """what is not finished is not stored; a layer goes once"""
        gpu = self.open()
        _, pieces = self.cache()
        with gpu.save(self.session, self.keys, pieces) as save:
            save.layer(0)
            with self.assertRaises(neotier.ExistsError):
                save.layer(0)
            with self.assertRaisesRegex(neotier.InvalidError, "layer 3 of 3"):
                save.layer(LAYERS)
            with self.assertRaisesRegex(neotier.InvalidError, "a layer of the save is missing"):
                save.finish()
        self.assertEqual(self.session.request(self.keys), 0)

    def test_hosts_load(self):
        """no stream waits for a load to the host's memory"""
        self.open()
        data = [os.urandom(PIECE) for _ in range(2 * LAYERS * NR)]
        self.session.store(self.keys, data)
        with self.session.load(self.keys, [bytearray(PIECE) for _ in data]) as load:
            with self.assertRaises(neotier.UnsupportedError):
                load.wait(layer=0, stream=0)
            with self.assertRaises(ValueError):
                load.wait(stream=0)

    def test_closing(self):
        """in any order, and with loads and saves open; what is closed says so"""
        for close in (lambda gpu: gpu.close(), lambda gpu: self.store.close(), lambda gpu: self.engine.close()):
            gpu = self.open()
            memory, pieces = self.cache()
            self.save(gpu, pieces)
            again, into = self.cache(7)
            load, save = gpu.load(self.session, self.keys, into), gpu.save(self.session, self.keys, pieces)
            save.layer(0)
            close(gpu)
            with self.assertRaises(ValueError):
                gpu.load(self.session, self.keys, into)
            load.close()
            save.close()
            self.engine.close()
        gpu = self.open()
        del gpu  # goes with its store
        gc.collect()
        self.engine.close()

    def test_no_such_device(self):
        """in one line"""
        self.open()
        with self.assertRaisesRegex(neotier.NeoTierError, "^GPU 9: device: .*; nvidia-smi lists those that are there$"):
            neotier.GpuMemory(self.store, 9)


if __name__ == "__main__":
    tap.main()
