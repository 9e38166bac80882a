# SPDX-License-Identifier: Apache-2.0
"""The one place that knows how vLLM's names differ between its releases. Tested with those that scripts/engines names."""
from __future__ import annotations

import dataclasses
import json
from typing import Any

try:
    from vllm.v1.kv_offload.base import (Locality, LookupResult, Medium, OffloadingEvent, ReqContext, RequestOffloadingContext,
                                         get_offload_group_idx)
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
except ImportError as error:
    raise ImportError(f"neotier.vllm: this vLLM takes no tiers or cache policies of others ({error}); it takes vLLM 0.32 or newer") from None

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:
    CacheHitSource = None  # type: ignore[assignment,misc]

__all__ = ["CachePolicy", "Locality", "LookupResult", "Medium", "OffloadingEvent", "ReqContext", "RequestOffloadingContext",
           "SecondaryTierManager", "TransferJob", "job_result", "hit_source", "group_of", "category", "positions", "position", "layout",
           "chunk_tokens"]

_RESULT_FIELDS = {field.name for field in dataclasses.fields(JobResult)}
group_of = get_offload_group_idx


def job_result(**fields: Any) -> JobResult:
    """Without the fields that this release does not have."""
    return JobResult(**{name: value for name, value in fields.items() if name in _RESULT_FIELDS})


def hit_source(disk: bool):
    """Where hits are said to come from in vLLM's metrics; None where it does not ask."""
    if CacheHitSource is None:
        return None
    return CacheHitSource.DISK if disk else CacheHitSource.HOST


def positions(context: ReqContext) -> dict[bytes, int]:
    """All of the request's keys that the scheduler knows, with the token at which each ends."""
    return getattr(context, "_offload_key_positions", {})


def category(context: ReqContext) -> int:
    """The kind of request that its sender told, or 0. A stranger wrote it."""
    told = (context.kv_transfer_params or {}).get("neotier_category", 0)
    return told if type(told) is int and 0 <= told < 2**32 else 0


def position(context: ReqContext, key: bytes) -> int | None:
    return context.get_offload_key_position(key)


def chunk_tokens(spec: Any) -> list[int]:
    """Tokens of a chunk, by group."""
    return [group.tokens_per_block * spec.config.cache.blocks_per_chunk for group in spec.config.groups]


def layout(spec: Any, slot_bytes: int) -> str:
    """What makes a chunk's bytes unusable for another engine, as one text: equal text, exchangeable bytes."""
    config, parallel = spec.config, spec.config.parallel
    # Bytes that do not depend on how the model is split may be shared by engines that split it otherwise.
    alone = parallel.is_parallelism_agnostic or config.replicated_layout
    split = [] if alone else [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    return json.dumps({
        "engine": "vllm", "model": config.model.name, "dtype": str(config.model.dtype), "hash_tokens": config.cache.tokens_per_hash,
        "blocks": config.cache.blocks_per_chunk, "split": split, "replicated": bool(config.replicated_layout),
        "layout": config.kv_cache_layout if getattr(config, "canonical_layout", False) else None, "slot_bytes": slot_bytes,
        "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
    }, sort_keys=True, separators=(",", ":"))
