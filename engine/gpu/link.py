"""The PCIe link under load: it idles at a lower generation than it was trained for, so it is looked at while bytes
cross."""

from __future__ import annotations

import threading
from types import TracebackType

from engine.gpu.device import Gpu, Link
from engine.gpu.library import NvmlError

INTERVAL_S = 0.01


class LinkUnderLoad:
    """Looks at the link while its body runs, which is to move bytes; afterwards `seen` is the best that was found.

    with LinkUnderLoad(gpu) as link:
        upload(...)
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-link", daemon=True)
        self.seen: Link | None = None
        self.possible: Link | None = None
        self.trouble: NvmlError | None = None
        """Why nothing is known."""

    def __enter__(self) -> LinkUnderLoad:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    @property
    def warning(self) -> str | None:
        """Where the link is slower than it could be."""
        if self.seen is None or self.possible is None or self.seen.speed >= self.possible.speed:
            return None
        share = self.seen.speed / self.possible.speed
        return (
            f"{self._gpu}: PCIe {self.seen} under load where {self.possible} is possible, {share:.0%} of its speed: "
            "look at the slot (lanes shared or fewer than its length), the riser, and the link speed in the BIOS"
        )

    def _run(self) -> None:
        """One look at least, however short the load."""
        try:
            self.possible = self._gpu.best_link()
            while True:
                found = self._gpu.link()
                if self.seen is None or found.speed > self.seen.speed:
                    self.seen = found
                if self._done.wait(INTERVAL_S):
                    return
        except NvmlError as error:
            self.trouble = error
