"""Headless Chromium over its own protocol, through a pair of pipes: no driver, no port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

_PIPE = "--remote-debugging-pipe"
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. What the page logs as an error is kept in `errors`."""

    def __init__(self, commands: int, answers: FileIO) -> None:
        self._commands = commands
        self._answers = answers
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises AssertionError where the browser refuses."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """What JavaScript answers in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._answers.read(1 << 16)
            assert data, "the browser ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(str(event["params"]["entry"]["text"]))


@contextmanager
def browser(folder: Path, *more: str) -> Iterator[Browser]:
    """`folder`: for its profile. `more`: further options of its command line."""
    assert PROGRAM is not None
    to_browser, from_browser = os.pipe(), os.pipe()

    ends = (to_browser[0], from_browser[1])
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}", *more)
    process = subprocess.Popen(  # it reads its protocol from 3 and answers on 4
        ["bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash", *map(str, ends), PROGRAM, *options, _PIPE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=ends,
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        with FileIO(from_browser[0], "rb") as answers:
            yield Browser(to_browser[1], answers)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser[1])
