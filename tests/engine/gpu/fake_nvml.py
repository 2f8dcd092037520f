"""A module that behaves as nvidia-ml-py does on a machine of devices that are described here: its constants, its error
classes by name, its structures, and errors where the real one raises them."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine.gpu.library import ERRORS

GIB = 1 << 30
ERROR_NUMBERS = {
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_TIMEOUT": 10,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": 25,
    "NVML_ERROR_UNKNOWN": 999,
}
NUMBERS = {
    "NVML_DEVICE_MIG_ENABLE": 1,
    "NVML_GPM_METRICS_GET_VERSION": 1,
    "NVML_GPM_METRIC_SM_UTIL": 2,
    "NVML_GPM_METRIC_DRAM_BW_UTIL": 10,
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 230,
    "nvmlEventTypeDoubleBitEccError": 0x2,
    "nvmlEventTypeXidCriticalError": 0x8,
    "nvmlEventTypeDramRetirementFailure": 0x800,
    "nvmlEventTypeFatalPoisonError": 0x2000,
    "nvmlEventTypeGpuUnavailableError": 0x4000,
    "nvmlEventTypeGpuRecoveryAction": 0x8000,
}
WHOLE = 0xFFFFFFFF
assert ERRORS.keys() <= ERROR_NUMBERS.keys()


class NVMLLibraryMismatchError(Exception):
    pass


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Device:
    """A board, or an instance on one."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = "GPU-11111111-aaaa"
    total: int = 80 * GIB
    processes: dict[int, int | None] = field(default_factory=dict)
    """pid -> bytes."""
    reserved: int = GIB // 2
    links: list[tuple[int, int]] = field(default_factory=lambda: [(5, 16)])
    """What is found, look by look; the last stays."""
    best_link: tuple[int, int] = (5, 16)
    gpm: bool = True
    sm: list[float] = field(default_factory=lambda: [80.0])
    """Percentages, window by window; the last stays."""
    action: int | None = 0
    event_types: int = 0xE80A
    instances: list[Device] = field(default_factory=list)
    """More than none: MIG is on."""
    instance_id: int | None = None
    fails: dict[str, str] = field(default_factory=dict)
    """Function -> the error that it raises for this device."""

    @property
    def used(self) -> int:
        return self.reserved + sum(nbytes or 0 for nbytes in self.processes.values())


class _GpmRequest:
    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(8)]


