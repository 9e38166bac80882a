# SPDX-License-Identifier: Apache-2.0
"""What connectors of serving engines have in common: settings that an engine hands over as JSON has them, loads that may fail, and
warnings that may come for every block."""
from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from typing import Any

from .errors import NeoTierError
from .kv import WRITES, Load


def setting(who: str, given: dict[str, Any], name: str, default: Any, kind: type, least: float = 0) -> Any:
    """given[name], or the default, as a `kind`. ValueError, one line: not of that kind, not finite, or a number below `least`."""
    value = given.get(name, default)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or isinstance(value, bool) != (kind is bool) or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{who}: {name} is {value!r}; it wants {'true or false' if kind is bool else kind.__name__}")
    if kind in (int, float) and value < least:
        raise ValueError(f"{who}: {name} is {value}; at least {least}")
    return kind(value)


def check_storage(who: str, tiers: Any, write: Any, example: str) -> None:
    """Before the SSD tier's file is made. ValueError, one line."""
    if not tiers or not isinstance(tiers, str):
        raise ValueError(f'{who}: tiers is missing; write for example "tiers": "{example}"')
    if not isinstance(write, str) or write not in WRITES:
        raise ValueError(f"{who}: write is {', '.join(WRITES)}, not '{write}'")


class SparingLog:
    """One line in `seconds`, which says how many others there were. Any thread."""

    def __init__(self, logger: logging.Logger, prefix: str, seconds: float = 10) -> None:
        self._logger, self._prefix, self._seconds = logger, prefix, seconds
        self._lock = threading.Lock()
        self._said, self._unsaid = -seconds, 0

    def warn(self, text: str, trace: bool = False) -> None:
        """trace: with the traceback of the exception that is being handled."""
        with self._lock:
            self._unsaid += 1
            now = time.monotonic()
            if now - self._said < self._seconds:
                return
            others, self._said, self._unsaid = self._unsaid - 1, now, 0
        self._logger.warning("%s: %s%s", self._prefix, text, f" (and {others} others since the last line)" if others else "", exc_info=trace)


def finish_load(load: Load, timeout: float, log: SparingLog) -> int:
    """Waits for a load, `timeout` seconds at most. How many of its leading blocks have come; of the others nothing is written to the
    caller's memory once the load is closed."""
    try:
        load.wait(timeout)
    except NeoTierError as error:
        load.cancel()
        # What is there by now counts: of a load that is given up nothing else does.
        with contextlib.suppress(NeoTierError):
            load.wait(0)
        log.warn(f"{load.blocks - load.good} of {load.blocks} blocks could not be loaded: {error}")
    return load.good
