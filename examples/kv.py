#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A serving engine's connector in small, with nothing but ctypes: two turns of a conversation, the second of which finds the
first one's KV blocks, also after a restart. kv.py [LIBNEOTIER.SO [FILE]]; FILE is where the SSD tier lies."""
import ctypes as c
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
lib = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../build/lib/libneotier.so"))
TOKENS, LAYERS, LAYER_BYTES = 16, 8, 32 << 10  # of a block
WRITE_THROUGH, NOT_FOUND = 2, -2


class Config(c.Structure):  # struct neotier_config
    _fields_ = [("struct_bytes", c.c_uint32), ("abi", c.c_uint32), ("tiers", c.c_char_p), ("max_objects", c.c_uint64),
                ("seed", c.c_uint64), ("hysteresis_ms", c.c_uint32), ("promote_heat", c.c_uint32),
                ("high_watermark", c.c_double), ("low_watermark", c.c_double), ("background_share", c.c_double),
                ("write_back", c.c_uint32), ("no_probes", c.c_uint32), ("events", c.c_uint64)]


class KvConfig(c.Structure):  # struct neotier_kv_config
    _fields_ = [("struct_bytes", c.c_uint32), ("block_tokens", c.c_uint32), ("layers", c.c_uint32), ("hash", c.c_uint32),
                ("layer_bytes", c.c_uint64), ("seed", c.c_char_p), ("space", c.c_char_p), ("write", c.c_uint32),
                ("write_after", c.c_uint32), ("store_after", c.c_uint32), ("reserved", c.c_uint32),
                ("recompute_ns", c.c_uint64), ("recompute_per_position_ns", c.c_uint64), ("lease_ms", c.c_uint64)]


lib.neotier_open.restype = lib.neotier_kv_open.restype = lib.neotier_kv_load_start.restype = c.c_void_p
lib.neotier_error.restype = c.c_char_p
for name in ("keys", "tenant", "session_open", "lookup", "load_blocks", "load_good", "stats"):
    getattr(lib, f"neotier_kv_{name}").restype = c.c_int64


def check(result):
    if result is None or result < 0:
        sys.exit(f"kv.py: {lib.neotier_error().decode()}")
    return result


class Connector:
    def __init__(self, file):
        config = Config(c.sizeof(Config), lib.neotier_abi(), f"dram=32M,ssd=64M:file={file}".encode(), 1000, events=65536)
        self.engine = c.c_void_p(check(lib.neotier_open(c.byref(config))))
        # The seed and the space are what lets a later process find these blocks.
        kv = KvConfig(c.sizeof(KvConfig), TOKENS, LAYERS, 0, LAYER_BYTES, b"0", b"example/bf16", WRITE_THROUGH, recompute_ns=10**9)
        self.kv = c.c_void_p(check(lib.neotier_kv_open(self.engine, c.byref(kv))))
        tenant = check(lib.neotier_kv_tenant(self.kv, b"alice", c.c_uint64(0)))
        self.session = c.c_uint64(check(lib.neotier_kv_session_open(self.kv, tenant, c.c_uint64(0), 0)))

    def prompt(self, tokens, compute):
        """KV of all whole blocks of the prompt: loaded where it is there, computed and stored where it is not."""
        nr = len(tokens) // TOKENS
        keys, text = c.create_string_buffer(16 * nr), (c.c_uint32 * len(tokens))(*tokens)
        check(lib.neotier_kv_keys(self.kv, text, c.c_size_t(len(tokens)), None, None, keys, c.c_size_t(nr)))
        cache = c.create_string_buffer(LAYERS * nr * LAYER_BYTES)  # [layer][block], as an engine's paged cache
        places = (c.c_void_p * (LAYERS * nr))(*(c.addressof(cache) + i * LAYER_BYTES for i in range(LAYERS * nr)))
        load = c.c_void_p(check(lib.neotier_kv_load_start(self.kv, self.session, keys, c.c_size_t(nr), places)))
        for layer in range(LAYERS):  # a forward pass would compute layer by layer here
            lib.neotier_kv_load_wait_layer(load, layer, c.c_uint64(10000))
        good = lib.neotier_kv_load_good(load)
        lib.neotier_kv_load_free(load)
        for block in range(good, nr):
            for layer in range(LAYERS):
                c.memmove(places[layer * nr + block], compute(layer, block), LAYER_BYTES)
        check(lib.neotier_kv_store(self.kv, self.session, keys, c.c_size_t(nr), places, 0, None))
        return good, cache.raw

    def close(self):
        check(lib.neotier_flush(self.engine))
        lib.neotier_kv_close(self.kv)
        lib.neotier_close(self.engine)


def kv_of(layer, block):
    return bytes([1 + (layer * 37 + block) % 255]) * LAYER_BYTES


def whole(nr):
    return b"".join(kv_of(layer, block) for layer in range(LAYERS) for block in range(nr))


with tempfile.TemporaryDirectory() as folder:
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(folder, "kv.ssd")
    turn = list(range(1000, 1000 + 20 * TOKENS))
    connector = Connector(path)
    first, cache = connector.prompt(turn, kv_of)
    assert (first, cache) == (0, whole(20))
    second, cache = connector.prompt(turn + list(range(5 * TOKENS)), kv_of)
    assert (second, cache) == (20, whole(25))
    connector.close()
    connector = Connector(path)
    third, cache = connector.prompt(turn + list(range(5 * TOKENS)), kv_of)
    assert (third, cache) == (25, whole(25))
    connector.close()
print(f"blocks found: first turn {first} of 20, second {second} of 25, after a restart {third} of 25")
