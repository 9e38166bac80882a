# SPDX-License-Identifier: Apache-2.0
"""KV blocks on the engine: neotier_kv.h with Python's manners. A block is named by a key that hashes its whole prefix."""
from __future__ import annotations

import json
import weakref
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from ._native import ffi, lib
from .engine import KEY_BYTES, Buffer, Engine, Keys, _ms, _text, key_array, whole_text
from .errors import check, not_null

Buffers = Union[Sequence[Buffer], "Pieces"]
Write = Literal["back", "selective", "through"]
WRITES = {"back": 0, "selective": 1, "through": 2}
_HASHES = {"sha256_cbor": 0, "xxh3": 1}
_EVENTS = ("copied", "left", "forgotten")


@dataclass(frozen=True)
class Stored:
    """Blocks that were stored, were there, were kept out by the filter, or that the policies would rather not have."""

    stored: int
    present: int
    filtered: int
    passed: int


@dataclass(frozen=True)
class Event:
    """A copy is in `tier` ("copied"), that copy is gone ("left"), or the block is gone ("forgotten")."""

    key: bytes
    kind: Literal["copied", "left", "forgotten"]
    tier: str


@dataclass(frozen=True)
class PlanOptions:
    """For whom it is decided how many blocks to load. overlap: the caller computes layer by layer while later layers come.
    compute_queue_ns: what its processor has to do before. after_ns: computing what comes after the blocks, the end of the prompt."""

    overlap: bool = False
    compute_queue_ns: int = 0
    after_ns: int = 0


@dataclass(frozen=True)
class Plan:
    """Of `found` leading blocks that are there, `load` are worth loading. Times are predicted, in ns, from now on: loading them; the first
    token by this plan, with all of them loaded, with none (None: not possible)."""

    found: int
    load: int
    load_ns: int
    ttft_ns: int
    load_all_ns: int | None
    compute_all_ns: int | None


def _plan_struct(options: PlanOptions):
    return ffi.new("struct neotier_kv_plan *", {
        "struct_bytes": ffi.sizeof("struct neotier_kv_plan"), "overlap": options.overlap,
        "compute_queue_ns": options.compute_queue_ns, "after_ns": options.after_ns})


def _plan(made) -> Plan:
    possible = lambda ns: None if ns == 2**64 - 1 else ns
    return Plan(made.found, made.load, made.load_ns, made.ttft_ns, possible(made.load_all_ns), possible(made.compute_all_ns))


class Pages:
    """A buffer of pieces of one size, which are named by their numbers: an engine's paged cache. Nothing is looked up or copied for a
    piece, so that it does not matter how many there are.

    buffer: C-contiguous, writable where blocks are loaded into it. stride: bytes from one piece to the next.
    """

    def __init__(self, buffer: Buffer, stride: int, writable: bool = True) -> None:
        view = memoryview(buffer)
        self._buffer = ffi.from_buffer(view.cast("B") if view.ndim != 1 or view.format != "B" else view, require_writable=writable)
        self._base, self.stride = int(ffi.cast("uintptr_t", self._buffer)), stride
        self.nr = len(self._buffer) // stride

    def pieces(self, numbers: Iterable[int]) -> "Pieces":
        """Those pieces, in that order. IndexError where there is none of that number."""
        numbers = [int(number) for number in numbers]
        for number in numbers:
            if not 0 <= number < self.nr:
                raise IndexError(f"piece {number} of {self.nr}")
        return Pieces([self._base + number * self.stride for number in numbers], self.stride, self)

    def release(self) -> None:
        """The buffer may go. No piece of it may be in use."""
        ffi.release(self._buffer)
        self.nr = 0


@dataclass(frozen=True)
class Pieces:
    """What load() and store() take in the place of buffers: addresses of `stride` bytes each, in memory that lives as long as owner
    does. A list of numbers, or, where there are many, a buffer of unsigned 64-bit ones (array("Q"), numpy.uint64)."""

    addresses: list[int] | Buffer
    stride: int
    owner: Any

    def __len__(self) -> int:
        return len(self.addresses)

    def _array(self):
        """As C has them, and what they live in."""
        held = array("Q", self.addresses) if isinstance(self.addresses, list) else self.addresses
        view = memoryview(held)
        if view.itemsize != 8 or view.ndim != 1 or not view.c_contiguous:
            raise ValueError("addresses: a list, or a buffer of 64-bit numbers, one after another")
        return ffi.cast("void **", ffi.from_buffer(held)), (self, held)


