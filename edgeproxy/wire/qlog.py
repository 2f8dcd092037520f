"""What happened on HTTP/3 connections, packet by packet, for an operator who looks for the reason (qlog 0.3).

The switch is the folder: connections that are made while it exists are written there, a file each when they end
(draft-ietf-quic-qlog-main-schema; https://qvis.quictools.info shows them). Nothing is restarted for it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from weakref import WeakSet

import orjson
from aioquic.quic.logger import QLOG_VERSION, QuicLogger, QuicLoggerTrace

_log = logging.getLogger(__name__)

MAX_TRACES = 16
"""Connections that are followed at a time."""
MAX_EVENTS = 4000
"""Of one connection, from its beginning: about 4 MB of memory."""
MAX_FILES = 200
"""In the folder; who wants more takes some away."""


class Trace(QuicLoggerTrace):
    """QUIC alone: fields of requests, and keys among them, are written nowhere."""

    def __init__(self, *, is_client: bool, odcid: bytes) -> None:
        super().__init__(is_client=is_client, odcid=odcid)
        self._left = MAX_EVENTS

    def log_event(self, *, category: str, event: str, data: dict[str, Any]) -> None:
        if category != "http" and self._left:
            self._left -= 1
            super().log_event(category=category, event=event, data=data)


class Qlog(QuicLogger):
    """To be given to the configuration of a listener's connections."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._open: WeakSet[Trace] = WeakSet()
        """Not a count: connections that come to nothing are dropped without an end."""

    def start_trace(self, is_client: bool, odcid: bytes) -> QuicLoggerTrace | None:  # type: ignore[override]
        """None: the library then logs nothing of that connection."""
        if len(self._open) >= MAX_TRACES or not self._folder.is_dir():
            return None
        trace = Trace(is_client=is_client, odcid=odcid)
        self._open.add(trace)
        return trace

    def end_trace(self, trace: QuicLoggerTrace) -> None:
        found = trace.to_dict()
        whole = {"qlog_format": "JSON", "qlog_version": QLOG_VERSION, "traces": [found]}
        try:
            if sum(1 for _ in self._folder.iterdir()) < MAX_FILES:
                (self._folder / f"{found['common_fields']['ODCID']}.qlog").write_bytes(orjson.dumps(whole))
        except OSError as error:
            _log.warning("cannot write a qlog to %s: %s; make room there, or remove the folder", self._folder, error)
