# SPDX-License-Identifier: Apache-2.0
"""What the engines' tests serve: the shared trace, and conversations that are made up. A block's number names all that is before it."""
import json
import os
import random


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
