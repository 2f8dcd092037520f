"""The copies of an upload with torch: from the file's pages into a ring of pinned buffers, from there to the device.

Not straight from the pages: to register them with the driver is to read the whole of the file before the first byte of
it crosses, and to hold all of it in memory from then on.

Run in tests on torch's CPU device alone: there a copy is done when `send` returns and streams and events are not there.
Not run for lack of a GPU: pinned memory, side stream, events, and every figure of speed.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engine.executor.upload import Span, Uploader

SLOTS: Final = 4
SLOT_BYTES: Final = 32 << 20
THREADS: Final = 2
"""That copy pages into the ring: one is slower than the link of a recent device."""


class MappedBytes:
    """A part of a file, mapped read-only and shared, as a tensor [nbytes] of uint8 that must not be written."""

    def __init__(self, path: Path, offset: int, nbytes: int) -> None:
        """offset: any. Raises OSError, ValueError where the file is shorter."""
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        if offset < 0 or nbytes < 1 or offset + nbytes > len(self._mapping):
            raise ValueError(f"{path}: {nbytes} bytes at {offset} are wanted of {len(self._mapping)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors
            self.bytes: Tensor = torch.frombuffer(self._mapping, dtype=torch.uint8, count=nbytes, offset=offset)


class TorchTransport:
    """To a CUDA device on a stream of its own, or to the CPU at once."""

    def __init__(
        self, source: Tensor, target: Tensor, layers: int, *, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES
    ) -> None:
        """source: [n] uint8 on the CPU; target: [n] uint8 on the device. Raises RuntimeError for want of memory."""
        cuda = target.is_cuda
        self.slots, self.slot_bytes = slots, slot_bytes
        self._source, self._target = source, target
        self._buffers = [torch.empty(slot_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(slots)]
        self._side = _Side(target, slots, layers) if cuda else None

    def stage(self, slot: int, piece: Span) -> None:
        self._buffers[slot][: piece.nbytes].copy_(_part(self._source, piece))

    def send(self, slot: int, piece: Span) -> None:
        with self._side.stream() if self._side else nullcontext():
            _part(self._target, piece).copy_(self._buffers[slot][: piece.nbytes], non_blocking=True)
        if self._side:
            self._side.sent(slot)

    def drained(self, slot: int) -> None:
        if self._side:
            self._side.drained(slot)

    def mark(self, layer: int) -> None:
        if self._side:
            self._side.mark(layer)

    def follow(self, layer: int) -> None:
        if self._side:
            self._side.follow(layer)

    def close(self) -> None:
        self._buffers.clear()


class _Side:
    """A CUDA stream beside the one that computes, and the events on it."""

    def __init__(self, target: Tensor, slots: int, layers: int) -> None:
        self._device = target.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # The target's memory may be what earlier work on the computing stream has just given up.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        target.record_stream(self._stream)
        self._sent = [_event() for _ in range(slots)]
        self._marks = [_event() for _ in range(layers)]

    def stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def sent(self, slot: int) -> None:
        self._sent[slot].record(self._stream)

    def drained(self, slot: int) -> None:
        self._sent[slot].synchronize()

    def mark(self, layer: int) -> None:
        self._marks[layer].record(self._stream)

    def follow(self, layer: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._marks[layer])


def uploader(source: Tensor, target: Tensor, layers: Sequence[Span]) -> Uploader:
    """source: [n] uint8, mapped; target: [n] uint8 on the device."""
    return Uploader(TorchTransport(source, target, len(layers)), layers, threads=THREADS)


class DeviceWeights:
    """Weights in a device's arena, which sleep gives back: they stay in the mapping, and wake uploads them again.

    Views of `arena` stay good over a sleep. Addresses do not: CUDA graphs captured before it must be captured again.
    """

    def __init__(self, source: MappedBytes, layers: Sequence[Span], device: torch.device) -> None:
        """Takes memory on the device; raises RuntimeError where there is too little, ValueError for a layer outside."""
        self._source, self._layers = source, tuple(layers)
        nbytes = source.bytes.numel()
        for layer in self._layers:
            if layer.offset < 0 or layer.nbytes < 0 or layer.offset + layer.nbytes > nbytes:
                raise ValueError(f"a layer of {layer.nbytes} bytes at {layer.offset} lies outside of {nbytes}")
        self.arena = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def upload(self) -> Uploader:
        """Begun already; for its `wait` and `finish`."""
        found = uploader(self._source.bytes, self.arena, self._layers)
        found.begin()
        return found

    def sleep(self) -> None:
        """Gives the device's memory back to whoever wants it. Nothing may run, no upload either. Idempotent."""
        if self.arena.is_cuda:
            torch.cuda.synchronize(self.arena.device)
        self.arena.untyped_storage().resize_(0)
        if self.arena.is_cuda:
            torch.cuda.empty_cache()

    def wake(self) -> Uploader:
        """Takes the memory again, and begins the upload. Raises RuntimeError where somebody else has it now."""
        self.arena.untyped_storage().resize_(self.arena.numel())
        return self.upload()


def _part(whole: Tensor, piece: Span) -> Tensor:
    return whole[piece.offset : piece.offset + piece.nbytes]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
