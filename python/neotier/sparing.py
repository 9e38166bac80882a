# SPDX-License-Identifier: Apache-2.0
"""Warnings of what may go wrong for every block: a medium that fails does so for all of them."""
import logging
import threading
import time


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
