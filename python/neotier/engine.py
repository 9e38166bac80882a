# SPDX-License-Identifier: Apache-2.0
"""Objects over tiers of memory and storage: neotier.h with Python's manners.

Buffers are never copied: whatever has the buffer protocol (bytes, bytearray, memoryview, numpy, a torch tensor's numpy()) is read
from, or written to, where it lies. Calls release the interpreter's lock. All calls may come from any thread, close() excepted.
"""
from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Union

from ._native import ffi, lib
from .errors import NotFoundError, check, error_of, not_null

KEY_BYTES = 16

Buffer = Any  # typing has no name for it before Python 3.12
Keys = Union[bytes, bytearray, memoryview, Iterable[bytes]]
Kind = Literal["kv", "expert", "plain"]
MoveClass = Literal["demand", "prefetch", "write_back"]

_KINDS = {"kv": 1, "expert": 2, "plain": 3}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_CLASSES = {"demand": 0, "prefetch": 1, "write_back": 2}
_CHOICES = ("load", "recompute", "compute_on_cpu")
_FOREVER = 2**64 - 1


def _ms(seconds: float | None) -> int:
    if seconds is None:
        return _FOREVER
    if seconds < 0:
        raise ValueError(f"timeout: {seconds} s; None waits for ever")
    return int(seconds * 1000 + 0.999)


def key_array(keys: Keys):
    """(struct neotier_object_key[nr], nr) of one key after the other, or of an iterable of 16-byte keys."""
    if not isinstance(keys, (bytes, bytearray, memoryview)):
        keys = b"".join(keys)
    size = memoryview(keys).nbytes
    if size % KEY_BYTES:
        raise ValueError(f"keys: {size} bytes; a key has {KEY_BYTES}")
    return ffi.from_buffer("struct neotier_object_key[]", keys), size // KEY_BYTES


def one_key(key: Buffer):
    array, nr = key_array(key)
    if nr != 1:
        raise ValueError(f"key: {nr * KEY_BYTES} bytes; a key has {KEY_BYTES}")
    return array


def _text(given: str | None):
    return ffi.NULL if given is None else ffi.new("char[]", given.encode())


def whole_text(call) -> str:
    """The text of a call that fills (char *into, size_t bytes) and returns the full length."""
    room = 1 << 14
    while True:
        into = ffi.new("char[]", room)
        length = check(call(into, room))
        if length < room:
            return ffi.string(into).decode()
        room = length + 4096  # it may have grown meanwhile


@dataclass(frozen=True)
class ObjectInfo:
    """Where an object is. bytes, recompute_ns: as put. second_tier: of a copy, or empty."""

    kind: str
    bytes: int
    recompute_ns: int
    pins: int
    moving: bool
    recovered: bool
    tier: str
    second_tier: str


@dataclass(frozen=True)
class Decision:
    """What ends first, and the predicted times in ns; None: not possible."""

    choice: Literal["load", "recompute", "compute_on_cpu"]
    load_ns: int | None
    recompute_ns: int | None
    cpu_ns: int | None


class CompletionQueue:
    """What has ended, for an event loop: fileno() is readable as long as take() would return something. For poll and its kin only:
    who reads from the descriptor itself breaks it. Thread safety: all calls from any thread."""

    def __init__(self) -> None:
        self._queue = ffi.gc(not_null(lib.neotier_queue_open()), lib.neotier_queue_close)
        self._held: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._next = 1

    def fileno(self) -> int:
        return lib.neotier_queue_fd(self._queue)

    def add(self, what: "Ticket", tag: Any = None) -> None:
        """`tag` (default: the ticket) will come out of take() when the ticket has ended; at once if it has. ExistsError: it has
        its place in a queue already."""
        with self._lock:
            number = self._next
            self._next += 1
            self._held[number] = what if tag is None else tag
        try:
            check(what._notify(self._queue, number))
        except Exception:
            with self._lock:
                del self._held[number]
            raise

    def add_layers(self, load: Any) -> None:
        """For each layer of a load (neotier.kv) (load, layer) will come out of take() once that layer of all its blocks has come.
        ExistsError: the load has its place in a queue already."""
        with self._lock:
            number = self._next
            self._next += load.layers
            self._held.update({number + layer: (load, layer) for layer in range(load.layers)})
        try:
            check(load._notify_layers(self._queue, number))
        except Exception:
            with self._lock:
                for layer in range(load.layers):
                    del self._held[number + layer]
            raise

    def take(self, most: int = 1024) -> list[Any]:
        """The oldest tags; never waits."""
        numbers = ffi.new("uint64_t[]", most)
        nr = lib.neotier_queue_take(self._queue, numbers, most)
        with self._lock:
            return [self._held.pop(numbers[i]) for i in range(nr)]


