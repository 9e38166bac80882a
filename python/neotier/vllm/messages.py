# SPDX-License-Identifier: Apache-2.0
"""What vLLM carries between the connector's scheduler side and its workers. Hashes are vLLM's, keys are the engine's."""
from __future__ import annotations

from dataclasses import dataclass, field

from . import names


@dataclass
class Begun:
    """A request that the workers see for the first time, with all hashes that it has by then."""

    request: str
    hashes: list[bytes]
    category: int


@dataclass
class Run:
    """Blocks of a request that follow one another in its prefix, from position `first` on; where they lie in the paged cache."""

    request: str
    first: int
    hashes: list[bytes]
    blocks: list[int]


@dataclass
class Work(names.KVConnectorMetadata):
    """A step. judged: the last step whose output the scheduler has seen. bad: of those judged since the last message, the steps whose
    results depend on a load that failed. uncertain: a load of this step, or of one before it that is not judged, may fail yet."""

    step: int = 0
    generation: int = 0
    judged: int = 0
    bad: list[int] = field(default_factory=list)
    uncertain: bool = False
    begun: list[Begun] = field(default_factory=list)
    loads: list[Run] = field(default_factory=list)
    saves: list[Run] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)


@dataclass
class Hello:
    """Who a worker is. space: ranks of equal space have equal keys."""

    space: str


@dataclass
class Told:
    """Of one rank. whole: all that was in its tiers at the start has been told. failed: keys that could not be loaded in this step.
    ended: steps of which no save is under way any more."""

    rank: int
    step: int
    generation: int
    hello: Hello | None = None
    whole: bool = False
    added: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


@dataclass
class Report(names.KVConnectorWorkerMetadata):
    """Of a step: one part from each rank."""

    parts: list[Told] = field(default_factory=list)

    def aggregate(self, other: names.KVConnectorWorkerMetadata) -> "Report":
        assert isinstance(other, Report)
        return Report(self.parts + other.parts)
