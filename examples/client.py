#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks kept by a neotierd that other processes use too: client.py [SOCKET [LIBNEOTIER.SO]]."""
import ctypes as c
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = sys.argv[1].encode() if len(sys.argv) > 1 else None  # None: $NEOTIERD_SOCKET, or the usual place
lib = c.CDLL(sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "../build/lib/libneotier.so"))


class PutOptions(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint32), ("kind", c.c_uint32), ("recompute_ns", c.c_uint64), ("tier", c.c_char_p),
                ("replace", c.c_uint32), ("reserved", c.c_uint32)]


lib.neotier_client_connect.restype = c.c_void_p
lib.neotier_error.restype = c.c_char_p
lib.neotier_client_lookup_prefix.restype = c.c_int64
KV, PREFETCH = 1, 1


def check(code):
    if code is None or code < 0:
        sys.exit(f"client.py: {lib.neotier_error().decode()}")
    return code


def key(n):
    return n.to_bytes(16, "little")


client = c.c_void_p(check(lib.neotier_client_connect(PATH, None)))
kv = PutOptions(c.sizeof(PutOptions), KV, 50_000_000, None, 1, 0)
for n in range(24):
    block = bytes([n]) * (1 << 20)
    check(lib.neotier_client_put(client, key(n), block, c.c_uint64(len(block)), c.byref(kv)))
keys = b"".join(key(n) for n in range(25))
found = check(lib.neotier_client_lookup_prefix(client, keys, c.c_size_t(25)))
pin = c.c_uint64()
check(lib.neotier_client_pin(client, key(23), c.c_uint64(60000), c.byref(pin), None))  # goes with this process, however it ends
back = c.create_string_buffer(len(block))
check(lib.neotier_client_get(client, key(23), c.c_uint64(0), back, c.c_uint64(len(block))))
assert back.raw == block
check(lib.neotier_client_unpin(client, pin))
print(f"{found} blocks of 25 are there; the 24th came back whole")
lib.neotier_client_close(client)
