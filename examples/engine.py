#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What engine.c does, from Python with nothing but ctypes: engine.py [LIBNEOTIER.SO [TIERS]]."""
import ctypes as c
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
lib = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../build/lib/libneotier.so"))
TIERS = sys.argv[2] if len(sys.argv) > 2 else "dram=32M,cxl=64M"


class Config(c.Structure):  # struct neotier_config; what is left out at the end has its default
    _fields_ = [("struct_bytes", c.c_uint32), ("abi", c.c_uint32), ("tiers", c.c_char_p), ("max_objects", c.c_uint64)]


class PutOptions(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint32), ("kind", c.c_uint32), ("recompute_ns", c.c_uint64), ("tier", c.c_char_p),
                ("replace", c.c_uint32), ("reserved", c.c_uint32)]


class Decision(c.Structure):
    _fields_ = [("struct_bytes", c.c_uint32), ("choice", c.c_uint32), ("load_ns", c.c_uint64),
                ("recompute_ns", c.c_uint64), ("cpu_ns", c.c_uint64)]


lib.neotier_open.restype = lib.neotier_move.restype = c.c_void_p
lib.neotier_error.restype = c.c_char_p
lib.neotier_metrics.restype = c.c_int64
KV, DEMAND, LOAD, PROMETHEUS = 1, 0, 0, 0


def check(code):
    if not code or code < 0:
        sys.exit(f"engine.py: {lib.neotier_error().decode()}")
    return code


def key(n):
    return n.to_bytes(16, "little")


engine = c.c_void_p(check(lib.neotier_open(c.byref(Config(c.sizeof(Config), lib.neotier_abi(), TIERS.encode(), 1000)))))
kv = PutOptions(c.sizeof(PutOptions), KV, 50_000_000, None, 1, 0)
for n in range(24):
    block = bytes([n]) * (2 << 20)
    check(lib.neotier_put(engine, key(n), block, c.c_uint64(len(block)), c.byref(kv)) or 1)
ticket = c.c_void_p(check(lib.neotier_move(engine, key(23), c.c_size_t(1), b"cxl", DEMAND)))
check(lib.neotier_ticket_wait(ticket, c.c_uint64(10000)) or 1)
lib.neotier_ticket_free(ticket)
decision = Decision(c.sizeof(Decision))
check(lib.neotier_decide(engine, key(23), b"dram", c.c_uint64(0), c.c_uint64(0), c.byref(decision)) or 1)
back = c.create_string_buffer(len(block))
check(lib.neotier_get(engine, key(23), c.c_uint64(0), back, c.c_uint64(len(block))) or 1)
assert back.raw == block
text = c.create_string_buffer(65536)
check(lib.neotier_metrics(engine, PROMETHEUS, text, c.c_size_t(len(text))))
assert b"neotier_puts_total 24\n" in text.value
print(f"block 23: {decision.load_ns / 1e6:.2f} ms to load, {decision.recompute_ns / 1e6:.2f} ms to compute:",
      "load" if decision.choice == LOAD else "compute")
lib.neotier_close(engine)
