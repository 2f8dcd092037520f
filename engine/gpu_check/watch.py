"""What NVML tells while a check runs: the link while weights cross it, and how busy the device is while it decodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from engine.gpu.gpm import GpmSampler, Window
from engine.gpu.library import NvmlError
from engine.gpu.monitor import Monitor, open_monitor
from engine.gpu_check.table import Line


class Busy:
    """SM utilisation since it was made, where the device tells of it."""

    def __init__(self, monitor: Monitor) -> None:
        self._sampler: GpmSampler | None = None
        self._why = "NVML is not there"
        if monitor.gpu is not None:
            try:
                self._sampler = GpmSampler(monitor.gpu)
            except NvmlError as error:
                self._why = str(error)

    def line(self, name: str) -> Line:
        """Once, at the end."""
        try:
            window = self._window()
        except NvmlError as error:
            self._why, window = str(error), None
        if window is None:
            return Line(f"{name}: SMs busy (GPM)", f"not told: {self._why}"[:100])
        memory = "" if window.memory is None else f", memory {window.memory:.0%}"
        return Line(f"{name}: SMs busy (GPM)", f"{window.sm:.0%}{memory}")

    def _window(self) -> Window | None:
        if self._sampler is None:
            return None
        try:
            self._why = "it gives no figure"
            return self._sampler.window()
        finally:
            self._sampler.close()


class Watch:
    """One monitor for all checks."""

    def __init__(self, monitor: Monitor | None = None) -> None:
        self._monitor = open_monitor() if monitor is None else monitor

    def close(self) -> None:
        self._monitor.close()

    def device(self) -> Iterator[Line]:
        """What there is before anything is done."""
        yield Line("NVML", self._monitor.view().name or "nothing")
        for note in self._monitor.notes:
            yield Line("NVML", note[:100])
        if self._monitor.gpu is not None:
            memory = self._monitor.gpu.memory()
            yield Line("memory free of all", f"{memory.free >> 20:,} of {memory.total >> 20:,} MiB")
            try:
                link = str(self._monitor.gpu.link())
            except NvmlError as error:  # of a virtual machine's device, say
                link = f"not told: {error}"[:100]
            yield Line("PCIe link, idle", link)

    def upload(self) -> AbstractContextManager[None]:
        """Around what moves weights to the device."""
        return self._monitor.under_load()

    def link(self, name: str) -> Line:
        """As it was in the last upload."""
        view = self._monitor.view()
        if view.link is None:
            return Line(f"{name}: PCIe link under load", f"not told: {next(iter(view.notes[-1:]), '')}"[:100])
        return Line(f"{name}: PCIe link under load", f"{view.link} of {view.best_link}")

    def busy(self) -> Busy:
        return Busy(self._monitor)
