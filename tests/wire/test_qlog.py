"""While an operator's folder is there, HTTP/3 connections leave in it what QUIC did, and nothing that was said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from edgeproxy.wire import qlog
from edgeproxy.wire.qlog import Qlog, Trace
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import echo, serving
from tests.client.h3_peer import get


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_folder_is_the_switch_and_nothing_that_was_said_is_written(
    certificate: DevCertificate, tmp_path: Path
) -> None:
    folder = tmp_path / "qlog"
    async with serving(echo, certificate, qlog=folder) as edge:
        before = await edge.peer()
        assert (await before.reply(before.request(get()))).status == 200
        folder.mkdir()
        peer = await edge.peer()
        asked = [*get("/hidden-path"), (b"authorization", b"Bearer hidden-key")]
        assert (await peer.reply(peer.request(asked))).status == 200
        before.close()
        peer.close()
        await until(lambda: edge.listener.connections == 0 and any(folder.iterdir()))
    (file,) = folder.iterdir()
    raw = file.read_bytes()
    (trace,) = orjson.loads(raw)["traces"]
    names = {event["name"] for event in trace["events"]}
    assert {"transport:packet_received", "transport:packet_sent", "recovery:metrics_updated"} <= names
    assert not any(name.startswith("http:") for name in names)
    assert b"hidden" not in raw


def test_of_one_connection_so_much_is_kept_and_no_more() -> None:
    trace = Trace(is_client=False, odcid=b"\1" * 8)
    for _ in range(qlog.MAX_EVENTS + 5):
        trace.log_event(category="transport", event="packet_sent", data={})
    assert len(trace.to_dict()["events"]) == qlog.MAX_EVENTS


def test_so_many_connections_are_followed_and_those_that_come_to_nothing_count_no_more(tmp_path: Path) -> None:
    log = Qlog(tmp_path)
    traces = [log.start_trace(False, bytes([number])) for number in range(qlog.MAX_TRACES)]
    assert None not in traces
    assert log.start_trace(False, b"one more") is None
    traces.pop()
    assert log.start_trace(False, b"one more") is not None


def test_a_full_or_vanished_folder_costs_files_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(qlog, "MAX_FILES", 1)
    log = Qlog(tmp_path / "qlog")
    (tmp_path / "qlog").mkdir()
    for odcid in (b"a", b"b"):
        trace = log.start_trace(False, odcid)
        assert trace is not None
        log.end_trace(trace)
    (file,) = (tmp_path / "qlog").iterdir()
    last = log.start_trace(False, b"c")
    assert last is not None
    file.unlink()
    (tmp_path / "qlog").rmdir()
    log.end_trace(last)
    assert "cannot write a qlog" in caplog.text
