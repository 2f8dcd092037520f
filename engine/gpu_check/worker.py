"""A process that runs checks, one after the other, and tells what comes of them through a pipe.

It ends with the first check that raises: an illegal address leaves a CUDA context in which nothing works any more, so
that what follows needs a process of its own (driver.py).

    {"head": text}                               what there is to be checked; or
    {"absent": why}                              nothing
    {"begun": name}                              then, of each check
    {"line": [what, found, wanted, good]}        as often as it has something to tell
    {"done": name} or {"failed": why}
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from engine.gpu_check.table import Check

Tell = Callable[[dict[str, Any]], None]


def teller(descriptor: int) -> Tell:
    """Writes messages there: not to stdout, where libraries write."""
    os.set_inheritable(descriptor, False)  # a compiler that outlives this process must not keep it open
    file = os.fdopen(descriptor, "w")

    def tell(message: dict[str, Any]) -> None:
        file.write(json.dumps(message) + "\n")
        file.flush()

    return tell


def serve(checks: Mapping[str, Check], names: Sequence[str], tell: Tell) -> bool:
    """Runs the checks of these names, in their order. Whether none of them raised."""
    for name in names:
        tell({"begun": name})
        try:
            for line in checks[name]():
                tell({"line": list(astuple(line))})
        except Exception as error:
            tell({"failed": f"{type(error).__name__}: {error}"})
            return False
        tell({"done": name})
    return True


def end_with_parent() -> None:
    """Stdin is a pipe that whoever started this process holds: it ends where that one does."""

    def watch() -> None:
        while os.read(0, 4096):  # and not sys.stdin: its lock would be held when the interpreter ends
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
