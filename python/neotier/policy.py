# SPDX-License-Identifier: Apache-2.0
"""Placement policies for a host that keeps blocks and slots itself: neotier_slots.h with Python's manners."""
from __future__ import annotations

from collections.abc import Sequence

from ._native import ffi, lib
from .engine import KEY_BYTES, Buffer, Keys, _text, key_array, one_key
from .errors import FullError, check, not_null


class Policy:
    """capacity: slots. name: None is the recommended one (hazard). history: blocks remembered that have no slot; 0: four times the
    capacity. One thread at a time. Raises InvalidError in one line where there is no such policy."""

    def __init__(self, capacity: int, name: str | None = None, *, history: int = 0, block_bytes: int = 0, seed: int = 0) -> None:
        text = _text(name)
        config = ffi.new("struct neotier_slots_config *", {
            "struct_bytes": ffi.sizeof("struct neotier_slots_config"), "capacity": capacity, "name": text, "history": history,
            "block_bytes": block_bytes, "seed": seed})
        self._policy = ffi.gc(not_null(lib.neotier_slots_open(config)), lib.neotier_slots_close)

    def request(self, keys: Keys, *, first_position: int = 0, category: int = 0, cost_ns: Sequence[int] | None = None,
                now_ns: int = 0) -> int:
        """A request uses these blocks, in order: how many of them have a slot. now_ns 0: the machine's clock."""
        names, nr = key_array(keys)
        info = ffi.new("struct neotier_slots_request_info *", {
            "struct_bytes": ffi.sizeof("struct neotier_slots_request_info"), "category": category, "now_ns": now_ns,
            "first_position": first_position})
        if cost_ns is not None:
            if len(cost_ns) != nr:
                raise ValueError(f"cost_ns: {len(cost_ns)} of {nr} blocks")
            costs = ffi.new("uint64_t[]", list(cost_ns))
            info.cost_ns = costs
        return check(lib.neotier_slots_request(self._policy, names, nr, info))

    def insert(self, key: Buffer) -> None:
        """It has a slot now. ExistsError, FullError."""
        check(lib.neotier_slots_insert(self._policy, one_key(key)))

    def remove(self, key: Buffer) -> None:
        """NotFoundError."""
        check(lib.neotier_slots_remove(self._policy, one_key(key)))

    def pin(self, key: Buffer, pinned: bool = True) -> None:
        """While pinned it is not evicted. NotFoundError."""
        check(lib.neotier_slots_pin(self._policy, one_key(key), pinned))

    def evict(self, nr: int, spared: Keys = b"") -> list[bytes] | None:
        """Exactly so many blocks, best to evict first, none of them pinned or spared; they have no slot then. None: there are not so
        many, and nothing has changed."""
        names, nr_spared = key_array(spared)
        out = ffi.new("struct neotier_object_key[]", max(nr, 1))
        try:
            check(lib.neotier_slots_evict(self._policy, nr, names, nr_spared, out))
        except FullError:
            return None
        text = bytes(ffi.buffer(out, nr * KEY_BYTES)) if nr else b""
        return [text[i:i + KEY_BYTES] for i in range(0, len(text), KEY_BYTES)]
