# SPDX-License-Identifier: Apache-2.0
"""The KV connector's counters in vLLM's log and in its Prometheus metrics: blocks, each rank's counted for themselves."""
from __future__ import annotations

from typing import Any

from . import names

# The scheduler's, of which there is one.
PLANNED = {
    "asked": "Blocks of new requests that were not in vLLM's own cache.",
    "hit": "Of those asked for: blocks that were to be loaded from NeoTier's tiers.",
    "offered": "Blocks that were computed, and were to be stored.",
}
# The workers'.
MOVED = {
    "loaded": "Blocks that were loaded.",
    "failed": "Blocks that were to be loaded and did not come. They are computed.",
    "stored": "Blocks that were stored.",
    "present": "Blocks that were offered and were there already.",
    "passed": "Blocks that the policy or store_after let pass.",
    "refused": "Blocks that found no room, or could not be stored.",
    "dropped": "Blocks that were not stored, as too many were on their way (unfinished_saves).",
    "withheld": "Blocks that were not stored, as what they were computed from did not come.",
}
_ALL = {**PLANNED, **MOVED}


class Stats(names.KVConnectorStats):
    """data: what was counted since the last time, by name. It crosses processes as that dictionary."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: names.KVConnectorStats) -> "Stats":
        for name, nr in other.data.items():
            self.data[name] = self.data.get(name, 0) + nr
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"NeoTier blocks {name}": self.data[name] for name in _ALL if self.data.get(name)}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class Since:
    """What of counters has not been told yet. Thread safety: none."""

    def __init__(self, which: dict[str, str]) -> None:
        self._told = dict.fromkeys(which, 0)

    def take(self, counters: dict[str, int]) -> Stats | None:
        """None: nothing."""
        new = {name: counters[name] - told for name, told in self._told.items() if counters[name] != told}
        self._told.update((name, counters[name]) for name in new)
        return Stats(new) if new else None


class PromMetrics(names.KVConnectorPromMetrics):
    """vllm:neotier_<name>_blocks_total, by engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for name, what in _ALL.items():
            made = self._counter_cls(name=f"vllm:neotier_{name}_blocks", documentation=what, labelnames=labelnames)
            self._counters[name] = {engine: made.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, nr in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(nr)
