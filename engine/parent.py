"""A child that ends with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def exit_with_parent() -> None:
    """Ends this process at once when its parent dies (prctl(2), Linux) or its standard input reaches its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)
