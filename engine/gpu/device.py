"""One GPU, or one instance of a divided one (MIG): which one CUDA will use, and what NVML tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any, NamedTuple

from engine.gpu.library import Cause, Library, NvmlError

NAME_CHARS = 64
"""Of a process, in messages."""


class Memory(NamedTuple):
    """Bytes. What the driver keeps for itself is in `used`."""

    total: int
    free: int
    used: int


class Holder(NamedTuple):
    """A process with memory of the device."""

    pid: int
    name: str | None
    """Of its program, without arguments; None where this process may not see it."""
    nbytes: int | None
    """None where the driver does not tell."""


class Link(NamedTuple):
    """PCIe: generation (1: 2.5 GT/s, each later one about twice the last) and lanes."""

    generation: int
    width: int

    @property
    def speed(self) -> float:
        """In lanes of the first generation."""
        return float(self.width << (self.generation - 1))

    def __str__(self) -> str:
        return f"generation {self.generation} x{self.width}"


class Gpu:
    """What NVML tells. Every method raises NvmlError."""

    def __init__(self, library: Library, handle: Any, instance: Any = None) -> None:
        """handle: of the whole device. instance: the handle of the MIG device on it that is used, if it is divided."""
        self.library = library
        self.board = handle
        self._own = handle if instance is None else instance
        self.mig = instance is not None
        self.index = int(library.call("nvmlDeviceGetIndex", handle))
        """In the order of the bus, as nvidia-smi counts."""
        self.name = str(library.call("nvmlDeviceGetName", self._own))
        self.uuid = str(library.call("nvmlDeviceGetUUID", self._own))
        self.instance_id = int(library.call("nvmlDeviceGetGpuInstanceId", instance)) if self.mig else None

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"

    @property
    def capability(self) -> tuple[int, int]:
        """CUDA's compute capability: 9, 0 for Hopper."""
        major, minor = self.library.call("nvmlDeviceGetCudaComputeCapability", self.board)
        return int(major), int(minor)

    def memory(self) -> Memory:
        found = self.library.call("nvmlDeviceGetMemoryInfo", self._own)
        return Memory(int(found.total), int(found.free), int(found.used))

    def holders(self) -> tuple[Holder, ...]:
        """Processes with a CUDA context on it, the largest first. Those of other containers may be missing."""
        found = self.library.call("nvmlDeviceGetComputeRunningProcesses", self._own)
        holders = (Holder(int(one.pid), self._program(one.pid), _bytes(one.usedGpuMemory)) for one in found)
        return tuple(sorted(holders, key=lambda holder: -(holder.nbytes or 0)))

    def _program(self, pid: int) -> str | None:
        with suppress(NvmlError, IndexError):
            line = str(self.library.call("nvmlSystemGetProcessName", pid))
            return PurePath(line.split()[0]).name[:NAME_CHARS]  # arguments may hold secrets
        return None

    def link(self) -> Link:
        """As it is now: an idle device lets its link fall to a lower generation."""
        return self._link("Curr")

    def best_link(self) -> Link:
        """That this device can have in this machine."""
        return self._link("Max")

    def _link(self, which: str) -> Link:
        generation = int(self.library.call(f"nvmlDeviceGet{which}PcieLinkGeneration", self.board))
        width = int(self.library.call(f"nvmlDeviceGet{which}PcieLinkWidth", self.board))
        if generation < 1 or width < 1:
            raise NvmlError(Cause.UNSUPPORTED, f"{self}: it has no PCIe link that can be read")
        return Link(generation, width)

    def recovery_action(self) -> int:
        """What the driver wants done with the device: a key of faults.ACTIONS, 0 for nothing."""
        field = self.library.constant("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
        if field is None:
            raise NvmlError(Cause.TOO_OLD, f"{self}: this nvidia-ml-py knows no recovery action; update it")
        value = self.library.call("nvmlDeviceGetFieldValues", self.board, [field])[0]
        if value.nvmlReturn:
            raise NvmlError(Cause.UNSUPPORTED, f"{self}: its driver tells no recovery action")
        return int(value.value.uiVal)


def select(library: Library, ordinal: int, environ: Mapping[str, str]) -> Gpu:
    """The device that CUDA will call `ordinal` in this process: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read.

    Raises NvmlError; NO_DEVICE where there is none, or it cannot be told which it is.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        _check_order(library, environ)
        return _by_index(library, ordinal)
    names = [name.strip() for name in visible.split(",")]
    if not 0 <= ordinal < len(names) or not names[ordinal]:
        raise NvmlError(Cause.NO_DEVICE, f"CUDA_VISIBLE_DEVICES={visible!r} shows no device {ordinal}; name one there")
    name = names[ordinal]
    if name.isdigit():
        _check_order(library, environ)
        return _by_index(library, int(name))
    return _by_uuid(library, name)


def others(library: Library, than: Gpu) -> Iterator[Gpu]:
    """Devices of the machine beside this one; what cannot be read is left out."""
    for index in range(int(library.call("nvmlDeviceGetCount"))):
        with suppress(NvmlError):
            if index != than.index:
                yield _by_index(library, index)


def _by_index(library: Library, index: int) -> Gpu:
    return _whole_or_first(library, library.call("nvmlDeviceGetHandleByIndex", index))


def _by_uuid(library: Library, name: str) -> Gpu:
    """CUDA takes a UUID or as much of its beginning as is unique."""
    if name.startswith("MIG-"):
        instance = library.call("nvmlDeviceGetHandleByUUID", name)
        return Gpu(library, library.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance), instance)
    handles = (library.call("nvmlDeviceGetHandleByIndex", i) for i in range(library.call("nvmlDeviceGetCount")))
    found = [handle for handle in handles if str(library.call("nvmlDeviceGetUUID", handle)).startswith(name)]
    if len(found) != 1:
        raise NvmlError(Cause.NO_DEVICE, f"CUDA_VISIBLE_DEVICES names {name!r}, as {len(found)} devices are called")
    return _whole_or_first(library, found[0])


def _whole_or_first(library: Library, handle: Any) -> Gpu:
    """Of a divided device CUDA uses the first instance, unless another is named."""
    try:
        divided = library.call("nvmlDeviceGetMigMode", handle)[0] == library.constant("NVML_DEVICE_MIG_ENABLE")
    except NvmlError as error:
        if error.cause not in (Cause.UNSUPPORTED, Cause.TOO_OLD):
            raise
        divided = False
    return Gpu(library, handle, library.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, 0) if divided else None)


def _check_order(library: Library, environ: Mapping[str, str]) -> None:
    """CUDA counts the fastest first unless it is told to count as NVML does; among equal devices both agree."""
    if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return
    handles = [library.call("nvmlDeviceGetHandleByIndex", i) for i in range(library.call("nvmlDeviceGetCount"))]
    if len({str(library.call("nvmlDeviceGetName", handle)) for handle in handles}) > 1:
        raise NvmlError(
            Cause.NO_DEVICE,
            "the devices of this machine differ, and CUDA numbers them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID, "
            "or name one by its UUID (nvidia-smi -L) in CUDA_VISIBLE_DEVICES",
        )


def _bytes(value: int | None) -> int | None:
    return None if value is None else int(value)
