# SPDX-License-Identifier: Apache-2.0
"""Runs and recordings of programs, kept by what made them: for scripts/replay-accuracy and scripts/search-law."""
import hashlib
import json
import os
import shutil
import subprocess
import sys

import workloads
from outputs import end_with_parent

NEOTIER = "build/bin/neotier"
# The guest's memory holds the name of the program: another one moves a line to another set of a cache, and in the end one move in
# twenty is another.
FOLDER = "/tmp/neotier-replay"
BUILD = (NEOTIER, "build/bin/neotier-plugin.so", "build/kmod/neotier.ko")
KNOWN = ["gups-small", *workloads.PROGRAMS]


def options_and_command(name, length, seed):
    """Options of the machine, and the command, of a program. The replay's time is that of version 1 of the model."""
    if name == "gups-small":
        return (["--model-version", "1", "--rehearsal", "no", "--seed", str(seed), "--dram", "96M", "--cxl", "192M"],
                ["build/bin/gups", "--table", "240", "--hot", "32", "--updates", "20000000"])
    own = workloads.own_machine(name)
    machine = own._replace(length=None if workloads.PROGRAMS[name].get("fixed") else length)
    return workloads.hil_command(name, machine, seed)


def call(script, command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=end_with_parent)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        sys.exit(f"{script}: {' '.join(command[:4])} … ended with {done.returncode}: {last}")


def figures(file):
    with open(file, encoding="utf-8") as text:
        return json.load(text)


def build_identity():
    """What a run depends on besides its command: the module, the machine's plugin and the command itself."""
    digest = hashlib.sha256()
    for name in BUILD:
        with open(name, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


class Kept:
    """Runs and recordings of a program: files named by program, law, what was run and the build that ran it.

    Programs of ours run from `folder`, whose name is the same in every clone.
    """
    def __init__(self, script, work, name, build, folder, machine, command):
        self.script, self.build, self.folder = script, build, folder
        self.options, self.command = machine, ["--", *command]
        self.work, self.name = work, name

    def path(self, what, *more):
        digest = hashlib.sha256(json.dumps([self.build, self.options, self.command, more]).encode()).hexdigest()[:10]
        return f"{self.work}/{self.name}-{what}-{digest}"

    def command_here(self):
        return [shutil.copy(word, self.folder) if word.startswith("build/bin/") else word for word in self.command]

    def run(self, law, options):
        file = self.path(law, options) + ".json"
        if not os.path.exists(file):
            call(self.script, [NEOTIER, "hil", "run", *options, *self.options, "--json", file + ".part", *self.command_here()])
            os.rename(file + ".part", file)
        return figures(file)

    def recording(self):
        """The recording, and the run's figures."""
        base = self.path("none", "recorded")
        if not os.path.exists(base + ".json"):
            call(self.script, [NEOTIER, "hil", "record", "--timed", "--policy", "none", *self.options, "-o", base + ".rec.zst", "--json",
                               base + ".part", *self.command_here()])
            os.rename(base + ".part", base + ".json")
        return base + ".rec.zst", figures(base + ".json")
