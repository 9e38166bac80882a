# SPDX-License-Identifier: Apache-2.0
"""Tensors in the host's memory, with the interface of kv.GpuMemory: what vLLM has on CPUs."""
from __future__ import annotations

import ctypes
from typing import Any

from ..engine import Keys
from ..kv import KvSession, KvStore, Load, Pieces, PlanOptions, Stored


class HostLoad:
    """As a load to a GPU's memory. Nothing waits but the caller."""

    def __init__(self, load: Load) -> None:
        self._load = load

    @property
    def blocks(self) -> int:
        return self._load.blocks

    @property
    def good(self) -> int:
        return self._load.good

    def wait(self, timeout: float | None = None, layer: int | None = None, stream: int | None = None) -> None:
        self._load.wait(timeout, layer)

    def cancel(self) -> None:
        self._load.cancel()

    def close(self) -> None:
        self._load.close()


class HostSave:
    """Nothing is copied before behind(): finish() without it stores from where the blocks lie."""

    def __init__(self, session: KvSession, keys: Keys, data: Pieces, first_position: int, sizes: list[int]) -> None:
        self._given = session, keys, first_position
        self._data: Any = data
        self._sizes = sizes

    def layer(self, layer: int, stream: int = 0) -> None:
        pass

    def behind(self, stream: int = 0) -> None:
        if isinstance(self._data, Pieces):
            blocks = len(self._data) // len(self._sizes)
            self._data = [ctypes.string_at(address, self._sizes[at // blocks]) for at, address in enumerate(self._data.addresses)]

    def finish(self) -> Stored:
        session, keys, first_position = self._given
        return session.store(keys, self._data, first_position)

    def close(self) -> None:
        self._data = None


class HostMemory:
    """Loads into and saves from tensors of the host."""

    at_once = True  # a save ends with its step: nothing orders what is written to the blocks after it

    def __init__(self, store: KvStore) -> None:
        self._store = store

    def load(self, session: KvSession, keys: Keys, into: Pieces, first_position: int = 0, decide: PlanOptions | None = None,
             stream: int = 0) -> HostLoad:
        return HostLoad(session.load(keys, into, first_position, decide))

    def save(self, session: KvSession, keys: Keys, data: Pieces, first_position: int = 0) -> HostSave:
        return HostSave(session, keys, data, first_position, self._store.piece_bytes)

    def close(self) -> None:
        pass
