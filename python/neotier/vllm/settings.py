# SPDX-License-Identifier: Apache-2.0
"""What both sides of the KV connector are made with; connector.py reads and checks it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """tiers: with their "{rank}" and "{dp}". timeout: seconds. blocks: of the paged cache. world: workers that share a model. layerwise:
    blocks are loaded in the step that uses them, layer by layer; else between steps, and the request waits. written_once: a step writes
    each layer once, so that it may be saved then."""

    tiers: str
    write: Any
    store_after: int
    tokens_per_s: float
    timeout: float
    unfinished: int
    staging_bytes: int
    max_objects: int
    seed: int
    block_tokens: int
    blocks: int
    rank: int
    world: int
    dp: int
    identity: dict[str, Any]
    layerwise: bool = True
    written_once: bool = True
