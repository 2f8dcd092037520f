"""Nothing that a client can send for nothing is free of charge, and what people send is."""

from __future__ import annotations

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from edgeproxy.wire.limits import Limits
from tests.wire.apps import Watcher, echo
from tests.wire.conftest import Serve
from tests.wire.h2_client import H2Client

CALM = (ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.INTERNAL_ERROR)
LIMITS = Limits(control_burst=100, control_per_s=0, resets_burst=100, resets_per_s=0)


async def calmed(client: H2Client) -> ErrorCodes:
    """The error of the GOAWAY with which the server closes; INTERNAL_ERROR where a TCP reset overtook it."""
    await client.until_closed()
    return client.goaways[-1][0] if client.goaways else ErrorCodes.INTERNAL_ERROR


def unknown(kind: int) -> bytes:
    return b"\0\0\0" + bytes([kind, 0]) + bytes(4)


FOR_NOTHING: dict[str, bytes | Frame] = {
    "unknown type": unknown(0xBB),
    "PRIORITY_UPDATE": unknown(0x10),
    "WINDOW_UPDATE": WindowUpdateFrame(0, window_increment=1),
    "WINDOW_UPDATE of an ended stream": WindowUpdateFrame(1, window_increment=1),
    "RST_STREAM of an ended stream": RstStreamFrame(1, error_code=8),
    "PING": PingFrame(0, opaque_data=bytes(8)),
    "PING acknowledgement": PingFrame(0, flags=["ACK"], opaque_data=bytes(8)),
    "SETTINGS": SettingsFrame(0),
    "SETTINGS acknowledgement": SettingsFrame(0, flags=["ACK"]),
    "PRIORITY": PriorityFrame(3, depends_on=0),
}


@pytest.mark.parametrize("kind", FOR_NOTHING)
async def test_frames_that_bring_no_request_further_are_limited(serve_plain: Serve, kind: str) -> None:
    edge = await serve_plain(echo, LIMITS)
    client = await edge.connect_h2()
    assert (await client.get()).status == 200
    frame = FOR_NOTHING[kind]
    client.write((frame if isinstance(frame, bytes) else frame.serialize()) * 300)
    assert await calmed(client) in CALM


@pytest.mark.parametrize("octets", [0, 1, 8])
async def test_data_of_next_to_nothing_is_limited(serve_plain: Serve, octets: int) -> None:
    watcher = Watcher()
    edge = await serve_plain(watcher, LIMITS)
    client = await edge.connect_h2()
    stream = client.request("POST", end=False)
    client.write(DataFrame(stream, bytes(octets)).serialize() * 1000)
    assert await calmed(client) in CALM


async def test_data_of_some_size_is_not(serve_plain: Serve) -> None:
    edge = await serve_plain(echo, LIMITS)
    client = await edge.connect_h2()
    stream = client.request("POST", end=False)
    for _ in range(500):
        await client.send(stream, bytes(64), end=False)
    client.h2.end_stream(stream)
    client.flush()
    assert len((await client.answer(stream)).body) == len(b"POST / ") + 500 * 64


async def test_many_small_requests_with_what_clients_say_beside_them_are_not(serve_plain: Serve) -> None:
    edge = await serve_plain(echo, LIMITS)
    client = await edge.connect_h2()
    for _ in range(300):
        stream = client.request("POST", end=False)
        await client.send(stream, b"tiny")
        client.write(WindowUpdateFrame(0, window_increment=1).serialize() * 2)
        assert (await client.answer(stream)).body == b"POST / tiny"


@pytest.mark.parametrize("field", [(":unknown", "x"), ("connection", "close")])
async def test_malformed_requests_are_limited(serve_plain: Serve, field: tuple[str, str]) -> None:
    edge = await serve_plain(echo, LIMITS)
    client = await edge.connect_h2()
    client.h2.config.validate_outbound_headers = client.h2.config.normalize_outbound_headers = False
    for _ in range(300):
        client.request("GET", "/", field)
    assert await calmed(client) in CALM


async def test_trailers_that_do_not_end_their_request_are_limited(serve_plain: Serve) -> None:
    edge = await serve_plain(echo, LIMITS)
    client = await edge.connect_h2()
    trailers = client.h2.encoder.encode([("x", "y")])
    for _ in range(300):
        stream = client.request("POST", end=False)
        client.write(HeadersFrame(stream, trailers, flags=["END_HEADERS"]).serialize())
    assert await calmed(client) in CALM