class _Loop:
    """The queue of an asyncio loop, read by it as long as somebody waits."""

    of: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop]" = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.queue = CompletionQueue()
        self.waiting = 0

    def wait(self, ticket: "Ticket") -> "asyncio.Future[None]":
        loop = self.loop()
        assert loop is not None
        future = loop.create_future()
        self.queue.add(ticket, future)
        if self.waiting == 0:
            loop.add_reader(self.queue.fileno(), self.ready)
        self.waiting += 1
        return future

    def ready(self) -> None:
        for future in self.queue.take():
            self.waiting -= 1
            if not future.done():  # its task may have been cancelled
                future.set_result(None)
        loop = self.loop()
        if self.waiting == 0 and loop is not None:
            loop.remove_reader(self.queue.fileno())


class Ticket:
    """Work that is under way. `await ticket`, or wait(). A ticket that nobody holds any more is cancelled if it writes to a buffer, and
    goes on if it does not. Thread safety: all calls from any thread."""

    def __init__(self, engine: "Engine", ticket, buffer=None) -> None:
        self._engine = engine  # outlives it
        self._buffer = buffer  # what it writes to
        self._ended: "asyncio.Future[None] | None" = None
        self._ticket = not_null(ticket)
        self._free = weakref.finalize(self, _free_ticket, engine._alive, ticket, buffer)

    def _notify(self, queue, number: int) -> int:
        return lib.neotier_ticket_notify(self._ticket, queue, number)

    def progress(self) -> tuple[int, int, int]:
        """(pending, done, failed) objects."""
        now = ffi.new("struct neotier_progress *", {"struct_bytes": ffi.sizeof("struct neotier_progress")})
        check(lib.neotier_ticket_poll(self._ticket, now))
        return now.pending, now.done, now.failed

    def done(self) -> bool:
        return self.progress()[0] == 0

    def wait(self, timeout: float | None = None) -> None:
        """Until all has ended; raises the first error of any of its objects, TimeoutError while something is under way."""
        check(lib.neotier_ticket_wait(self._ticket, _ms(timeout)))

    def cancel(self) -> None:
        """Ends what only this ticket waits for, as early as may be; wait() still tells how it ended."""
        lib.neotier_ticket_cancel(self._ticket)

    def __await__(self):
        if not self.done():
            loop = asyncio.get_running_loop()
            if self._ended is None or self._ended.get_loop() is not loop:
                own = _Loop.of.get(loop)
                if own is None:
                    own = _Loop.of[loop] = _Loop(loop)
                self._ended = own.wait(self)
            yield from asyncio.shield(self._ended).__await__()
        self.wait(0)


def _free_ticket(alive: list, ticket, buffer) -> None:
    if alive and buffer is not None:
        lib.neotier_ticket_cancel(ticket)
        lib.neotier_ticket_wait(ticket, _FOREVER)
    lib.neotier_ticket_free(ticket)


