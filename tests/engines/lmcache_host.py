# SPDX-License-Identifier: Apache-2.0
"""The part of LMCache that an L2 adapter meets: its own StorageManager (MP mode) with its controllers' threads, with no model and no
GPU. An object's bytes follow from its key, so that each byte that comes back can be checked."""
import hashlib
import logging
import time

import numpy as np
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig, get_l2_adapter_config_class
from lmcache.v1.distributed.storage_manager import StorageManager

MODULE = "neotier.lmcache"


def key(block, model="a/model", rank=0, group=0, salt=""):
    return ObjectKey(hashlib.sha256(b"%d" % block).digest(), model, rank, group, salt)


def layout(nr_bytes):
    return MemoryLayoutDesc([torch.Size([nr_bytes // 2])], [torch.bfloat16])


def adapter_config(kind, **fields):
    return get_l2_adapter_config_class(kind).from_dict({"type": kind, **fields})


def neotier(params):
    return adapter_config("plugin", module_path=MODULE, class_name="NeoTierAdapter", adapter_params=params)


class Server:
    """Serves requests over an L1 of so many bytes and an L2. What a request finds is a prefix. It is read and checked; what follows is
    computed and written to L1, from where LMCache's store controller brings it to L2."""

    def __init__(self, adapter, l1_bytes=4 << 20, object_bytes=16384, model="a/model", groups=1):
        memory = L1MemoryManagerConfig(size_in_bytes=l1_bytes, use_lazy=False, shm_name="")
        self.manager = StorageManager(StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory), eviction_config=EvictionConfig("LRU"),
            l2_adapter_config=L2AdaptersConfig([adapter] if adapter else [])))
        self.model, self.groups, self.object_bytes = model, groups, object_bytes
        self.found = self.asked = self.wrong = self.from_l2 = self.unwritten = 0
        self.served = []

    @property
    def adapter(self):
        return self.manager.l2_adapters()[0][1]

    def keys(self, blocks, group=0):
        return [key(block, self.model, group=group) for block in blocks]

    def pattern(self, one, nr_bytes):
        seed = int.from_bytes(one.chunk_hash[:8], "little") + one.object_group_id
        return torch.from_numpy(np.frombuffer(np.random.Philox(seed).random_raw(nr_bytes // 8 + 1).tobytes()[:nr_bytes], np.uint8).copy())

    def bytes_of(self, group):
        return self.object_bytes * (group + 1)

    def serve(self, blocks):
        """How many leading blocks were found, in all groups."""
        blocks = list(blocks)
        used, room = self.manager.get_l1_usage()
        if used > room / 2:  # LMCache's own eviction looks once a second
            self.forget()
        rows = [GroupedObjectKeys(self.keys(blocks, group), group, layout(self.bytes_of(group))) for group in range(self.groups)]
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec(rows))
        if not self.manager.wait_prefetch_status(handle, 60):
            raise AssertionError("LMCache's prefetch controller does not answer")
        result = self.manager.query_prefetch_status(handle)
        found = min((row.count_leading_ones() for row in result.hit_cells), default=0)
        self.from_l2 += sum(row.popcount() for row in result.l2_hit_cells)
        for group, (row, hits) in enumerate(zip(rows, result.hit_cells)):
            mine = row.keys[:found]
            if mine:
                with self.manager.read_prefetched_results(mine) as objects:
                    assert objects is not None, "what was prefetched is not there"
                    for one, held in zip(mine, objects):
                        self.wrong += not torch.equal(held.raw_tensor[:held.get_size()], self.pattern(one, self.bytes_of(group)))
            retained = [row.keys[at] for at in hits.get_indices_list()]
            if retained:
                self.manager.finish_read_prefetched(retained)
            self.write(row.keys[found:], group)
        self.found += found
        self.asked += len(blocks)
        self.served.append(found)
        return found

    def write(self, keys, group):
        for at in range(0, len(keys), 32):
            part = keys[at:at + 32]
            for _ in range(20):
                reserved = self.manager.reserve_write(part, layout(self.bytes_of(group)))
                for one, held in reserved.items():
                    held.raw_tensor[:held.get_size()] = self.pattern(one, self.bytes_of(group))
                if reserved:
                    self.manager.finish_write(list(reserved))
                part = [one for one in part if one not in reserved]
                if not part:
                    break
                self.forget()
            self.unwritten += len(part)

    def settle(self, seconds=20):
        """Until LMCache's store controller has nothing under way."""
        quiet, end = 0, time.monotonic() + seconds
        while quiet < 10 and time.monotonic() < end:
            status = self.manager.report_status()["store_controller"]
            quiet = 0 if status["pending_keys_count"] or status["in_flight_task_count"] else quiet + 1
            time.sleep(0.001)
        return self

    def forget(self):
        """Empties L1."""
        self.settle()
        self.manager.clear()

    def close(self):
        if self.manager is not None:
            manager, self.manager = self.manager, None
            manager.close()


def quiet():
    for name in (None, "lmcache", MODULE):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for logger in list(logging.Logger.manager.loggerDict):
        if logger.startswith("lmcache"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
