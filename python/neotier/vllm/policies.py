# SPDX-License-Identifier: Apache-2.0
"""NeoTier's placement policies as cache policies of vLLM's CPU tier: `"eviction_policy": "hazard", "cache_policy_module_path":
"neotier.vllm.policies"`. Any KV policy of `neotier kv policies` can be named that vLLM has none of that name of.

vLLM's rules hold: what a request lacks is stored whole, in the place of as many other chunks, or not at all.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..policy import Policy
from . import names


def _own(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


@dataclass
class _Told:
    """The part of a request that the policy knows of; kept in the request's context."""

    owner: Any
    keys: set[bytes]


class NeoTierPolicy(names.CachePolicy):
    """A cache policy by the name of its class. cache_capacity: chunks."""

    policy_name: str | None = None

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Forgets all, what has been learned as well: vLLM asks for it when the model's weights change."""
        self._policy = Policy(self.cache_capacity, self.policy_name) if self.cache_capacity else None
        self.chunks: dict[bytes, Any] = {}
        self._key_of: dict[bytes, bytes] = {}  # vLLM's key of each that has a slot

    def get(self, key: bytes) -> Any | None:
        return self.chunks.get(key)

    def insert(self, key: bytes, chunk: Any, req_context: Any = None) -> None:
        own = _own(key)
        self._policy.insert(own)
        self.chunks[key] = chunk
        self._key_of[own] = key
        # Not ready, it is the target of a copy.
        if chunk.ref_cnt != 0:
            self._policy.pin(own)

    def remove(self, key: bytes) -> None:
        del self.chunks[key]
        own = _own(key)
        del self._key_of[own]
        self._policy.remove(own)

    def mark_evictable(self, key: bytes) -> None:
        self._policy.pin(_own(key), False)

    def mark_non_evictable(self, key: bytes) -> None:
        self._policy.pin(_own(key))

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        if n == 0:
            return []
        victims = self._policy.evict(n, [_own(key) for key in protected if key in self.chunks])
        if victims is None:
            return None
        evicted = [self._key_of.pop(own) for own in victims]
        return [(key, self.chunks.pop(key)) for key in evicted]

    # ---- uses: a request is told once, with all of its keys that the scheduler knows, before anything of it is stored

    def _tell(self, keys: Iterable[bytes], context: Any) -> None:
        if self._policy is None or context is None:
            return
        told = context.get_state(_Told)
        if told is None or told.owner is not self._policy:
            told = _Told(self._policy, set())
            context.set_state(told)
        keys = [key for key in keys if key not in told.keys]
        if not keys:
            return
        known = names.positions(context)
        lacking = {key: known.get(key, 0) for key in (*known, *keys) if key not in told.keys}
        for group in sorted({names.group_of(key) for key in lacking}):
            own = sorted((end, key) for key, end in lacking.items() if names.group_of(key) == group)
            before = sum(names.group_of(key) == group for key in told.keys)
            self._policy.request([_own(key) for _, key in own], first_position=before, category=names.category(context))
        told.keys.update(lacking)

    def on_request_access(self, keys: Iterable[bytes], req_context: Any) -> None:
        self._tell(keys, req_context)

    def on_store_miss(self, keys: Iterable[bytes], req_context: Any) -> None:
        self._tell(keys, req_context)

    def on_request_finished(self, key_groups: Sequence[Sequence[bytes]], insertion_only_keys: set[bytes], reused_keys: set[bytes],
                            req_context: Any) -> None:
        for keys in key_groups:
            self._tell(keys, req_context)

    def touch(self, keys: Iterable[bytes], req_context: Any) -> None:
        self._tell(keys, req_context)


def __getattr__(name: str) -> type[NeoTierPolicy]:
    """The class of a policy, by the name that vLLM's configuration gives."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        Policy(1, name)
    except Exception as error:
        raise AttributeError(str(error)) from None
    made = type(name, (NeoTierPolicy,), {"policy_name": name, "__module__": __name__, "__doc__": f"NeoTier's policy {name}."})
    globals()[name] = made
    return made
