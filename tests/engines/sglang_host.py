# SPDX-License-Identifier: Apache-2.0
"""The part of SGLang that a storage backend meets: its own host pools and HiCacheController with its threads, driven as its tree cache
drives them, with no model and no GPU. A page's bytes follow from its hash, so that each byte that comes back can be checked."""
import collections
import contextlib
import logging
import queue
import threading
import time

import numpy as np
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

TOKENS = 16  # of a page
MODULE = "neotier.sglang"


def tokens(blocks):
    """Of a block's number, which names all that is before it."""
    return [block * TOKENS + at for block in blocks for at in range(TOKENS)]


def hashes(blocks):
    return get_storage_hash_str(tokens(blocks), None, page_size=TOKENS)


@contextlib.contextmanager
def parallel(**given):
    ranks = {"tp_rank": 0, "pp_rank": 0, "attn_tp_rank": 0, "attn_dp_rank": 0, "attn_dcp_rank": 0}
    sizes = {"tp_size": 1, "pp_size": 1, "attn_dcp_size": 1, "attn_tp_size": 1, "attn_cp_size": 1}
    with get_parallel().override(**{**ranks, **sizes, **given}):
        yield


def device_pool(kind="mha", heads=2, head=32, v_head=None, layers=3, dtype=torch.bfloat16):
    common = dict(size=4 * TOKENS, page_size=TOKENS, dtype=dtype, layer_num=layers, device="cpu", enable_memory_saver=False)
    if kind == "mla":
        return MLATokenToKVPool(kv_lora_rank=head, qk_rope_head_dim=8, **common)
    return MHATokenToKVPool(head_num=heads, head_dim=head, v_head_dim=v_head, **common)


def host_pool(device, pages, layout):
    common = dict(host_to_device_ratio=pages / 4, host_size=0, page_size=TOKENS, layout=layout, pin_memory=False, device="cpu",
                  device_capacity_tokens=4 * TOKENS)
    if isinstance(device, MLATokenToKVPool):
        return MLATokenToKVPoolHost(device._mla_buffer_info(), start_layer=0, end_layer=device.layer_num - 1,
                                    target_layer_num=device.layer_num, **common)
    info = device._mha_buffer_info()
    return get_mha_host_pool_cls(info)(info, start_layer=0, end_layer=device.layer_num - 1, **common)


class _Allocator:
    def __init__(self, pool):
        self.pool = pool

    def get_kvcache(self):
        return self.pool


