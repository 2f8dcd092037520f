"""What a step needs of a device beside kernels: order, graphs, pinned memory, marks in time.

Two of them: CUDA's, and torch's CPU, on which the same code runs at once, with the kernels interpreted.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from engine.executor.gpu.tiles import AMPERE, HOPPER, INTERPRETED, Tiles

Work = Callable[[], None]


class DeviceError(RuntimeError):
    """The device cannot be used; the message says why and what to do."""


class Mark(Protocol):
    """A moment in the order of the device's work."""

    def wait(self) -> None:
        """Blocks, without the interpreter lock, until the device has passed it."""

    def seconds(self) -> float:
        """When that was, in CLOCK_MONOTONIC. After `wait`."""


class Device(ABC):
    torch_device: torch.device
    tiles: Tiles
    name: str
    """As `numerics` tells it: what decides the bits."""
    captures: bool
    """Whether `capture` makes anything of a work: then it must have run before."""

    @abstractmethod
    def order(self) -> AbstractContextManager[Any]:
        """Work given within it is done in the order in which it is given."""

    @abstractmethod
    def capture(self, work: Work) -> Work:
        """Something that does the same as `work` at less cost, for as long as its tensors stay where they are."""

    @abstractmethod
    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros in memory of the host that the device copies from and to by itself."""

    @abstractmethod
    def mark(self) -> Mark: ...

    @abstractmethod
    def settle(self) -> None:
        """Blocks until all work is done."""

    @abstractmethod
    def allocations(self) -> int:
        """How often memory of the device was asked for or given back, in this process."""


class CpuMark:
    def __init__(self) -> None:
        self._at = time.monotonic()

    def wait(self) -> None:
        pass

    def seconds(self) -> float:
        return self._at


class CpuDevice(Device):
    """For tests: everything at once, with numpy."""

    def __init__(self, tiles: Tiles = INTERPRETED) -> None:
        """Raises DeviceError where the kernels would be compiled."""
        if not triton.knobs.runtime.interpret:
            raise DeviceError("kernels run on a CPU only where TRITON_INTERPRET=1 is set before they are imported")
        self.torch_device = torch.device("cpu")
        self.tiles = tiles
        self.name = "interpreted"
        self.captures = False

    def order(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def capture(self, work: Work) -> Work:
        return work

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def mark(self) -> Mark:
        return CpuMark()

    def settle(self) -> None:
        pass

    def allocations(self) -> int:
        return 0


class CudaMark:
    """Where the clocks of host and device meet: an earlier mark whose time is known."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record()
        self._at: float | None = None

    def wait(self) -> None:
        self.event.synchronize()

    def seconds(self) -> float:
        if self._at is None:
            anchor, at = self._device.anchor
            self._at = min(at + anchor.elapsed_time(self.event) / 1000, time.monotonic())
            self._device.anchor = (self.event, self._at)
        return self._at


class CudaDevice(Device):
    """One GPU, with a stream of its own. Not run where this was written: there was no GPU."""

    def __init__(self, index: int = 0) -> None:
        """Raises DeviceError where torch finds no such GPU, or one older than Ampere."""
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device; check nvidia-smi, or that torch was built with CUDA")
        if index >= torch.cuda.device_count():
            raise DeviceError(f"there is no CUDA device {index}; there are {torch.cuda.device_count()}")
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        major, minor = torch.cuda.get_device_capability(self.torch_device)
        if major < 8:
            raise DeviceError(f"compute capability {major}.{minor}; the kernels need 8.0 or newer: use --device cpu")
        self.tiles = HOPPER if major == 9 else AMPERE
        self.name = f"sm{major}{minor}-triton{triton.__version__}"
        self.captures = True
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        with self.order():
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
        self.anchor = (event, time.monotonic())

    def order(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def capture(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        self.settle()
        # Not the whole process's calls: uploads go on beside it, in threads of their own.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        self._pool = self._pool or graph.pool()
        return graph.replay

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def mark(self) -> Mark:
        with self.order():
            return CudaMark(self)

    def settle(self) -> None:
        self._stream.synchronize()

    def allocations(self) -> int:
        statistics = torch.cuda.memory_stats(self.torch_device)
        return int(statistics["allocation.all.allocated"]) + int(statistics["segment.all.allocated"])
