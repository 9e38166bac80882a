# SPDX-License-Identifier: Apache-2.0
"""What both sides of the KV connector are made with; connector.py reads and checks it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """tiers: with their "{rank}" and "{dp}". timeout: seconds. blocks: of the paged cache. world: workers that share a model. layerwise:
    layers are written once a step, so that each may be saved when it is."""

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
