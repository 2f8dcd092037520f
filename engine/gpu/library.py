"""NVML, through nvidia-ml-py: the one file that touches the package, and the one that knows its errors.

Whatever is wrong with it (not installed, no driver, too old, not allowed) is an NvmlError that says so and what to do.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

PACKAGE: Final = "pynvml"

FUNCTIONS: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetUUID",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetCreate",
    "nvmlEventSetFree",
    "nvmlEventSetWait_v2",
    "nvmlGpmMetricsGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetProcessName",
)
"""All that is called. A test compares them with the package."""
CONSTANTS: Final = (
    "NVML_DEVICE_MIG_ENABLE",
    "NVML_GPM_METRICS_GET_VERSION",
    "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "NVML_GPM_METRIC_SM_UTIL",
    "nvmlEventTypeDoubleBitEccError",
    "nvmlEventTypeXidCriticalError",
)
LATER_CONSTANTS: Final = (
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
    "nvmlEventTypeDramRetirementFailure",
    "nvmlEventTypeFatalPoisonError",
    "nvmlEventTypeGpuRecoveryAction",
    "nvmlEventTypeGpuUnavailableError",
)
"""That older packages do not have; nothing is asked of them there."""
TYPES: Final = ("c_nvmlGpmMetricsGet_t",)


class Cause(StrEnum):
    """Why NVML did not do what it was asked for."""

    NO_PACKAGE = "no_package"
    NO_LIBRARY = "no_library"
    NO_DRIVER = "no_driver"
    MISMATCH = "driver_mismatch"
    TOO_OLD = "too_old"
    NO_PERMISSION = "no_permission"
    UNSUPPORTED = "unsupported"
    NO_DEVICE = "no_device"
    LOST = "lost"
    TIMEOUT = "timeout"
    FAILED = "failed"


class NvmlError(Exception):
    """The message names the call, the cause and the remedy."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


ERRORS: Final = MappingProxyType(
    {
        "NVML_ERROR_NOT_SUPPORTED": Cause.UNSUPPORTED,
        "NVML_ERROR_NO_PERMISSION": Cause.NO_PERMISSION,
        "NVML_ERROR_NOT_FOUND": Cause.NO_DEVICE,
        "NVML_ERROR_DRIVER_NOT_LOADED": Cause.NO_DRIVER,
        "NVML_ERROR_TIMEOUT": Cause.TIMEOUT,
        "NVML_ERROR_LIBRARY_NOT_FOUND": Cause.NO_LIBRARY,
        "NVML_ERROR_FUNCTION_NOT_FOUND": Cause.TOO_OLD,
        "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": Cause.TOO_OLD,
        "NVML_ERROR_GPU_IS_LOST": Cause.LOST,
        "NVML_ERROR_RESET_REQUIRED": Cause.LOST,
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH": Cause.MISMATCH,
    }
)
"""Of the package, by name."""
_REMEDIES: Final = MappingProxyType(
    {
        Cause.NO_PACKAGE: "install the extra: pip install 'edgeproxy[gpu]'",
        Cause.NO_LIBRARY: "install NVIDIA's driver; in a container, start it with --gpus and the utility capability",
        Cause.NO_DRIVER: "load the driver: modprobe nvidia, and see dmesg",
        Cause.MISMATCH: "the driver was updated while it ran: reload its modules or restart the machine",
        Cause.TOO_OLD: "update NVIDIA's driver, or the package nvidia-ml-py",
        Cause.NO_PERMISSION: "let this user read the device, or run the node as one who may",
        Cause.UNSUPPORTED: "this device or its virtual function does not tell it",
        Cause.NO_DEVICE: "compare CUDA_VISIBLE_DEVICES with nvidia-smi -L",
        Cause.LOST: "reset the device (nvidia-smi --gpu-reset) or restart the machine",
        Cause.TIMEOUT: "ask again",
        Cause.FAILED: "see dmesg and nvidia-smi -q",
    }
)


class Library:
    """NVML, initialised. Calls may come from any thread; they can block while a device hangs."""

    def __init__(self, module: Any = None) -> None:
        """module: what stands for the package. Raises NvmlError."""
        if module is None:
            try:
                module = importlib.import_module(PACKAGE)
            except ImportError as error:
                raise _error(Cause.NO_PACKAGE, f"the package nvidia-ml-py is missing ({error})") from error
        self._module = module
        self._causes = {getattr(module, name): cause for name, cause in ERRORS.items() if hasattr(module, name)}
        self.call("nvmlInit")

    def call(self, name: str, *args: Any) -> Any:
        """Of one of FUNCTIONS. Raises NvmlError."""
        function = getattr(self._module, name, None)
        if function is None:
            raise _error(Cause.TOO_OLD, f"the package nvidia-ml-py has no {name}")
        try:
            return function(*args)
        except self._module.NVMLLibraryMismatchError as error:
            raise _error(Cause.TOO_OLD, f"NVML: {name}: not in the driver's library") from error
        except self._module.NVMLError as error:
            raise _error(self._causes.get(error.value, Cause.FAILED), f"NVML: {name}: {error}") from error

    def constant(self, name: str) -> int | None:
        """None where this package has none of the name."""
        value = getattr(self._module, name, None)
        return None if value is None else int(value)

    def make(self, name: str) -> Any:
        """A new structure of one of TYPES."""
        return getattr(self._module, name)()

    def close(self) -> None:
        """Once for each Library; NVML counts."""
        self.call("nvmlShutdown")


def _error(cause: Cause, what: str) -> NvmlError:
    return NvmlError(cause, f"{what}: {_REMEDIES[cause]}")
