"""How far the packing of a model has come: a bar on a terminal, a few plain lines anywhere else. On standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINES = 4
"""Plain lines in all."""


class PackProgress:
    """Called with bytes done and bytes in all. Costs nothing until then: rich is loaded at the first call."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._bar: Bar | None = None
        self._task: Any = None
        self._quarter = -1

    def __enter__(self) -> PackProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, done: int, total: int) -> None:
        if self._out.isatty():
            self._draw(done, total)
        elif (quarter := LINES * done // max(total, 1)) > self._quarter:
            self._quarter = quarter
            print(f"packing: {100 * done // max(total, 1)} % of {total / 2**20:.0f} MiB", file=self._out, flush=True)

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(file=self._out), transient=True)
            self._task = self._bar.add_task("packing", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done)
        if done >= total:
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
