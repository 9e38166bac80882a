# SPDX-License-Identifier: Apache-2.0
"""Where a block of vLLM's paged KV cache lies: the layers' tensors as pieces of one stride each. No byte is touched here."""
from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..kv import Pieces

MOST_PIECES = 256  # of a layer


@dataclass(frozen=True)
class Layer:
    """piece p of block b: piece_bytes at base + b * block_stride + offsets[p]. order: how the bytes of a piece are meant, so that
    equal text, exchangeable bytes."""

    base: int
    block_stride: int
    offsets: tuple[int, ...]
    piece_bytes: int
    order: str


def layer(name: str, tensor: Any, blocks: int) -> Layer:
    """ValueError, one line: the tensor holds no blocks, or one that is torn into too many pieces."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"neotier.vllm: layer '{name}' keeps a {type(tensor).__name__}, no blocks of KV; only attention layers are "
                         "served")
    shape, strides = list(tensor.shape), [stride * tensor.element_size() for stride in tensor.stride()]
    found = [dim for dim, size in enumerate(shape) if size == blocks]
    if found[:1] != [0] and not (len(found) == 1):
        if found or not shape or shape[0] % blocks or not shape[0]:
            raise ValueError(f"neotier.vllm: layer '{name}' of shape {tuple(shape)} has {len(found)} dimensions of {blocks} blocks; one "
                             "is wanted")
        # Blocks of the kernel, several to one of the scheduler's.
        part = shape[0] // blocks
        shape, strides = [blocks, part, *shape[1:]], [strides[0] * part, strides[0], *strides[1:]]
        found = [0]
    dim = found[0]
    others = sorted((strides[at], shape[at], at) for at in range(len(shape)) if at != dim and shape[at] != 1)
    run, torn = tensor.element_size(), []
    for stride, size, at in others:
        if stride == run and not torn:
            run *= size
        else:
            torn.append((stride, size, at))
    nr = 1
    for _, size, _ in torn:
        nr *= size
    if nr > MOST_PIECES or not 0 < run <= strides[dim]:
        raise ValueError(f"neotier.vllm: layer '{name}': a block lies in {nr} pieces of {run} bytes, {strides[dim]} bytes from one "
                         f"block to the next; what is inside a block must be contiguous, in {MOST_PIECES} pieces at most")
    steps = ([stride * i for i in range(size)] for stride, size, _ in reversed(torn))
    offsets = tuple(sum(part) for part in itertools.product(*steps))
    order = f"{tensor.dtype}" + "".join(f" {at}x{size}" for _, size, at in others)
    return Layer(tensor.data_ptr(), strides[dim], offsets, run, order)


class Cache:
    """The registered tensors, as long as vLLM has them. Layers that share a tensor are one.

    index: of each name its layer. Thread safety: all calls from any thread.
    """

    def __init__(self, tensors: dict[str, Any], blocks: int) -> None:
        if not tensors:
            raise ValueError("neotier.vllm: vLLM has registered no KV cache; this model or worker keeps none")
        numbers = {name: [int(number) for number in re.findall(r"\d+", name)] for name in tensors}
        made: dict[Layer, int] = {}
        self.index: dict[str, int] = {}
        # In the order in which the model runs, as far as the names tell: layer 0 is loaded first.
        for name in sorted(tensors, key=lambda name: numbers[name]):
            one = layer(name, tensors[name], blocks)
            self.index[name] = made.setdefault(one, len(made))
        self.layers = list(made)
        self.blocks = blocks
        self.tensors = list(tensors.values())
        self.layer_pieces = [len(one.offsets) for one in self.layers]
        self.piece_bytes = [one.piece_bytes for one in self.layers for _ in one.offsets]
        places = [(one.base + offset, one.block_stride) for one in self.layers for offset in one.offsets]
        self._bases, self._strides = (torch.tensor(column, dtype=torch.int64)[:, None] for column in zip(*places))
        self.device = self.tensors[0].device
        if any(tensor.device != self.device for tensor in self.tensors):
            raise ValueError("neotier.vllm: the KV cache lies on several devices; one is wanted in each worker")

    @property
    def block_bytes(self) -> int:
        return sum(self.piece_bytes)

    def pieces(self, numbers: Sequence[int]) -> Pieces:
        """Of those blocks, piece by piece. IndexError where there is no such block."""
        for number in numbers:
            if not 0 <= number < self.blocks:
                raise IndexError(f"block {number} of {self.blocks}")
        # One operation for all: a request has tens of thousands, and each would take longer by itself than its copy.
        addresses = self._bases + torch.tensor(numbers, dtype=torch.int64) * self._strides
        return Pieces(memoryview(addresses.reshape(-1).numpy()), max(self.piece_bytes), self)

    def describe(self) -> list[str]:
        return [f"{one.order} in {len(one.offsets)}" for one in self.layers]
