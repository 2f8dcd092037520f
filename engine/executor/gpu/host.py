"""What the host keeps of slots, and how it gets to the device: pinned mirrors, copied in the order of the device's
work.

A mirror must not be written while the device may still read it. What is told of a step lies in one of a ring of
Stagings, which is longer than steps can be out; what is told of a slot when it opens has a mark, which is waited for.
Numpy writes them: torch would ask its allocator for every list.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.executor.gpu import state
from engine.executor.gpu.buffers import Buffers, step_views
from engine.executor.gpu.device import Device, Mark
from engine.executor.gpu.launch import Shape
from engine.model.gpu_layout import GpuSizes
from engine.step import Row, Sampling


class HostSlots:
    """Mirrors of the slots' state, and what the device knows of their block tables. Called within the device's
    order."""

    def __init__(self, device: Device, shape: Shape, slots: int) -> None:
        i32, vocab = torch.int32, shape.config.vocab
        self._device = device
        self._ints = device.pinned(slots, state.INTS, dtype=i32)
        self._reals = device.pinned(slots, state.REALS, dtype=torch.float64)
        self._seen = device.pinned(slots, vocab, dtype=i32)
        self._most = shape.table
        self._known: list[tuple[int, ...]] = [()] * slots
        """The blocks that the device's table has."""
        self._opened: dict[int, Mark] = {}
        """When what was last copied from a slot's mirrors had left them."""

    def forget(self) -> None:
        """The device's memory is new."""
        self._known = [()] * len(self._known)

    def update(self, buffers: Buffers, staging: Staging, rows: Sequence[Row]) -> None:
        """Before the rows run: opens the slots that they open, and brings their tables."""
        opened = [row for row in rows if row.opens is not None]
        for row in opened:
            if (mark := self._opened.pop(row.slot, None)) is not None:
                mark.wait()
            self._open(buffers, row.slot, row.opens, row.history)
        if opened:
            self._opened |= dict.fromkeys((row.slot for row in opened), self._device.mark())
        for row in rows:
            self._cover(buffers, staging, row)

    def _open(self, buffers: Buffers, slot: int, sampling: Sampling | None, history: Sequence[int]) -> None:
        assert sampling is not None
        state.fill(sampling, self._ints[slot].numpy(), self._reals[slot].numpy())
        buffers.slots.ints[slot].copy_(self._ints[slot], non_blocking=True)
        buffers.slots.reals[slot].copy_(self._reals[slot], non_blocking=True)
        if sampling.penalises:
            state.count(history, sampling.first, self._seen[slot].numpy())
            buffers.slots.seen[slot].copy_(self._seen[slot], non_blocking=True)

    def _cover(self, buffers: Buffers, staging: Staging, row: Row) -> None:
        """Copies what differs: for a decode row that takes a new block, one entry."""
        blocks, known = row.blocks[: self._most], self._known[row.slot]
        if blocks != known:
            same = len(known) if blocks[: len(known)] == known else 0
            staging.cover(buffers, row.slot, same, blocks[same:])
            self._known[row.slot] = blocks


class Staging:
    """What the device is told of a step, and tells of it."""

    def __init__(self, device: Device, shape: Shape, sizes: GpuSizes) -> None:
        tokens, rows, i32 = sizes.step_tokens, sizes.rows, torch.int32
        self._tile = shape.tile_tokens
        self._whole = device.pinned(6 * (tokens + rows), dtype=i32)
        self._step = step_views(self._whole, tokens, rows)
        self._table = device.pinned(sizes.slots, shape.table, dtype=i32)
        self._allowed = device.pinned(rows, shape.words, dtype=i32)
        self._masked = device.pinned(rows, dtype=i32)
        self._results = device.pinned(rows, 2, dtype=i32)
        self._ids = device.pinned(rows, state.TOLD, dtype=i32)
        self._told = device.pinned(rows, state.TOLD + 1, dtype=torch.float64)

    def describe(self, buffers: Buffers, rows: Sequence[Row]) -> None:
        """Tells of the rows."""
        step = self._step
        tokens = [token for row in rows for token in row.tokens or (-1,)]
        positions = [row.start + i for row in rows for i in range(row.count)]
        slots = [row.slot for row in rows for _ in range(row.count)]
        tiles: list[tuple[int, int, int]] = []
        samples: list[tuple[int, int]] = []
        first = 0
        for row in rows:
            for at in range(0, row.count, self._tile):
                tiles.append((row.slot, first + at, min(self._tile, row.count - at)))
            first += row.count
            if row.sample:
                samples.append((first - 1, row.slot))
        self._whole.numpy().fill(-1)
        step.tiled.counts.numpy().fill(0)
        step.tiled.firsts.numpy().fill(0)
        for target, values in (
            (step.tokens, tokens),
            (step.positions, positions),
            (step.slots, slots),
            (step.tiled.slots, [tile[0] for tile in tiles]),
            (step.tiled.firsts, [tile[1] for tile in tiles]),
            (step.tiled.counts, [tile[2] for tile in tiles]),
            (step.sample_tokens, [sample[0] for sample in samples]),
            (step.sample_slots, [sample[1] for sample in samples]),
        ):
            _put(target, values)
        buffers.step.whole.copy_(self._whole, non_blocking=True)

    def cover(self, buffers: Buffers, slot: int, start: int, blocks: Sequence[int]) -> None:
        """Brings a slot's table from entry `start` on."""
        part = slice(start, start + len(blocks))
        self._table[slot, part].numpy()[:] = blocks
        buffers.table[slot, part].copy_(self._table[slot, part], non_blocking=True)

    def allow(self, buffers: Buffers, masks: Sequence[tuple[int, bytes | None]]) -> None:
        """Brings the masks of the sampling rows, in their order with their slots; None where all is allowed."""
        words = self._allowed.shape[1]
        for index, (slot, mask) in enumerate(masks):
            if mask is not None:
                self._allowed[index].numpy()[:] = np.frombuffer(mask, np.int32, words)
                buffers.slots.allowed[slot].copy_(self._allowed[index], non_blocking=True)
        _put(self._masked, [int(mask is not None) for _, mask in masks])
        buffers.masked.copy_(self._masked, non_blocking=True)

    def fetch(self, buffers: Buffers, rows: int, told: bool) -> None:
        """Begins to bring the results of `rows` sampling rows."""
        self._results[:rows].copy_(buffers.results[:rows], non_blocking=True)
        if told:
            self._ids[:rows].copy_(buffers.told_ids[:rows], non_blocking=True)
            self._told[:rows].copy_(buffers.told[:rows], non_blocking=True)

    def results(self, rows: int) -> list[list[int]]:
        """[token or -1, reason to end or 0] of each; once they are there."""
        found: list[list[int]] = self._results[:rows].tolist()
        return found

    def told(self, row: int, top: int) -> tuple[float, list[int], list[float]]:
        """The sampled token's log-probability, and the likeliest ids with theirs."""
        values = self._told[row, : top + 1].tolist()
        return values[0], self._ids[row, :top].tolist(), values[1:]


def _put(target: Tensor, values: Sequence[int]) -> None:
    target.numpy()[: len(values)] = values