class FakeNvml:
    """Everything is counted: what was begun (`open`) and what was asked (`calls`)."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    c_nvmlGpmMetricsGet_t = _GpmRequest

    def __init__(
        self,
        *devices: Device,
        programs: dict[int, str] | None = None,
        fails: dict[str, str] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        """fails: function -> error, for all devices; without: names that this package does not have."""
        self.devices = list(devices)
        self.programs = programs or {}
        self.fails = fails or {}
        self.open: list[str] = []
        self.calls: list[str] = []
        self.events: queue.Queue[tuple[int, int, int] | str] = queue.Queue()
        """(type, data, instance), or the name of an error that waiting raises."""
        self._without = without
        for name, number in {**ERROR_NUMBERS, **NUMBERS}.items():
            if name not in without:
                setattr(self, name, number)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name not in NUMBERS:
            if name in object.__getattribute__(self, "_without"):
                raise AttributeError(name)
            self.calls.append(name)
            if error := self.fails.get(name):
                return lambda *_: self.raises(error)
        return object.__getattribute__(self, name)

    def raises(self, error: str) -> Any:
        if error == "mismatch":
            raise NVMLLibraryMismatchError(error)
        raise NVMLError(ERROR_NUMBERS[error])

    def _device(self, function: str, device: Device) -> Device:
        if error := device.fails.get(function):
            self.raises(error)
        return device

    def nvmlInit(self) -> None:
        self.open.append("library")

    def nvmlShutdown(self) -> None:
        self.open.remove("library")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:
        return self.devices[index] if index < len(self.devices) else self.raises("NVML_ERROR_INVALID_ARGUMENT")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:
        every = [one for board in self.devices for one in (board, *board.instances)]
        return next((one for one in every if one.uuid == uuid), None) or self.raises("NVML_ERROR_NOT_FOUND")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, instance: Device) -> Device:
        return next(board for board in self.devices if instance in board.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:
        return device.instances[index]

    def nvmlDeviceGetMigMode(self, device: Device) -> list[int]:
        if not device.gpm:
            self.raises("NVML_ERROR_NOT_SUPPORTED")
        return [int(bool(device.instances))] * 2

    def nvmlDeviceGetGpuInstanceId(self, device: Device) -> int:
        assert device.instance_id is not None
        return device.instance_id

    def nvmlDeviceGetIndex(self, device: Device) -> int:
        return next(i for i, board in enumerate(self.devices) if board is device)

    def nvmlDeviceGetName(self, device: Device) -> str:
        return device.name

    def nvmlDeviceGetUUID(self, device: Device) -> str:
        return device.uuid

    def nvmlDeviceGetCudaComputeCapability(self, device: Device) -> tuple[int, int]:
        return (9, 0) if device.gpm else (8, 0)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:
        self._device("nvmlDeviceGetMemoryInfo", device)
        return SimpleNamespace(total=device.total, used=device.used, free=device.total - device.used)

    def nvmlDeviceGetComputeRunningProcesses(self, device: Device) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in device.processes.items()]

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return self.programs.get(pid) or self.raises("NVML_ERROR_NOT_FOUND")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device: Device) -> int:
        return self._device("nvmlDeviceGetCurrPcieLinkGeneration", device).links[0][0]

    def nvmlDeviceGetCurrPcieLinkWidth(self, device: Device) -> int:
        return (device.links.pop(0) if len(device.links) > 1 else device.links[0])[1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, device: Device) -> int:
        return device.best_link[0]

    def nvmlDeviceGetMaxPcieLinkWidth(self, device: Device) -> int:
        return device.best_link[1]

    def nvmlDeviceGetFieldValues(self, device: Device, fields: list[int]) -> list[Any]:
        assert fields == [NUMBERS["NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"]]
        unknown = device.action is None
        return [SimpleNamespace(nvmlReturn=3 if unknown else 0, value=SimpleNamespace(uiVal=device.action or 0))]

    def nvmlDeviceGetSupportedEventTypes(self, device: Device) -> int:
        return self._device("nvmlDeviceGetSupportedEventTypes", device).event_types

    def nvmlEventSetCreate(self) -> str:
        self.open.append("events")
        return "events"

    def nvmlDeviceRegisterEvents(self, device: Device, types: int, events: str) -> None:
        assert types & ~device.event_types == 0
        assert events in self.open

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        """Waits shorter than it is told, so that tests do."""
        assert events in self.open
        assert timeout_ms > 0
        try:
            event = self.events.get(timeout=0.002)
        except queue.Empty:
            return self.raises("NVML_ERROR_TIMEOUT")
        if isinstance(event, str):
            return self.raises(event)
        kind, data, instance = event
        return SimpleNamespace(eventType=kind, eventData=data, gpuInstanceId=instance)

    def nvmlEventSetFree(self, events: str) -> None:
        self.open.remove(events)

    def nvmlGpmQueryDeviceSupport(self, device: Device) -> Any:
        return SimpleNamespace(isSupportedDevice=int(device.gpm))

    def nvmlGpmSampleAlloc(self) -> dict[str, Any]:
        self.open.append("sample")
        return {}

    def nvmlGpmSampleFree(self, sample: dict[str, Any]) -> None:
        self.open.remove("sample")

    def nvmlGpmSampleGet(self, device: Device, sample: dict[str, Any]) -> None:
        self._device("nvmlGpmSampleGet", device)
        sample["at"] = len(self.calls)
        sample["of"] = device

    def nvmlGpmMigSampleGet(self, device: Device, instance: int, sample: dict[str, Any]) -> None:
        self.nvmlGpmSampleGet(next(one for one in device.instances if one.instance_id == instance), sample)

    def nvmlGpmMetricsGet(self, request: _GpmRequest) -> _GpmRequest:
        older, newer = request.sample1, request.sample2
        assert older["at"] < newer["at"]
        device = newer["of"]
        values = {2: device.sm.pop(0) if len(device.sm) > 1 else device.sm[0], 10: 50.0}
        for metric in request.metrics[: request.numMetrics]:
            metric.value = values[metric.metricId]
        return request
