# SPDX-License-Identifier: Apache-2.0
"""The one place that knows how vLLM's names differ between its releases. Tested with those that scripts/engines names."""
from __future__ import annotations

import dataclasses
import json
from typing import Any

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                                                                   KVConnectorWorkerMetadata)
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs
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

__all__ = ["CachePolicy", "KVConnectorBase_V1", "KVConnectorMetadata", "KVConnectorPromMetrics", "KVConnectorRole",
           "KVConnectorStats", "KVConnectorWorkerMetadata", "Locality", "LookupResult", "Medium", "OffloadingEvent", "ReqContext",
           "RequestOffloadingContext", "SecondaryTierManager", "TransferJob", "job_result", "hit_source", "group_of", "category", "positions", "position", "layout",
           "chunk_tokens", "block_tokens", "block_ids", "identity", "request_category"]

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
    """The kind of request that its sender told, or 0."""
    return request_category(context.kv_transfer_params)


def request_category(params: Any) -> int:
    """Of a request's kv_transfer_params, which a stranger wrote."""
    told = params.get("neotier_category", 0) if isinstance(params, dict) else 0
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


# ---- of the KV connector

_SERVED = (FullAttentionSpec, MLAAttentionSpec)


def block_tokens(config: Any, cache: Any) -> int:
    """Tokens of a block, all ranks of a context-parallel group together. ValueError, one line: a cache that the connector does not
    serve."""
    if len(cache.kv_cache_groups) != 1:
        raise ValueError(f"neotier.vllm: this model has {len(cache.kv_cache_groups)} groups of KV cache, the connector serves one; "
                         "--disable-hybrid-kv-cache-manager may make it one")
    spec = cache.kv_cache_groups[0].kv_cache_spec
    specs = list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
    for one in specs:
        # Others drop blocks out of the middle of a request, or keep what is no block.
        if type(one) not in _SERVED:
            raise ValueError(f"neotier.vllm: the connector serves full attention, and this model's KV cache is {type(one).__name__}")
    parallel = config.parallel_config
    tokens = specs[0].block_size * parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size
    hashed = getattr(cache, "hash_block_size", None) or tokens
    if hashed != tokens:
        raise ValueError(f"neotier.vllm: vLLM hashes {hashed} tokens and keeps {tokens} in a block; the connector wants them equal")
    return tokens


def block_ids(output: Any, manager: Any, request_id: str) -> list[int]:
    """All blocks of a request that is scheduled in this step."""
    state = getattr(output, "kv_connector_block_state", None)
    ids = state.get_block_ids(request_id) if state is not None else None
    return list((ids if ids is not None else manager.get_block_ids(request_id))[0])


def identity(config: Any) -> dict[str, Any]:
    """What makes a block's bytes unusable for another engine, besides what its tensors show."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    inner = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    return {"engine": "vllm", "connector": 1, "model": model.model, "revision": model.revision, "dtype": str(model.dtype),
            "quantization": str(model.quantization), "cache_dtype": str(cache.cache_dtype),
            "split": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.prefill_context_parallel_size,
                      parallel.decode_context_parallel_size, parallel.cp_kv_cache_interleave_size],
            "stage": parallel.rank % parallel.world_size // inner}
