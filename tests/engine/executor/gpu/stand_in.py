"""Devices that are the CPU, and watch what a real one would suffer from."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from engine.executor.gpu.device import CpuDevice, Work
from engine.executor.gpu.tiles import Tiles


class Graph:
    """What a work was captured as: nothing that it does is seen when it is replayed."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def replay(self) -> None:
        with _disable_current_modes():
            self._work()


class Recorder(CpuDevice):
    """Captures as CUDA does: each work has run before, and its graph takes memory for as long as somebody has it."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__(tiles)
        self.captures = True
        self.told: list[str] = []
        """What happened to it, in order."""
        self.graphs: list[weakref.ref[Graph]] = []

    @property
    def kept(self) -> int:
        """Graphs that somebody has."""
        return sum(graph() is not None for graph in self.graphs)

    def beside(self) -> AbstractContextManager[Any]:
        self.told.append("beside")
        return super().beside()

    def join(self) -> None:
        self.told.append("joined")

    def capture(self, work: Work) -> Work:
        self.told.append("captured")
        graph = Graph(work)
        self.graphs.append(weakref.ref(graph))
        return graph.replay

    def forget(self) -> None:
        assert not self.kept
        self.told.append("forgotten")


@dataclass(eq=False)
class Copy:
    """On its way from memory that the device reads by itself."""

    source: Tensor
    content: Tensor


class LateDevice(CpuDevice):
    """Reads what it is to copy from pinned memory as late as it may: when somebody has waited for it."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__(tiles)
        self._pinned: set[int] = set()
        self.flying: list[Copy] = []
        self.landed = 0

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        found = super().pinned(*shape, dtype=dtype)
        self._pinned.add(found.untyped_storage().data_ptr())
        return found

    def mark(self) -> LateMark:
        return LateMark(self, tuple(self.flying))

    def copied(self, source: Tensor) -> None:
        if source.untyped_storage().data_ptr() in self._pinned:
            self.flying.append(Copy(source, source.clone()))

    def land(self, copy: Copy) -> None:
        if copy in self.flying:
            self.flying.remove(copy)
            self.landed += 1
            assert torch.equal(copy.source, copy.content), "pinned memory was written while the device might read it"


class LateMark:
    def __init__(self, device: LateDevice, before: tuple[Copy, ...]) -> None:
        self._device, self._before = device, before

    def wait(self) -> None:
        for copy in self._before:
            self._device.land(copy)

    def seconds(self) -> float:
        return 0.0


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """All that torch is asked for meanwhile."""

    def __init__(self, copied: Callable[[Tensor], None] = lambda source: None) -> None:
        """copied: called with the source of each copy."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []
        self.allocating: list[str] = []
        """Of these, those whose result lies in memory that none of their arguments has."""
        self._copied = copied

    def __torch_dispatch__(
        self, function: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if str(function) == "aten.copy_.default":
            self._copied(args[1])
        result = function(*args, **(kwargs or {}))
        self.seen.append(str(function))
        known = {_place(one) for one in args if isinstance(one, Tensor)}
        made = isinstance(result, Tensor) and _place(result) not in known
        if made or "lift_fresh" in str(function):  # how torch.tensor shows
            self.allocating.append(str(function))
        return result


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
