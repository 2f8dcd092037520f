"""GPM: a GPU's own counters, on Hopper and newer. Between two samples it tells what share of SMs was busy.

It cannot see single steps: NVIDIA asks for 100 ms between two samples at least.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from engine.gpu.device import Gpu
from engine.gpu.library import Cause, NvmlError


class Window(NamedTuple):
    """Between two samples; shares from 0 to 1."""

    sm: float
    memory: float | None
    """Of the memory's bandwidth."""


class GpmSampler:
    """Belongs to one thread. On a MIG instance it tells of that alone."""

    def __init__(self, gpu: Gpu) -> None:
        """Raises NvmlError; UNSUPPORTED before Hopper."""
        self._gpu = gpu
        if not gpu.library.call("nvmlGpmQueryDeviceSupport", gpu.board).isSupportedDevice:
            raise NvmlError(Cause.UNSUPPORTED, f"{gpu}: no SM utilisation: its counters begin with Hopper")
        self._metrics = [
            gpu.library.constant(name) for name in ("NVML_GPM_METRIC_SM_UTIL", "NVML_GPM_METRIC_DRAM_BW_UTIL")
        ]
        self._samples: list[Any] = []
        try:
            for _ in range(2):
                self._samples.append(gpu.library.call("nvmlGpmSampleAlloc"))
            self._take()
        except NvmlError:
            self.close()
            raise

    def window(self) -> Window | None:
        """Since the call before, or the constructor. None where there is no figure for it. Raises NvmlError."""
        self._take()
        request = self._gpu.library.make("c_nvmlGpmMetricsGet_t")
        request.version = self._gpu.library.constant("NVML_GPM_METRICS_GET_VERSION")
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._samples
        for index, metric in enumerate(self._metrics):
            request.metrics[index].metricId = metric
        self._gpu.library.call("nvmlGpmMetricsGet", request)
        sm, memory = (_share(request.metrics[index]) for index in range(len(self._metrics)))
        return None if sm is None else Window(sm, memory)

    def close(self) -> None:
        """Raises NvmlError."""
        while self._samples:
            self._gpu.library.call("nvmlGpmSampleFree", self._samples.pop())

    def _take(self) -> None:
        """A sample into the older buffer, which so becomes the newer."""
        self._samples.reverse()
        gpu, buffer = self._gpu, self._samples[1]
        if gpu.instance_id is None:
            gpu.library.call("nvmlGpmSampleGet", gpu.board, buffer)
        else:
            gpu.library.call("nvmlGpmMigSampleGet", gpu.board, gpu.instance_id, buffer)


def _share(metric: Any) -> float | None:
    """From a percentage."""
    return None if metric.nvmlReturn or not isfinite(metric.value) else float(metric.value) / 100
