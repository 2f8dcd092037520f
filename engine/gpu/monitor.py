"""Watches one GPU from before its first CUDA context to the end of the node.

One thread sleeps in NVML until something fatal happens to the device, and each second looks at memory and SM
utilisation. NVML is called by nobody else once the node runs: its calls can hang with the device.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, Final

from engine.gpu import faults
from engine.gpu.device import Gpu, Link, Memory, others, select
from engine.gpu.fit import Needs, Other, check_fits
from engine.gpu.gpm import GpmSampler, Window
from engine.gpu.library import Cause, Library, NvmlError
from engine.gpu.link import LinkUnderLoad
from engine.gpu.view import BUSY_SHARE, GpuView, SmUse
from engine.model.layout import LayoutError

WAIT_MS: Final = 1000
"""That the thread sleeps in the library at a time, and so the length of a window."""
LEAST_WINDOW_S: Final = 0.2
"""An event may end the sleep early; GPM wants 0.1 s between samples."""
CLOSE_S: Final = 3.0
WATCHED: Final = "watched"
SAMPLED: Final = "sampled"
STARTING: Final = "starting"
_WHOLE: Final = 0xFFFFFFFF
"""The GPU instance of an event that concerns the whole device."""


class Monitor:
    """Tells what it knows of a GPU, also where that is only why it knows nothing. Never raises NvmlError."""

    def __init__(self, gpu: Gpu | None, trouble: NvmlError | None = None) -> None:
        """gpu: None where NVML cannot be asked, for `trouble`. The monitor closes its library."""
        self._gpu = gpu
        self._trouble = trouble
        self._watch = STARTING if trouble is None else str(trouble.cause)
        self._sampling = self._watch
        self._notes: list[str] = [] if trouble is None else [f"the GPU is not watched: {trouble}"]
        self._memory: Memory | None = None
        self._link: Link | None = None
        self._best_link: Link | None = None
        self._use = SmUse()
        self._last: Window | None = None
        self._events: Counter[str] = Counter()
        self._last_event: str | None = None
        self.fault: str | None = None
        """What ended the device's use; the first that came."""
        self._busy: Callable[[], float] = lambda: 0.0
        self._clock: Callable[[], float] = lambda: 0.0
        self._on_fault: Callable[[], None] = lambda: None
        self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu", daemon=True)

    @property
    def gpu(self) -> Gpu | None:
        return self._gpu

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator is to be told at start, warnings among it."""
        return tuple(self._notes)

    def check(self, wanted: Needs) -> None:
        """Before any CUDA context: raises LayoutError for a device that is not to be used, or is too full.

        Where NVML cannot be asked, nothing is refused.
        """
        if self._gpu is None:
            return
        try:
            if why := faults.refused(self._action(self._gpu)):
                raise LayoutError(f"{self._gpu} cannot be used: {why}; do that, or use another device")
            self._memory = self._gpu.memory()
            holders = self._gpu.holders() if self._memory.free < wanted.nbytes else ()
            check_fits(wanted, str(self._gpu), self._memory, holders, _others(self._gpu))
        except NvmlError as error:
            self._notes.append(f"the memory of {self._gpu} was not checked: {error}")

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Around what moves many bytes to the device: looks at its link meanwhile."""
        if self._gpu is None:
            yield
            return
        with LinkUnderLoad(self._gpu) as link:
            yield
        self._link, self._best_link = link.seen, link.possible
        if link.trouble is not None:
            self._notes.append(f"the PCIe link of {self._gpu} is not known: {link.trouble}")
        elif link.warning is not None:
            self._notes.append(link.warning)

    def start(self, busy: Callable[[], float], on_fault: Callable[[], None], clock: Callable[[], float]) -> None:
        """busy: seconds in which steps ran, since any moment; clock: seconds that go on meanwhile.

        on_fault: called once, in the monitor's thread, when `fault` is set.
        """
        self._busy, self._on_fault, self._clock = busy, on_fault, clock
        if self._gpu is not None:
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, within a second unless the device hangs; then the thread is left where it is. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if self._gpu is not None and not self._closed and not self._thread.is_alive():
            self._closed = True
            with suppress(NvmlError):
                self._gpu.library.close()

    def view(self) -> GpuView:
        """From any thread; asks nobody."""
        gpu = self._gpu
        return GpuView(
            watch=self._watch,
            sampling=self._sampling,
            notes=tuple(self._notes),
            name=gpu.name if gpu else "",
            uuid=gpu.uuid if gpu else "",
            mig=gpu.mig if gpu else False,
            memory=self._memory,
            link=self._link,
            best_link=self._best_link,
            sm_busy=self._use.busy,
            susi=self._use.susi,
            windows=len(self._use),
            memory_busy=self._last.memory if self._last else None,
            events=MappingProxyType(dict(self._events)),
            last_event=self._last_event,
            fault=self.fault,
        )

    # The monitor's thread.

    def _run(self) -> None:
        gpu = self._gpu
        assert gpu is not None
        sampler = self._sampler(gpu)
        events = self._register(gpu)
        try:
            began, busy = self._clock(), self._busy()
            while not self._stop.is_set():
                self._wait(gpu, events)
                if (lasted := self._clock() - began) >= LEAST_WINDOW_S:
                    sampler = self._look(gpu, sampler, lasted, self._busy() - busy)
                    began, busy = self._clock(), self._busy()
        finally:
            with suppress(NvmlError):
                if sampler is not None:
                    sampler.close()
            with suppress(NvmlError):
                if events is not None:
                    gpu.library.call("nvmlEventSetFree", events)

    def _sampler(self, gpu: Gpu) -> GpmSampler | None:
        try:
            sampler = GpmSampler(gpu)
        except NvmlError as error:
            self._not_sampled(error)
            return None
        self._sampling = SAMPLED
        return sampler

    def _register(self, gpu: Gpu) -> Any:
        """An event set for what can be watched of KINDS; None where nothing can."""
        library = gpu.library
        events = None
        try:
            supported = int(library.call("nvmlDeviceGetSupportedEventTypes", gpu.board))
            wanted = sum(library.constant(name) or 0 for name in faults.KINDS) & supported
            if not wanted:
                raise NvmlError(Cause.UNSUPPORTED, f"{gpu}: it tells of no fatal events")
            events = library.call("nvmlEventSetCreate")
            library.call("nvmlDeviceRegisterEvents", gpu.board, wanted, events)
        except NvmlError as error:
            self._not_watched(gpu, error)
            with suppress(NvmlError):
                if events is not None:
                    library.call("nvmlEventSetFree", events)
            return None
        self._watch = WATCHED
        return events

    def _wait(self, gpu: Gpu, events: Any) -> None:
        """For an event, for a second."""
        if events is None or self._watch != WATCHED:
            self._stop.wait(WAIT_MS / 1000)
            return
        try:
            event = gpu.library.call("nvmlEventSetWait_v2", events, WAIT_MS)
        except NvmlError as error:
            if error.cause is Cause.LOST:
                self._failed(gpu, faults.Event("unavailable", str(error), True))
            if error.cause is not Cause.TIMEOUT:
                self._not_watched(gpu, error)
            return
        if gpu.instance_id is None or event.gpuInstanceId in (gpu.instance_id, _WHOLE):
            self._happened(gpu, int(event.eventType), int(event.eventData))

    def _happened(self, gpu: Gpu, kind: int, data: int) -> None:
        named = {gpu.library.constant(name): short for name, short in faults.KINDS.items()}
        if kind not in named:
            return
        event = faults.judged(named[kind], data, self._action(gpu))
        if event.fatal:
            self._failed(gpu, event)
        else:
            self._told(event)

    def _told(self, event: faults.Event) -> None:
        self._events[event.kind] += 1
        self._last_event = event.text

    def _failed(self, gpu: Gpu, event: faults.Event) -> None:
        self._told(event)
        if self.fault is None:
            self.fault = f"{gpu}: {event.text}"
            self._on_fault()

    def _action(self, gpu: Gpu) -> int | None:
        with suppress(NvmlError):
            return gpu.recovery_action()
        return None

    def _look(self, gpu: Gpu, sampler: GpmSampler | None, lasted: float, busy: float) -> GpmSampler | None:
        """Memory, and the window that has just ended. The sampler, unless it failed."""
        with suppress(NvmlError):
            self._memory = gpu.memory()
        if sampler is None:
            return None
        try:
            self._last = sampler.window()
        except NvmlError as error:
            self._not_sampled(error)
            with suppress(NvmlError):
                sampler.close()
            return None
        if self._last is not None and busy >= BUSY_SHARE * lasted:
            self._use.add(self._last.sm)
        return sampler

    def _not_sampled(self, error: NvmlError) -> None:
        self._sampling = str(error.cause)
        self._notes.append(f"SM utilisation is not sampled: {error}")

    def _not_watched(self, gpu: Gpu, error: NvmlError) -> None:
        self._watch = str(error.cause)
        self._notes.append(f"fatal events of {gpu} are not watched: {error}")


def open_monitor(ordinal: int = 0, environ: Mapping[str, str] = os.environ, module: Any = None) -> Monitor:
    """Of the device that CUDA will call `ordinal`. module: what stands for nvidia-ml-py."""
    library = None
    try:
        library = Library(module)
        return Monitor(select(library, ordinal, environ))
    except NvmlError as error:
        with suppress(NvmlError):
            if library is not None:
                library.close()
        return Monitor(None, error)


def _others(gpu: Gpu) -> Iterator[Other]:
    with suppress(NvmlError):
        for other in others(gpu.library, gpu):
            yield Other(str(other), other.uuid, other.memory().free)
