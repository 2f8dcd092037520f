"""The works of a step, captured once for each number of tokens and of sampling rows that steps are padded to."""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine.executor.gpu import launch
from engine.executor.gpu.buffers import Buffers
from engine.executor.gpu.device import Device, Work
from engine.executor.gpu.forward import Ready, forward
from engine.executor.gpu.launch import Shape
from engine.executor.gpu.weights import Weights
from engine.model.gpu_layout import GpuSizes


def ladder(step_tokens: int) -> Iterator[int]:
    """1, 2, 4, … and the largest: a step runs as the next of these."""
    size = 1
    while size < step_tokens:
        yield size
        size *= 2
    yield step_tokens


class Works:
    """Made again whenever the memory behind the tensors is."""

    def __init__(self, device: Device, shape: Shape, weights: Weights, buffers: Buffers, sizes: GpuSizes) -> None:
        """Where the device captures, everything is run once before, on a step of no rows: that compiles it.

        The largest first: what a graph's sort takes beside the arena, those that are captured later take again.
        """
        self._device, self._shape, self._weights, self._buffers = device, shape, weights, buffers
        self._sizes = tuple(ladder(sizes.step_tokens))
        self._slots = sizes.slots
        self._forwards: dict[int, Work] = {}
        self._samples: dict[tuple[int, bool], Work] = {}
        self.compiled_s = self.captured_s = 0.0
        """What that took."""
        buffers.step.whole.fill_(-1)
        buffers.step.tiled.counts.zero_()
        buffers.step.tiled.firsts.zero_()
        for tokens in reversed(self._sizes):
            self._forwards[tokens] = self._captured(lambda n=tokens: self.run(n))  # type: ignore[misc]
        for rows in sorted({self.rows(tokens) for tokens in self._sizes}, reverse=True):
            for drawn in (True, False):
                work = self._captured(lambda n=rows, d=drawn: self._sample(n, d))  # type: ignore[misc]
                self._samples[rows, drawn] = work
            if device.captures:
                self.tell(rows)
        device.trim()  # of what was taken before there was a graph

    def drop(self) -> None:
        """Nothing can be run any more; the graphs and their memory are given back."""
        self._forwards.clear()
        self._samples.clear()
        self._device.forget()

    def padded(self, tokens: int) -> int:
        return next(size for size in self._sizes if size >= tokens)

    def rows(self, padded: int) -> int:
        """Sampling rows of a step of so many tokens."""
        return min(padded, self._slots)

    def run(self, padded: int, ready: Ready = lambda layer: None) -> None:
        """The forward pass, launch by launch: while the weights are on their way."""
        forward(self._shape, self._weights, self._buffers, padded, self.rows(padded), ready)

    def forward(self, padded: int) -> None:
        self._forwards[padded]()

    def sample(self, rows: int, drawn: bool) -> None:
        """drawn: a row has a temperature; without one, nothing need be sorted."""
        self._samples[rows, drawn]()

    def tell(self, rows: int) -> None:
        buffers = self._buffers
        launch.tell(
            self._shape, buffers.logits[:rows], buffers.choice[:rows], buffers.sampled(rows), buffers.slots,
            buffers.told_ids[:rows], buffers.told[:rows],
        )  # fmt: skip

    def _sample(self, rows: int, drawn: bool) -> None:
        shape, buffers = self._shape, self._buffers
        sampled, state, choice = buffers.sampled(rows), buffers.slots, buffers.choice[:rows]
        positions, adjusted = buffers.step.positions, buffers.adjusted[:rows]
        launch.adjust(shape, buffers.logits[:rows], sampled, positions, state, adjusted, choice)
        if drawn:
            ordered, order = buffers.ordered[:rows], buffers.order[:rows]
            launch.sort(adjusted, ordered, order)
            launch.draw(shape, ordered, order, sampled, positions, state, choice)
        launch.commit(shape, choice, sampled, state, buffers.results[:rows])

    def _captured(self, work: Work) -> Work:
        began = time.monotonic()
        if self._device.captures:
            work()
        ran = time.monotonic()
        self.compiled_s += ran - began
        captured = self._device.capture(work)
        self.captured_s += time.monotonic() - ran
        return captured
