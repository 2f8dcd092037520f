"""What a step needs of a device beside kernels: order, graphs, pinned memory, marks in time.

Two of them: CUDA's, and torch's CPU, on which the same code runs at once, with the kernels interpreted.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from engine.executor.gpu.clock import DeviceClock
from engine.executor.gpu.tiles import INTERPRETED, Tiles, tiles_for

Work = Callable[[], None]


class DeviceError(RuntimeError):
    """The device cannot be used; the message says why and what to do."""


class Mark(Protocol):
    """A moment in the order of the device's work."""

    def wait(self) -> None:
        """Blocks, without the interpreter lock, until the device has passed it."""

    def seconds(self) -> float:
        """When that was, in CLOCK_MONOTONIC. After `wait`."""


ASKED = ("allocation.all.allocated", "allocation.all.freed", "segment.all.allocated", "segment.all.freed")
"""Of torch's statistics: blocks that were taken and given back, and what for them was taken of the driver and given
back."""


class Device(ABC):
    torch_device: torch.device
    name: str
    """As `numerics` tells it: what decides the bits."""
    captures: bool
    """Whether `capture` makes anything of a work: then it must have run before."""

    @abstractmethod
    def tiles(self, width: int, head_dim: int, group: int) -> Tiles:
        """What programs take, of values of `width` bytes and heads of `head_dim`, `group` of which share a KV head.
        Raises TileError where nothing fits."""

    @abstractmethod
    def order(self) -> AbstractContextManager[Any]:
        """Work given within it is done in the order in which it is given."""

    @abstractmethod
    def beside(self) -> AbstractContextManager[Any]:
        """The same for copies, in an order of their own: they wait for no step, and no step for them."""

    @abstractmethod
    def join(self) -> None:
        """Work given in `order` from now on comes after what was given `beside`."""

    @abstractmethod
    def capture(self, work: Work) -> Work:
        """Something that does the same as `work` at less cost, for as long as its tensors stay where they are."""

    @abstractmethod
    def forget(self) -> None:
        """Nothing that was captured is used any more, and is kept by nobody: gives its memory back."""

    @abstractmethod
    def trim(self) -> None:
        """Gives back memory that nobody holds."""

    @abstractmethod
    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros in memory of the host that the device copies from and to by itself."""

    @abstractmethod
    def mark(self) -> Mark:
        """Within `order` or `beside`: after what was given there."""

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
        self.name = "interpreted"
        self.captures = False
        self._tiles = tiles

    def tiles(self, width: int, head_dim: int, group: int) -> Tiles:
        return self._tiles

    def order(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def beside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def join(self) -> None:
        pass

    def capture(self, work: Work) -> Work:
        return work

    def forget(self) -> None:
        pass

    def trim(self) -> None:
        pass

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def mark(self) -> Mark:
        return CpuMark()

    def settle(self) -> None:
        pass

    def allocations(self) -> int:
        return 0


class CudaMark:
    """An event in the stream that is current where it is made."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._given = time.monotonic()
        self.event = _event()
        self.event.record()
        self._at: float | None = None

    def wait(self) -> None:
        self.event.synchronize()

    def seconds(self) -> float:
        if self._at is None:
            self._at = self._clock.seconds(self.event, self._given, time.monotonic())
        return self._at


class CudaDevice(Device):
    """One GPU, with two streams of its own. Not run where this was written: there was no GPU."""

    def __init__(self, index: int = 0) -> None:
        """Raises DeviceError where torch finds no such GPU, or one older than Ampere."""
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device; check nvidia-smi, or that torch was built with CUDA")
        if index >= torch.cuda.device_count():
            raise DeviceError(f"there is no CUDA device {index}; there are {torch.cuda.device_count()}")
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._major, minor = torch.cuda.get_device_capability(self.torch_device)
        if self._major < 8:
            raise DeviceError(
                f"compute capability {self._major}.{minor}; the kernels need 8.0 or newer: use --device cpu"
            )
        properties = triton.runtime.driver.active.utils.get_device_properties(index)
        self._shared, self._multiprocessors = int(properties["max_shared_mem"]), int(properties["multiprocessor_count"])
        self.name = f"sm{self._major}{minor}-triton{triton.__version__}"
        self.captures = True
        self._stream, self._side = (
            torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self._pool: Any = None
        with self.order():
            event = _event()
            event.record()
            event.synchronize()
        self._clock = DeviceClock(event, time.monotonic())

    def tiles(self, width: int, head_dim: int, group: int) -> Tiles:
        return tiles_for(self._major, self._shared, width, head_dim, group, self._multiprocessors)

    def order(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def beside(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._side)

    def join(self) -> None:
        self._stream.wait_stream(self._side)

    def capture(self, work: Work) -> Work:
        """Not by torch.cuda.graph, which waits for all that the device does before it begins: weights come meanwhile.

        Their copies are begun by threads of their own, which a capture of this thread alone leaves alone.
        """
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with self.order(), uncollected():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph.replay

    def forget(self) -> None:
        self._pool = None
        self.trim()

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def pinned(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def mark(self) -> Mark:
        return CudaMark(self._clock)

    def settle(self) -> None:
        self._stream.synchronize()
        self._side.synchronize()

    def allocations(self) -> int:
        return asked(torch.cuda.memory_stats(self.torch_device))


@contextmanager
def uncollected() -> Iterator[None]:
    """Python's garbage collector rests meanwhile: what it found of the device's memory, events or graphs would be given
    back in the midst of a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def asked(statistics: Mapping[str, Any]) -> int:
    """Calls of torch's allocator and of the driver's, both ways, in its statistics."""
    return sum(int(statistics[name]) for name in ASKED)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