class Pin:
    """Holds an object where it is, until release(), the end of a `with` or of its session."""

    def __init__(self, session: "Session", number: int, data, nr_bytes: int) -> None:
        self._session, self._number = session, number
        # None: the host cannot address it there.
        self.data: memoryview | None = None
        if data != ffi.NULL:
            self.data = memoryview(ffi.buffer(data, nr_bytes)).toreadonly()

    def release(self) -> None:
        """`data` must not be read any more."""
        if self._number is not None:
            self.data, number, self._number = None, self._number, None
            check(lib.neotier_unpin(self._session._engine._handle(), self._session._session, number))

    def __enter__(self) -> "Pin":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Session:
    """Who holds pins; closing it releases all of them."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._session = lib.neotier_session_open(engine._handle())
        if self._session == 0:
            raise error_of(-12)

    def pin(self, key: Buffer, lease: float = 0) -> Pin:
        """lease: seconds after which it ends by itself; 0: none."""
        handle = self._engine._handle()
        number, data = ffi.new("uint64_t *"), ffi.new("const void **")
        check(lib.neotier_pin(handle, self._session, one_key(key), _ms(lease), number, data))
        info = self._engine.lookup(key)  # pinned, it stays what it is
        return Pin(self, number[0], data[0], info.bytes if info else 0)

    def close(self) -> None:
        if self._session:
            session, self._session = self._session, 0
            lib.neotier_session_close(self._engine._handle(), session)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """tiers: as neotier.h's neotier_config.tiers, fastest first: "dram=8G,cxl=32G:node=1,ssd=200G:file=/var/cache/neotier".
    Further settings are neotier_config's fields by name (max_objects, seed, hysteresis_ms, events, discard, history, ...).

    Raises InvalidError in one line where the tiers or a setting are none.
    """

    def __init__(self, tiers: str, **settings: Any) -> None:
        config = ffi.new("struct neotier_config *")
        known = {name for name, _ in ffi.typeof("struct neotier_config").fields} - {"struct_bytes", "abi", "tiers", "reserved"}
        for name, value in settings.items():
            if name not in known:
                raise ValueError(f"no setting '{name}'; there are {', '.join(sorted(known))}")
            setattr(config, name, value)
        config.struct_bytes = ffi.sizeof("struct neotier_config")
        config.abi = lib.neotier_abi()
        text = _text(tiers)
        config.tiers = text
        self._engine = not_null(lib.neotier_open(config))
        # Empty once it is closed: tickets that are freed later must not touch it.
        self._alive: list[bool] = [True]
        self._before_close: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._close = weakref.finalize(self, _close_engine, self._alive, self._engine)

    def _handle(self):
        if not self._alive:
            raise ValueError("the engine is closed")
        return self._engine

    def close(self) -> None:
        """Cancels what is under way. Nothing of it may be in use in another thread."""
        for one in list(self._before_close):
            one.close()
        self._close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: Buffer, data: Buffer, *, kind: Kind = "plain", recompute_ns: int = 0, tier: str | None = None,
            replace: bool = False, discard: bool = False) -> None:
        """Returns when the object is in a tier, whole. data: 1 .. 2**32 - 1 bytes. tier None: the policies decide.
        ExistsError, FullError, BusyError, GoneError."""
        name = _text(tier)
        options = ffi.new("struct neotier_put_options *", {
            "struct_bytes": ffi.sizeof("struct neotier_put_options"), "kind": _KINDS[kind], "recompute_ns": recompute_ns, "tier": name,
            "replace": replace, "discard": discard})
        source = ffi.from_buffer(data)
        check(lib.neotier_put(self._handle(), one_key(key), source, source_bytes(source), options))

    def get(self, key: Buffer, into: Buffer, offset: int = 0) -> None:
        """Fills `into` from `offset` on. NotFoundError, InvalidError (beyond its end), GoneError, IoError, CorruptError."""
        target = ffi.from_buffer(into, require_writable=True)
        check(lib.neotier_get(self._handle(), one_key(key), offset, target, source_bytes(target)))

    def read(self, key: Buffer) -> bytearray:
        """The whole object, in a new buffer."""
        info = self.lookup(key)
        if info is None:
            raise NotFoundError("no such object")
        into = bytearray(info.bytes)
        self.get(key, into)
        return into

    def get_async(self, key: Buffer, into: Buffer, offset: int = 0) -> Ticket:
        """get() without waiting."""
        target = ffi.from_buffer(into, require_writable=True)
        ticket = lib.neotier_get_async(self._handle(), one_key(key), offset, target, source_bytes(target))
        return Ticket(self, ticket, target)

    def lookup(self, key: Buffer) -> ObjectInfo | None:
        """None: there is none."""
        info = ffi.new("struct neotier_object_info *", {"struct_bytes": ffi.sizeof("struct neotier_object_info")})
        code = lib.neotier_lookup(self._handle(), one_key(key), info)
        if code == lib.NEOTIER_ENOTFOUND:
            return None
        check(code)
        return ObjectInfo(_KIND_NAMES.get(info.kind, "plain"), info.bytes, info.recompute_ns, info.pins, bool(info.moving),
                          bool(info.recovered), ffi.string(info.tier).decode(), ffi.string(info.second_tier).decode())

    def lookup_prefix(self, keys: Keys) -> int:
        """How many of the first keys are there, in tiers in service."""
        array, nr = key_array(keys)
        return lib.neotier_lookup_prefix(self._handle(), array, nr)

    def __contains__(self, key: Buffer) -> bool:
        return lib.neotier_lookup_prefix(self._handle(), one_key(key), 1) == 1

    def remove(self, key: Buffer) -> None:
        """NotFoundError, BusyError."""
        check(lib.neotier_remove(self._handle(), one_key(key)))

    def touch(self, key: Buffer) -> None:
        """A use without reading."""
        check(lib.neotier_touch(self._handle(), one_key(key)))

    def describe(self, key: Buffer, kind: Kind, recompute_ns: int) -> None:
        check(lib.neotier_describe(self._handle(), one_key(key), _KINDS[kind], recompute_ns))

    def session(self) -> Session:
        return Session(self)

    def move(self, keys: Keys, tier: str, move_class: MoveClass = "prefetch") -> Ticket:
        array, nr = key_array(keys)
        return Ticket(self, lib.neotier_move(self._handle(), array, nr, _text(tier), _CLASSES[move_class]))

    def write_back(self, keys: Keys) -> Ticket:
        """Copies them to the first durable tier, beside where they are."""
        array, nr = key_array(keys)
        return Ticket(self, lib.neotier_write_back(self._handle(), array, nr))

    def flush(self) -> None:
        """All that is on durable tiers survives a crash from here on."""
        check(lib.neotier_flush(self._handle()))

    def decide(self, key: Buffer, tier: str | None = None, compute_queue_ns: int = 0, cpu_ns: int = 0) -> Decision:
        """Load to `tier` (None: the caller's memory), make anew behind compute_queue_ns of other work, or compute where it lies."""
        made = ffi.new("struct neotier_decision *", {"struct_bytes": ffi.sizeof("struct neotier_decision")})
        check(lib.neotier_decide(self._handle(), one_key(key), _text(tier), compute_queue_ns, cpu_ns, made))
        times = [None if ns == _FOREVER else ns for ns in (made.load_ns, made.recompute_ns, made.cpu_ns)]
        return Decision(_CHOICES[made.choice], *times)

    def tier_service(self, tier: str, in_service: bool) -> None:
        """Takes a tier out of service before its memory is withdrawn, or tries to bring it back. BusyError: pins hold objects there."""
        check(lib.neotier_tier_service(self._handle(), _text(tier), in_service))

    def metrics(self) -> dict[str, Any]:
        handle = self._handle()
        return json.loads(whole_text(lambda into, room: lib.neotier_metrics(handle, lib.NEOTIER_JSON, into, room)))

    def prometheus(self) -> str:
        handle = self._handle()
        return whole_text(lambda into, room: lib.neotier_metrics(handle, lib.NEOTIER_PROMETHEUS, into, room))


def source_bytes(buffer) -> int:
    return len(ffi.buffer(buffer))


def _close_engine(alive: list, engine) -> None:
    if alive:
        alive.clear()
        lib.neotier_close(engine)
