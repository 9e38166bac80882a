# SPDX-License-Identifier: Apache-2.0
"""What the engines' tests have in common: what they serve, and what goes wrong meanwhile. A block's number names all that is before it."""
import json
import os
import random
import tempfile
import time
import unittest

import neotier


def data_folder():
    return os.environ.get("NEOTIER_DATA") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "shared", "data")


def conversation():
    """[(seconds, [block])] of the shared trace, or None."""
    path = os.path.join(data_folder(), "mooncake", "conversation_trace.jsonl")
    if not os.path.exists(path):
        return None
    with open(path, encoding="ascii") as file:
        return [(r["timestamp"] / 1000, r["hash_ids"]) for r in map(json.loads, file)]


def chat(nr, conversations=40, seed=1, most=40):
    """Turns of conversations: each goes on from the one before, or is new."""
    rng = random.Random(seed)
    turns = [[] for _ in range(conversations)]
    number = seed * 10**7
    for _ in range(nr):
        at = rng.randrange(conversations)
        if len(turns[at]) > most or rng.random() < 0.05:
            turns[at] = []
        for _ in range(rng.randint(2, 12)):
            turns[at].append(number)
            number += 1
        yield list(turns[at])


def service(engine, here):
    """The SSD tier goes, or comes back."""
    try:
        engine.tier_service("ssd", here)
    except neotier.BusyError:  # pins hold blocks there; it is out all the same
        pass


def failing(own, rng, share, errors=(neotier.IoError, ValueError, MemoryError)):
    """A method that fails so often, and is slow as often."""
    def call(self, *given):
        dice = rng.random()
        if dice < share:
            raise errors[rng.randrange(len(errors))]("an injected fault")
        if dice < 2 * share:
            time.sleep(0.002)
        return own(self, *given)
    return call


class InFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(dir=os.environ.get("NEOTIER_TEST_DIR"))
        self.folder = holder.name
        self.addCleanup(holder.cleanup)
