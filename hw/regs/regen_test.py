#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
"""hw/regs/regen: its outputs are committed as it writes them, and a bad description ends in one line."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
REGEN = HERE / "regen"
GOOD = (HERE / "neoprof.toml").read_text(encoding="utf-8")


def regen(*args):
    return subprocess.run([sys.executable, REGEN, *args], capture_output=True, text=True, check=False)


class Regen(unittest.TestCase):
    def refused(self, old, new, word):
        self.assertIn(old, GOOD)
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "bad.toml"
            source.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
            done = regen("--source", str(source), "--root", folder)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(word, done.stderr)
            self.assertFalse((pathlib.Path(folder) / "include").exists())

    def test_committed_outputs_are_current(self):
        done = regen("--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_check_names_each_output_that_differs(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(regen("--root", folder).returncode, 0)
            self.assertEqual(regen("--root", folder, "--check").returncode, 0)
            header = pathlib.Path(folder) / "include" / "neoprof_regs.h"
            header.write_text(header.read_text(encoding="utf-8") + "\n", encoding="utf-8")
            done = regen("--root", folder, "--check")
            self.assertEqual(done.returncode, 1)
            self.assertIn("include/neoprof_regs.h", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_overlapping_fields(self):
        self.refused("bits = [15, 8], access", "bits = [15, 3], access", "COMMON_CAP0.INSTANCES")

    def test_overlapping_registers(self):
        self.refused("offset = 0x0018", "offset = 0x0010", "overlaps")

    def test_bits_out_of_range(self):
        self.refused("bits = [63, 48]", "bits = [64, 48]", "not within 63 to 0")

    def test_reset_too_wide(self):
        self.refused("reset = 0x2010", "reset = 0x100000000", "does not fit")

    def test_duplicate_names(self):
        self.refused('name = "CAP1"', 'name = "CAP0"', "duplicate")

    def test_unknown_access(self):
        self.refused('access = "W1C"', 'access = "W2C"', "W2C")

    def test_not_toml(self):
        self.refused("[block]", "[block", "Expected")


if __name__ == "__main__":
    unittest.main()
