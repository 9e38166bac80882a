# SPDX-License-Identifier: Apache-2.0
"""NeoTier for Python: objects over GPU, DRAM, CXL and SSD tiers (Engine), KV blocks on them (KvStore), and what serving engines load
by name (neotier.vllm, neotier.sglang, neotier.lmcache)."""
from .engine import CompletionQueue, Decision, Engine, ObjectInfo, Pin, Session, Ticket
from .errors import (BusyError, CancelledError, CorruptError, ExistsError, FullError, GoneError, InvalidError, IoError, NeoTierError,
                     NoMemoryError, NotFoundError, TimeoutError, UnsupportedError)
from .kv import Event, GpuMemory, KvSession, KvStore, Load, Pages, Pieces, Plan, PlanOptions, Save, Stored
from .policy import Policy

__all__ = [
    "Engine", "Ticket", "CompletionQueue", "Session", "Pin", "ObjectInfo", "Decision", "KvStore", "KvSession", "Load", "Save", "GpuMemory", "Pages",
    "Pieces", "Plan", "PlanOptions", "Stored", "Event", "Policy",
    "NeoTierError", "InvalidError", "NotFoundError", "ExistsError", "FullError", "BusyError", "CancelledError", "TimeoutError", "IoError",
    "CorruptError", "GoneError", "UnsupportedError", "NoMemoryError",
]
