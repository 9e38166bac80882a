# SPDX-License-Identifier: Apache-2.0
"""One exception for each of neotier.h's error codes; all are NeoTierError, and what Python has a word for is that as well."""
from ._native import ffi, lib


class NeoTierError(Exception):
    """`code` is neotier.h's enum neotier_code; str() is one line."""

    code = 0


class InvalidError(NeoTierError, ValueError):
    """The caller's mistake; nothing was done."""


class NotFoundError(NeoTierError, KeyError):
    """No such object."""

    __str__ = Exception.__str__


class ExistsError(NeoTierError):
    """An object of this key is there already."""


class FullError(NeoTierError):
    """No room, and none can be made."""


class BusyError(NeoTierError):
    """Pinned, or on its way elsewhere."""


class CancelledError(NeoTierError):
    """As asked, or because the object changed."""


class TimeoutError(NeoTierError, TimeoutError):  # noqa: A001  what callers catch has this name
    """Still under way."""


class IoError(NeoTierError, OSError):
    """The medium failed this transfer."""

    __str__ = Exception.__str__


class CorruptError(NeoTierError):
    """What was read is not what was written; it was not handed out."""


class GoneError(NeoTierError):
    """The tier is out of service; its objects may come back with it."""


class UnsupportedError(NeoTierError):
    """Not with these tiers."""


class NoMemoryError(NeoTierError, MemoryError):
    """The host has no memory left for it."""


_OF_CODE = {
    -1: InvalidError, -2: NotFoundError, -3: ExistsError, -4: FullError, -5: BusyError, -6: CancelledError, -7: TimeoutError,
    -8: IoError, -9: CorruptError, -10: GoneError, -11: UnsupportedError, -12: NoMemoryError,
}


def error_of(code: int) -> NeoTierError:
    """The exception of a code that the calling thread's last call returned."""
    error = _OF_CODE.get(code, NeoTierError)(ffi.string(lib.neotier_error()).decode(errors="replace"))
    error.code = code
    return error


def check(result: int) -> int:
    """The result, or the exception of its code."""
    if result < 0:
        raise error_of(result)
    return result


def not_null(pointer):
    """The pointer; a call that returned NULL told neotier_error() why."""
    if pointer == ffi.NULL:
        raise error_of(-1)
    return pointer