class Server:
    """Serves requests over a host cache of so many pages and a storage. What a request finds is a prefix: leading pages in the host's
    cache, then those that the storage has. It is loaded, checked, and what follows is computed and stored."""

    def __init__(self, extra, pages=64, layout="page_first_direct", model="a model", prefix_keys=True, backend="dynamic", split=None, **pool):
        self.device = device_pool(**pool)
        self.host = host_pool(self.device, pages, layout)
        self.prefix_keys = prefix_keys
        with parallel(**(split or {})):
            self.controller = HiCacheController(
                _Allocator(self.device), self.host, TOKENS, None, threading.Event(), prefetch_threshold=TOKENS, model_name=model,
                storage_backend=backend, storage_backend_extra_config={
                    "backend_name": "neotier", "module_path": MODULE, "class_name": "NeoTierStorage", "interface_v1": 1, **extra})
        self.view = self.bytes_of(self.host)
        self.cached = collections.OrderedDict()  # hash: rows, the least recently used first
        self.number = self.found = self.asked = self.wrong = self.from_storage = 0
        self.served = []

    @property
    def storage(self):
        return self.controller.storage_backend

    @staticmethod
    def bytes_of(host):
        """Of a page, as a function of its rows; whatever the layout is."""
        buffers = [host.k_buffer, host.v_buffer] if not isinstance(host, MLATokenToKVPoolHost) else [host.kv_buffer]
        at = 1 if host.layout == "layer_first" else 0
        by_page = host.layout in ("page_first_direct", "page_head")

        def view(rows):
            first, nr = (rows[0] // TOKENS, 1) if by_page else (rows[0], TOKENS)
            return [buffer.narrow(at, int(first), nr) for buffer in buffers]
        return view

    def pattern(self, one, shape, dtype, salt):
        size = int(np.prod(shape)) * dtype.itemsize
        seed = int(one[:8], 16) ^ salt
        text = np.frombuffer(np.random.Philox(seed).random_raw(size // 8 + 1).tobytes()[:size], np.uint8)
        return torch.from_numpy(text.copy()).view(dtype).reshape(shape)

    def write(self, one, rows):
        for salt, view in enumerate(self.view(rows)):
            view.copy_(self.pattern(one, view.shape, view.dtype, salt))

    def check(self, one, rows):
        good = all(torch.equal(view.contiguous().view(torch.uint8), self.pattern(one, view.shape, view.dtype, salt).view(torch.uint8))
                   for salt, view in enumerate(self.view(rows)))
        self.wrong += not good

    def rows(self, nr, keep=()):
        """Room for so many pages; those used least recently leave the host's cache. None: there is none."""
        need = nr * TOKENS
        while self.host.available_size() < need:
            leave = next((one for one in self.cached if one not in keep), None)
            if leave is None:
                return None
            self.host.free(self.cached.pop(leave))
        return self.host.alloc(need)

    def wait(self, what, seconds=60):
        try:
            return what.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError("one of SGLang's threads does not answer") from None

    def serve(self, blocks):
        """How many leading pages were found."""
        names = hashes(blocks)
        here = 0
        while here < len(names) and names[here] in self.cached:
            self.cached.move_to_end(names[here])
            here += 1
        found = here
        if here < len(names):
            found += self.prefetch(blocks, names, here)
        for one in names[:found]:
            self.check(one, self.cached[one])
        self.found += found
        self.asked += len(names)
        self.served.append(found)
        self.compute(blocks, names, found)
        return found

    def prefixes(self, names):
        return list(names) if self.prefix_keys else None

    def prefetch(self, blocks, names, here):
        self.number += 1
        last = names[here - 1] if here else None
        self.controller.prefetch(str(self.number), tokens(blocks[here:]), last, self.prefixes(names[:here]))
        operation = self.wait(self.controller.prefetch_hit_queue)
        nr = operation.storage_hit_count // TOKENS
        rows = self.rows(nr, names[:here]) if nr else None
        while nr and rows is None:  # as much as there is room for
            nr //= 2
            rows = self.rows(nr, names[:here]) if nr else None
        if not nr:
            return 0
        operation.hash_value, operation.host_indices = operation.hash_value[:nr], rows
        assert operation.hash_value == names[here:here + nr]
        self.controller.prefetch_buffer.put(operation)
        done, ended = 0, False
        while not ended:
            ack = self.wait(self.controller.ack_prefetch_queue)
            done = done if ack.completed_tokens is None else ack.completed_tokens
            ended = bool(ack.completed_req)
        got = done // TOKENS
        for page in range(nr):
            part = rows[page * TOKENS:(page + 1) * TOKENS]
            if page < got:
                self.cached[names[here + page]] = part
            else:
                self.host.free(part)
        self.from_storage += got
        return got

    def compute(self, blocks, names, found):
        """In parts, as a server with a small host cache must."""
        most = max(1, self.host.page_num // 4)
        at = found
        while at < len(names):
            nr = min(most, len(names) - at)
            rows = self.rows(nr, names[at:at + nr])
            assert rows is not None
            for page in range(nr):
                part = rows[page * TOKENS:(page + 1) * TOKENS]
                self.write(names[at + page], part)
                self.cached[names[at + page]] = part
            self.controller.write_storage(rows, tokens(blocks[at:at + nr]), names[at:at + nr], prefix_keys=self.prefixes(names[:at]))
            self.wait(self.controller.ack_backup_queue)
            at += nr

    def forget(self):
        """Empties the host's cache."""
        for rows in self.cached.values():
            self.host.free(rows)
        self.cached.clear()

    def threads(self):
        return [getattr(self.controller, name) for name in ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")]

    def close(self):
        if self.controller is not None:
            self.controller.detach_storage_backend()
            self.controller = None


def quiet():
    for name in (None, "sglang", MODULE):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def until(what, seconds=10):
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()
