"""Runs checks in processes of their own, each within its share of the time, whatever one of them does."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, NamedTuple

from engine.gpu_check.table import Line, Table


class Timed(NamedTuple):
    """A check."""

    name: str
    share_s: float
    """Its part of the time. What those before it left of theirs is its own too."""


Message = dict[str, Any] | None
"""worker.py's; None: its process has ended."""
Command = Callable[[Sequence[str], int], list[str]]
"""Names of checks, and the descriptor to tell of them at -> what runs them."""


class Driver:
    """A worker for all checks, and a new one for the rest of them where one raises, hangs or dies.

    The end of each check is fixed when the first begins: so none takes another's time, and all end in time.
    """

    def __init__(self, command: Command, table: Table, clock: Callable[[], float] = time.monotonic) -> None:
        self._command, self._table, self._clock = command, table, clock
        self._head = False

    def run(self, checks: Sequence[Timed]) -> str | None:
        """None; or why there is nothing to be checked, and nothing was."""
        began = self._clock()
        left = [check.name for check in checks]
        ends = dict(zip(left, accumulate(check.share_s for check in checks), strict=True))
        while left:
            with self._worker(left) as (process, messages):
                absent = self._follow(process, messages, left, lambda name: began + ends[name])
            if absent is not None:
                return absent
        return None

    def _follow(
        self,
        process: subprocess.Popen[bytes],
        messages: queue.Queue[Message],
        left: list[str],
        end: Callable[[str], float],
    ) -> str | None:
        """One worker, until it is done or of no use any more. Takes the checks that it is done with off `left`."""
        began = self._clock()
        while left:
            name = left[0]
            try:
                message = messages.get(timeout=max(0.0, end(name) - self._clock()))
                if self._clock() > end(name):
                    raise queue.Empty
            except queue.Empty:
                self._table.fail(name, f"not done after {self._clock() - began:.0f} s")
                left.pop(0)
                return None
            if message is None:
                self._table.fail(name, f"its process ended with {_status(process.wait())}")
                left.pop(0)
                return None
            if "absent" in message:
                return str(message["absent"])
            if "failed" in message:
                self._table.fail(name, message["failed"])
                left.pop(0)
                return None
            if "line" in message:
                self._table.put(Line(*message["line"]))
            elif "begun" in message:
                began = self._clock()
            elif "done" in message:
                left.pop(0)
            elif "head" in message and not self._head:
                self._head = True
                print(message["head"], flush=True)
        return None

    @contextmanager
    def _worker(self, names: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], queue.Queue[Message]]]:
        """Killed at the end, if need be; the device's memory is free again when that is over."""
        reads, writes = os.pipe()
        messages: queue.Queue[Message] = queue.Queue()
        with os.fdopen(reads) as told:
            try:
                process = subprocess.Popen(self._command(names, writes), stdin=subprocess.PIPE, pass_fds=[writes])
            finally:
                os.close(writes)
            reader = threading.Thread(target=_read, args=(told, messages), daemon=True)
            reader.start()
            try:
                yield process, messages
            finally:
                process.kill()
                process.wait()
                reader.join()
                assert process.stdin is not None
                process.stdin.close()


def _read(told: Any, messages: queue.Queue[Message]) -> None:
    with suppress(ValueError):  # the last line of one that was killed
        for line in told:
            messages.put(json.loads(line))
    messages.put(None)


def _status(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"status {code}"
