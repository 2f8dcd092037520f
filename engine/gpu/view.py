"""What a node tells of its GPU, at one moment. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any, Final

from engine.gpu.device import Link, Memory

WINDOWS: Final = 60
"""Of SM utilisation that are looked at together."""
LEAST_WINDOWS: Final = 5
"""Before there are so many, nothing is said of how even they are."""
BUSY_SHARE: Final = 0.9
"""Of a window, that steps must have taken: else it tells of the load and not of the engine."""


class SmUse:
    """Shares of SMs that were busy, in windows of about a second in which the engine was.

    The counter is GPM's SM_UTIL. NVML's `utilization.gpu` is another thing, the share of time in which any kernel ran,
    and never stands in for it.
    """

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=WINDOWS)

    def __len__(self) -> int:
        return len(self._shares)

    def add(self, share: float) -> None:
        self._shares.append(min(1.0, max(0.0, share)))

    @property
    def busy(self) -> float | None:
        """Their mean."""
        return fmean(self._shares) if self._shares else None

    @property
    def susi(self) -> float | None:
        """1 - standard deviation / mean: 1 where every window is like the others."""
        mean = self.busy
        return max(0.0, 1 - pstdev(self._shares) / mean) if mean and len(self._shares) >= LEAST_WINDOWS else None


@dataclass(frozen=True, slots=True)
class GpuView:
    """None where it was not, or cannot be, found out."""

    watch: str
    """`watched`, or the library.Cause for which it is not."""
    sampling: str
    """`sampled`, `starting`, or the library.Cause for which SM utilisation is not."""
    notes: tuple[str, ...] = ()
    """What cannot be told and why, and warnings."""
    name: str = ""
    uuid: str = ""
    mig: bool = False
    memory: Memory | None = None
    link: Link | None = None
    """The best that was seen under load."""
    best_link: Link | None = None
    sm_busy: float | None = None
    susi: float | None = None
    windows: int = 0
    """Behind the two."""
    memory_busy: float | None = None
    """Share of the memory's bandwidth in the last window, busy or not."""
    events: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    last_event: str | None = None
    fault: str | None = None
    """Why the node drains."""

    def status(self) -> dict[str, Any]:
        """For /node/v1/status."""
        return {
            "watch": self.watch,
            "sampling": self.sampling,
            "notes": list(self.notes),
            "name": self.name,
            "uuid": self.uuid,
            "mig": self.mig,
            "memory": self.memory._asdict() if self.memory else None,
            "link": self.link._asdict() if self.link else None,
            "link_possible": self.best_link._asdict() if self.best_link else None,
            "sm_busy": _rounded(self.sm_busy),
            "sm_windows": self.windows,
            "memory_busy": _rounded(self.memory_busy),
            "events": dict(self.events),
            "last_event": self.last_event,
            "fault": self.fault,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
