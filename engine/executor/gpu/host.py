"""What the host keeps of slots, and how it gets to the device: pinned mirrors, copied in the order of the device's
work."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.executor.gpu import state
from engine.executor.gpu.buffers import Buffers, step_views
from engine.executor.gpu.device import Device, Mark
from engine.executor.gpu.launch import Shape
from engine.model.gpu_layout import GpuSizes
from engine.step import Row, Sampling


class HostSlots:
    """Mirrors of the slots' state and block tables. Called within the device's order."""

    def __init__(self, device: Device, shape: Shape, slots: int) -> None:
        i32, vocab = torch.int32, shape.config.vocab
        self._ints = device.pinned(slots, state.INTS, dtype=i32)
        self._reals = device.pinned(slots, state.REALS, dtype=torch.float64)
        self._seen = device.pinned(slots, vocab, dtype=i32)
        self._table = device.pinned(slots, shape.table, dtype=i32)
        self._allowed = device.pinned(slots, shape.words, dtype=i32)
        self._known: list[tuple[int, ...]] = [()] * slots
        """The blocks that the device's table has."""
        self._copied: dict[int, Mark] = {}
        """When what was last copied from a slot's mirrors had left them."""

    def forget(self) -> None:
        """The device's memory is new."""
        self._known = [()] * len(self._known)

    def update(self, device: Device, buffers: Buffers, rows: Sequence[Row]) -> None:
        """Before the rows run: opens the slots that they open, and brings their tables."""
        changed = [row.slot for row in rows if self._changes(row)]
        for slot in changed:
            if (mark := self._copied.pop(slot, None)) is not None:
                mark.wait()
        for row in rows:
            if row.opens is not None:
                self._open(buffers, row.slot, row.opens, row.history)
            self._cover(buffers, row)
        if changed:
            self._copied |= dict.fromkeys(changed, device.mark())

    def allow(self, buffers: Buffers, slot: int, mask: bytes) -> None:
        words = self._allowed.shape[1]
        self._allowed[slot].copy_(torch.frombuffer(bytearray(mask[: 4 * words]), dtype=torch.int32))
        buffers.slots.allowed[slot].copy_(self._allowed[slot], non_blocking=True)

    def _changes(self, row: Row) -> bool:
        return row.opens is not None or row.blocks != self._known[row.slot]

    def _open(self, buffers: Buffers, slot: int, sampling: Sampling, history: Sequence[int]) -> None:
        state.fill(sampling, self._ints[slot].numpy(), self._reals[slot].numpy())
        buffers.slots.ints[slot].copy_(self._ints[slot], non_blocking=True)
        buffers.slots.reals[slot].copy_(self._reals[slot], non_blocking=True)
        if sampling.penalises:
            state.count(history, sampling.first, self._seen[slot].numpy())
            buffers.slots.seen[slot].copy_(self._seen[slot], non_blocking=True)

    def _cover(self, buffers: Buffers, row: Row) -> None:
        """Copies what differs: for a decode row that takes a new block, one entry."""
        blocks, known = row.blocks[: self._table.shape[1]], self._known[row.slot]
        if blocks == known:
            return
        same = 0
        if blocks[: len(known)] == known:
            same = len(known)
        part = slice(same, len(blocks))
        self._table[row.slot, part] = torch.tensor(blocks[part], dtype=torch.int32)
        buffers.table[row.slot, part].copy_(self._table[row.slot, part], non_blocking=True)
        self._known[row.slot] = blocks


class Staging:
    """What the device is told of a step, and tells of it: one of a ring of pinned buffers, so that the host can fill
    the next while the device reads this one."""

    def __init__(self, device: Device, shape: Shape, sizes: GpuSizes) -> None:
        tokens, rows = sizes.step_tokens, sizes.rows
        self._tile = shape.tile_tokens
        self._whole = device.pinned(6 * (tokens + rows), dtype=torch.int32)
        self._step = step_views(self._whole, tokens, rows)
        self._masked = device.pinned(rows, dtype=torch.int32)
        self._results = device.pinned(rows, 2, dtype=torch.int32)
        self._ids = device.pinned(rows, state.TOLD, dtype=torch.int32)
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
        self._whole.fill_(-1)
        step.tiled.counts.zero_()
        step.tiled.firsts.zero_()
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

    def mask(self, buffers: Buffers, masked: Sequence[bool]) -> None:
        """Tells which sampling rows have a mask."""
        _put(self._masked, [int(one) for one in masked])
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
    if values:
        target[: len(values)] = torch.tensor(values, dtype=torch.int32)