class Load:
    """Blocks on their way into the caller's memory, pinned until close(). One thread at a time."""

    def __init__(self, store: "KvStore", load, held, plan: Plan | None = None) -> None:
        self._store = store  # outlives it
        self._load = not_null(load)
        self.plan = plan  # what was decided, where it was to be decided
        self._held = held  # the caller's memory
        store._loads.add(self)

    @property
    def blocks(self) -> int:
        """Leading blocks that are being loaded."""
        return lib.neotier_kv_load_blocks(self._load)

    @property
    def good(self) -> int:
        """Leading blocks whose layers, of those waited for, have all arrived."""
        return lib.neotier_kv_load_good(self._load)

    def wait(self, timeout: float | None = None, layer: int | None = None, stream: int | None = None) -> None:
        """Until it is there, or that layer of all blocks. Raises TimeoutError, or what failed: blocks from `good` on are to be
        computed then. stream: what that stream of the GPU (a cudaStream_t, 0 the default one) gets later comes after that layer's
        arrival; the caller itself waits only for what a disk or a server has to bring first, and for its turn in staging."""
        if stream is not None:
            if layer is None:
                raise ValueError("stream: of a layer")
            check(lib.neotier_kv_load_let_wait(self._load, layer, ffi.cast("void *", stream), _ms(timeout)))
        elif layer is None:
            check(lib.neotier_kv_load_wait(self._load, _ms(timeout)))
        else:
            check(lib.neotier_kv_load_wait_layer(self._load, layer, _ms(timeout)))

    @property
    def layers(self) -> int:
        return self._store.layers

    def _notify(self, queue, number: int) -> int:  # CompletionQueue.add()
        return lib.neotier_kv_load_notify(self._load, queue, number)

    def _notify_layers(self, queue, number: int) -> int:  # CompletionQueue.add_layers()
        return lib.neotier_kv_load_notify_layers(self._load, queue, number)

    def cancel(self) -> None:
        lib.neotier_kv_load_cancel(self._load)

    def close(self) -> None:
        """Waits for what is at a tier just now, and releases the pins."""
        if self._load is not None:
            load, self._load, self._held = self._load, None, None
            if self._store._engine._alive:  # at the interpreter's end it may have been closed before
                lib.neotier_kv_load_free(load)

    __del__ = close

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Save:
    """Layers of blocks on their way out of a GPU's memory. What is not finished is not stored. One thread at a time."""

    def __init__(self, gpu: "GpuMemory", save, held) -> None:
        self._gpu = gpu  # outlives it
        self._save = not_null(save)
        self._held = held
        gpu._users.add(self)

    @property
    def blocks(self) -> int:
        """Leading blocks that there is staging for; the others are not saved."""
        return lib.neotier_kv_save_blocks(self._save)

    def layer(self, layer: int, stream: int = 0) -> None:
        """What `stream` has now writes that layer of all blocks: it is copied when that has passed. Each layer once."""
        check(lib.neotier_kv_save_layer(self._save, layer, ffi.cast("void *", stream)))

    def behind(self, stream: int = 0) -> None:
        """What `stream` gets later comes after the copies that were started: the blocks may be overwritten. Does not wait."""
        check(lib.neotier_kv_save_behind(self._save, ffi.cast("void *", stream)))

    def finish(self) -> Stored:
        """Waits for the copies of all layers, and stores the blocks. Once. FullError: as KvSession.store()."""
        stored = ffi.new("struct neotier_kv_stored *", {"struct_bytes": ffi.sizeof("struct neotier_kv_stored")})
        check(lib.neotier_kv_save_finish(self._save, stored))
        return Stored(stored.stored, stored.present, stored.filtered, stored.passed)

    def close(self) -> None:
        """Waits for copies that are being made."""
        if self._save is not None:
            save, self._save, self._held = self._save, None, None
            if self._gpu._gpu is not None and self._gpu._store._engine._alive:
                lib.neotier_kv_save_free(save)

    __del__ = close

    def __enter__(self) -> "Save":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GpuMemory:
    """The memory of GPU `device`, that blocks of the store are loaded into and saved from. Addresses and streams are that device's:
    Pieces of a torch.Tensor's data_ptr(), torch.cuda.current_stream().cuda_stream. Streams that are being captured into a graph are
    refused; captures of others are not disturbed.

    Opening pins the engine's DRAM tiers, and staging_bytes of memory besides (and one block): some .3 s a GiB. Loads from an SSD, a server
    or CXL memory go through that, and may be larger; a save takes as many blocks as there is room for. Raises NeoTierError: no such device, no
    driver. Any thread; a load or a save belongs to one.
    """

    def __init__(self, store: "KvStore", device: int = 0, staging_bytes: int = 1 << 30) -> None:
        self._gpu = None
        self._store = store
        self._users: "weakref.WeakSet[Load | Save]" = weakref.WeakSet()
        self._gpu = not_null(lib.neotier_kv_gpu_open(store._handle(), device, staging_bytes))
        store._gpus.add(self)

    def _handle(self):
        if self._gpu is None:
            raise ValueError("the GPU's memory is closed")
        return self._gpu

    def load(self, session: "KvSession", keys: Keys, into: "Pieces", first_position: int = 0, decide: PlanOptions | None = None,
             stream: int = 0) -> Load:
        """As KvSession.load(). The copies come after what `stream` has now: who used the blocks before has read them."""
        names, nr = key_array(keys)
        held = self._store._pieces(into, nr, True)
        made = ffi.NULL if decide is None else _plan_struct(decide)
        load = not_null(lib.neotier_kv_gpu_load_start(self._handle(), session._session, names, nr, held[0], first_position, made,
                                                      ffi.cast("void *", stream)))
        started = Load(self._store, load, (held, self), None if decide is None else _plan(made))
        self._users.add(started)
        return started

    def save(self, session: "KvSession", keys: Keys, data: "Pieces", first_position: int = 0) -> Save:
        """Begins to save blocks, layer by layer. data: as `into` of load()."""
        names, nr = key_array(keys)
        held = self._store._pieces(data, nr, False)
        return Save(self, lib.neotier_kv_gpu_save_start(self._handle(), session._session, names, nr, held[0], first_position), held)

    def close(self) -> None:
        """Ends its loads and saves; nothing of it may be in use in another thread."""
        if self._gpu is not None:
            for user in list(self._users):
                user.close()
            gpu, self._gpu = self._gpu, None
            self._store._gpus.discard(self)
            if self._store._engine._alive:
                lib.neotier_kv_gpu_close(gpu)

    def __enter__(self) -> "GpuMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KvSession:
    """A conversation. Its requests come one after the other."""

    def __init__(self, store: "KvStore", session: int) -> None:
        self._store, self._session = store, session

    def request(self, keys: Keys, *, category: int = 0, cost_ns: Sequence[int] | None = None) -> int:
        """A request begins: how many of its leading blocks are there. cost_ns: to make each block anew."""
        names, nr = key_array(keys)
        info = ffi.new("struct neotier_kv_request_info *", {
            "struct_bytes": ffi.sizeof("struct neotier_kv_request_info"), "category": category})
        if cost_ns is not None:
            if len(cost_ns) != nr:
                raise ValueError(f"cost_ns: {len(cost_ns)} of {nr} blocks")
            costs = ffi.new("uint64_t[]", list(cost_ns))
            info.cost_ns = costs
        return check(lib.neotier_kv_request(self._store._handle(), self._session, names, nr, info))

    def plan(self, keys: Keys, options: PlanOptions = PlanOptions(), first_position: int = 0) -> Plan:
        """How many of the leading blocks are worth loading, by what the tiers have to do now and what computing blocks costs: as the
        session's request says, else as KvStore.computed() has seen it, else as the store was opened. A block without a cost is
        loaded if it is there."""
        names, nr = key_array(keys)
        made = _plan_struct(options)
        check(lib.neotier_kv_plan_load(self._store._handle(), self._session, names, nr, first_position, made))
        return _plan(made)

    def load(self, keys: Keys, into: Buffers, first_position: int = 0, decide: PlanOptions | None = None) -> Load:
        """Starts to load the leading blocks that are there. into[piece * blocks + block]: of the piece's size each, writable.
        first_position: how many blocks of the prefix come before the first. decide: only as many as plan() would load; Load.plan says
        what was decided, and the others are to be computed."""
        names, nr = key_array(keys)
        held = self._store._pieces(into, nr, True)
        if decide is not None:
            made = _plan_struct(decide)
            load = not_null(lib.neotier_kv_load_start_planned(self._store._handle(), self._session, names, nr, held[0], first_position,
                                                              made))
            return Load(self._store, load, held, _plan(made))
        return Load(self._store, lib.neotier_kv_load_start_at(self._store._handle(), self._session, names, nr, held[0],
                                                              first_position), held)

    def store(self, keys: Keys, data: Buffers, first_position: int = 0) -> Stored:
        """Stores blocks. data: as `into` of load(). FullError: no room for one; those before it are stored."""
        names, nr = key_array(keys)
        held = self._store._pieces(data, nr, False)
        stored = ffi.new("struct neotier_kv_stored *", {"struct_bytes": ffi.sizeof("struct neotier_kv_stored")})
        check(lib.neotier_kv_store(self._store._handle(), self._session, names, nr, held[0], first_position, stored))
        return Stored(stored.stored, stored.present, stored.filtered, stored.passed)

    def close(self) -> None:
        if self._session:
            session, self._session = self._session, 0
            check(lib.neotier_kv_session_close(self._store._handle(), session))

    def __enter__(self) -> "KvSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KvStore:
    """Blocks of `layers` layers of layer_bytes each, or of pieces: piece_bytes, layer by layer, where a layer has places of its own for
    K and V, or layers have sizes of their own; layer_pieces says how many each layer has (None: all as many). Without them a layer is
    one piece. The engine must have been opened with events=65536 or more.

    space: model, data type, layout: keeps apart what must not be mixed. seed: processes that share it share blocks; None: random.
    recompute_ns, recompute_per_position_ns: to make a block anew, and so much more for each block before it.
    """

    def __init__(self, engine: Engine, *, layers: int, layer_bytes: int = 0, piece_bytes: Sequence[int] | None = None,
                 layer_pieces: Sequence[int] | None = None, block_tokens: int = 16, hash: str = "sha256_cbor",
                 seed: str | None = None, space: str | None = None, write: Write = "back", write_after: int = 2, store_after: int = 1,
                 recompute_ns: int = 0, recompute_per_position_ns: int = 0, lease: float = 60) -> None:
        if write not in WRITES or hash not in _HASHES:
            raise ValueError(f"write: {', '.join(WRITES)}; hash: {', '.join(_HASHES)}")
        texts = _text(seed), _text(space)
        config = ffi.new("struct neotier_kv_config *", {
            "struct_bytes": ffi.sizeof("struct neotier_kv_config"), "block_tokens": block_tokens, "layers": layers,
            "hash": _HASHES[hash], "layer_bytes": layer_bytes, "seed": texts[0], "space": texts[1], "write": WRITES[write],
            "write_after": write_after, "store_after": store_after, "recompute_ns": recompute_ns,
            "recompute_per_position_ns": recompute_per_position_ns, "lease_ms": _ms(lease)})
        if piece_bytes is not None:
            sizes = ffi.new("uint64_t[]", list(piece_bytes))
            config.piece_bytes, config.pieces = sizes, len(piece_bytes)
        if layer_pieces is not None:
            if len(layer_pieces) != layers:
                raise ValueError(f"layer_pieces: {len(layer_pieces)} of {layers} layers")
            counts = ffi.new("uint32_t[]", list(layer_pieces))
            config.layer_pieces = counts
        self._engine = engine
        self.layers, self.layer_bytes = layers, layer_bytes
        self.piece_bytes = [layer_bytes] * layers if piece_bytes is None else list(piece_bytes)
        self._kv = not_null(lib.neotier_kv_open(engine._handle(), config))
        self._loads: "weakref.WeakSet[Load]" = weakref.WeakSet()
        self._gpus: "set[GpuMemory]" = set()  # they go before the store, even where nobody else knows them any more
        engine._before_close.add(self)

    def _handle(self):
        if self._kv is None:
            raise ValueError("the store is closed")
        return self._kv

    def _pieces(self, buffers: Buffers, nr: int, writable: bool):
        if len(buffers) != nr * len(self.piece_bytes):
            raise ValueError(f"{len(buffers)} buffers for {nr} blocks of {len(self.piece_bytes)} pieces")
        if isinstance(buffers, Pieces):
            if buffers.stride < max(self.piece_bytes):
                raise ValueError(f"pieces of {buffers.stride} bytes; a block has one of {max(self.piece_bytes)}")
            return buffers._array()
        held = [ffi.from_buffer(buffer, require_writable=writable) for buffer in buffers]
        for place, buffer in enumerate(held):
            if len(buffer) != self.piece_bytes[place // nr]:
                raise ValueError(f"a buffer of {len(buffer)} bytes; piece {place // nr} of a block has {self.piece_bytes[place // nr]}")
        return ffi.new("void *[]", held), held

    def keys(self, tokens: Sequence[int], lora: str | None = None, salt: str | None = None) -> list[bytes]:
        """Keys of the whole blocks of a prompt."""
        text = ffi.new("uint32_t[]", list(tokens))
        most = len(tokens)
        made = ffi.new("struct neotier_object_key[]", max(most, 1))
        nr = check(lib.neotier_kv_keys(self._handle(), text, len(tokens), _text(lora), _text(salt), made, most))
        return _split(made, nr)

    def digest_keys(self, digests: Iterable[bytes]) -> list[bytes]:
        """Keys of blocks that the caller has hashed: digests of one length, 16 to 256 bytes, each naming its whole prefix."""
        digests = list(digests)
        if not digests:
            return []
        size = len(digests[0])
        if any(len(digest) != size for digest in digests):
            raise ValueError("digests: not of one length")
        made = ffi.new("struct neotier_object_key[]", len(digests))
        check(lib.neotier_kv_digest_keys(self._handle(), ffi.from_buffer(b"".join(digests)), size, len(digests), made))
        return _split(made, len(digests))

    def computed(self, blocks: int, ns: int, first_position: int = 0) -> None:
        """So many blocks were computed, from first_position on, in ns, without what the processor did before."""
        check(lib.neotier_kv_computed(self._handle(), first_position, blocks, ns))

    def tenant(self, name: str, quota_bytes: int = 0) -> int:
        return check(lib.neotier_kv_tenant(self._handle(), _text(name), quota_bytes))

    def session(self, tenant: int, ttl: float = 0, remove_expired: bool = False) -> KvSession:
        """ttl: seconds that its blocks are kept for after its last use; 0: until it is closed."""
        return KvSession(self, check(lib.neotier_kv_session_open(self._handle(), tenant, _ms(ttl), remove_expired)))

    def events(self, most: int = 4096) -> tuple[list[Event], int]:
        """Events since the last call, oldest first, and how many came in between and are lost."""
        room, lost = ffi.new("struct neotier_kv_event[]", most), ffi.new("uint64_t *")
        nr = check(lib.neotier_kv_events(self._handle(), room, most, lost))
        return [Event(bytes(ffi.buffer(room[i].key.bytes)), _EVENTS[room[i].kind], ffi.string(room[i].tier).decode())
                for i in range(nr)], lost[0]

    def stats(self) -> dict[str, Any]:
        """Counters, tenants, and each tier's policy and room."""
        handle = self._handle()
        return json.loads(whole_text(lambda into, room: lib.neotier_kv_stats(handle, into, room)))

    def prometheus(self) -> str:
        """Counters and tenants; Engine.prometheus() has the tiers, and how long loads take."""
        handle = self._handle()
        return whole_text(lambda into, room: lib.neotier_kv_metrics(handle, 0, into, room))

    def close(self) -> None:
        """Ends its loads. The blocks stay in the engine. Nothing of it may be in use in another thread."""
        if self._kv is not None:
            for gpu in list(self._gpus):
                gpu.close()
            for load in list(self._loads):
                load.close()
            kv, self._kv = self._kv, None
            if self._engine._alive:
                lib.neotier_kv_close(kv)

    def __enter__(self) -> "KvStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _split(keys, nr: int) -> list[bytes]:
    text = bytes(ffi.buffer(keys, nr * KEY_BYTES)) if nr else b""
    return [text[i:i + KEY_BYTES] for i in range(0, len(text), KEY_BYTES)]
