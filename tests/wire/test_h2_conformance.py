"""RFC 9113 and RFC 7541, clause by clause: what a peer does wrong, and with which error the server must answer.

Frames are written octet by octet. Where the connection must end, the case says the codes of GOAWAY that are allowed;
where only the stream must, that of its RST_STREAM, and the connection still answers a PING. (Section 5.4.1 allows to
treat an error of a stream as one of its connection; so `hyperframe` does with an increment of 0.)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from h2.errors import ErrorCodes
from hpack import Encoder

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import answer, read_body
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S, RawClient

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x4, 0x8, 0x20
ACK = 0x1
GET = [(":method", "GET"), (":scheme", "http"), (":authority", "h"), (":path", "/")]
POST = [(":method", "POST"), *GET[1:]]
LAST = b"the last"
PROTOCOL, SIZE, FLOW, CLOSED, COMPRESSION = (
    {code}
    for code in (
        ErrorCodes.PROTOCOL_ERROR,
        ErrorCodes.FRAME_SIZE_ERROR,
        ErrorCodes.FLOW_CONTROL_ERROR,
        ErrorCodes.STREAM_CLOSED,
        ErrorCodes.COMPRESSION_ERROR,
    )
)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def block(*fields: tuple[str, str]) -> bytes:
    return Encoder().encode(fields)


def setting(code: int, value: int) -> bytes:
    return code.to_bytes(2, "big") + value.to_bytes(4, "big")


def increment(size: int) -> bytes:
    return size.to_bytes(4, "big")


ASKED = Encoder().encode(GET)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
OPEN_HEAD = frame(HEADERS, 0, 1, ASKED)
WHOLE = frame(HEADERS, END_HEADERS | END_STREAM, 1, ASKED)
"""A request on stream 1, after which the client has ended its side."""
BEGUN = frame(HEADERS, END_HEADERS, 1, block(*POST))
"""A request on stream 1 whose body is to follow."""
RESET = BEGUN + frame(RST_STREAM, 0, 1, increment(8))

Case = tuple[str, str, bytes, set[ErrorCodes]]

CONNECTION: list[Case] = [
    # 4: frames
    ("4.2", "frame of a connection beyond the limit", frame(SETTINGS, 0, 0, bytes(16386)), SIZE),
    ("4.2", "HEADERS beyond the limit", frame(HEADERS, END_HEADERS, 1, bytes(16385)), SIZE),
    ("4.2", "DATA beyond the limit", BEGUN + frame(DATA, 0, 1, bytes(16385)), SIZE),
    ("4.3", "PRIORITY within a head", OPEN_HEAD + frame(PRIORITY, 0, 1, bytes(5)), PROTOCOL),
    ("4.3", "a head within a head", OPEN_HEAD + frame(HEADERS, 5, 3, ASKED), PROTOCOL),
    ("4.3", "unknown frame within a head", OPEN_HEAD + frame(0xBB, 0, 0), PROTOCOL),
    # 5: streams
    ("5.1", "DATA on an idle stream", frame(DATA, END_STREAM, 1, b"x"), PROTOCOL),
    ("5.1", "RST_STREAM of an idle stream", frame(RST_STREAM, 0, 1, increment(8)), PROTOCOL),
    ("5.1", "WINDOW_UPDATE of an idle stream", frame(WINDOW_UPDATE, 0, 1, increment(9)), PROTOCOL),
    ("5.1.1", "stream of an even number", frame(HEADERS, 5, 2, ASKED), PROTOCOL),
    ("5.1.1", "smaller number", frame(HEADERS, 5, 5, ASKED) + frame(HEADERS, 5, 3, ASKED), PROTOCOL | CLOSED),
    # 6: frame by frame
    ("6.1", "DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL),
    ("6.1", "DATA padded beyond its end", BEGUN + frame(DATA, PADDED | END_STREAM, 1, b"\x09ab"), PROTOCOL),
    ("6.2", "HEADERS on stream 0", frame(HEADERS, 5, 0, ASKED), PROTOCOL),
    ("6.2", "HEADERS padded beyond its end", frame(HEADERS, 5 | PADDED, 1, b"\xff" + ASKED), PROTOCOL),
    ("6.3", "PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    ("6.3", "PRIORITY of four octets", frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    ("6.4", "RST_STREAM on stream 0", frame(RST_STREAM, 0, 0, increment(8)), PROTOCOL),
    ("6.4", "RST_STREAM of three octets", BEGUN + frame(RST_STREAM, 0, 1, bytes(3)), SIZE),
    ("6.5", "SETTINGS acknowledgement with a content", frame(SETTINGS, ACK, 0, setting(3, 1)), SIZE | PROTOCOL),
    ("6.5", "SETTINGS on a stream", frame(SETTINGS, 0, 1, setting(3, 1)), PROTOCOL),
    ("6.5", "SETTINGS of five octets", frame(SETTINGS, 0, 0, bytes(5)), SIZE),
    ("6.5.2", "ENABLE_PUSH of 2", frame(SETTINGS, 0, 0, setting(2, 2)), PROTOCOL),
    ("6.5.2", "INITIAL_WINDOW_SIZE above 2^31 - 1", frame(SETTINGS, 0, 0, setting(4, 2**31)), FLOW),
    ("6.5.2", "MAX_FRAME_SIZE below 2^14", frame(SETTINGS, 0, 0, setting(5, 2**14 - 1)), PROTOCOL),
    ("6.5.2", "MAX_FRAME_SIZE above 2^24 - 1", frame(SETTINGS, 0, 0, setting(5, 2**24)), PROTOCOL),
    ("6.6", "PUSH_PROMISE from a client", BEGUN + frame(PUSH_PROMISE, 4, 1, increment(2) + ASKED), PROTOCOL),
    ("6.7", "PING on a stream", frame(PING, 0, 1, bytes(8)), PROTOCOL),
    ("6.7", "PING of six octets", frame(PING, 0, 0, bytes(6)), SIZE),
    ("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    ("6.9", "WINDOW_UPDATE of 0 for the connection", frame(WINDOW_UPDATE, 0, 0, increment(0)), PROTOCOL),
    ("6.9", "WINDOW_UPDATE of 0 for a stream", BEGUN + frame(WINDOW_UPDATE, 0, 1, increment(0)), PROTOCOL),
    ("6.9", "WINDOW_UPDATE of three octets", frame(WINDOW_UPDATE, 0, 0, bytes(3)), SIZE),
    ("6.9.1", "connection window above 2^31 - 1", frame(WINDOW_UPDATE, 0, 0, increment(2**31 - 1)), FLOW),
    ("6.10", "CONTINUATION of nothing", frame(CONTINUATION, 4, 1, ASKED), PROTOCOL),
    ("6.10", "CONTINUATION of a whole head", BEGUN + frame(CONTINUATION, 4, 1, block(("a", "b"))), PROTOCOL),
    ("6.10", "CONTINUATION on stream 0", OPEN_HEAD + frame(CONTINUATION, 4, 0), PROTOCOL),
    ("6.10", "CONTINUATION of another stream", OPEN_HEAD + frame(CONTINUATION, 4, 3), PROTOCOL),
    # RFC 7541
    ("4.3", "entry 0 (RFC 7541 6.1)", frame(HEADERS, 5, 1, b"\x80"), COMPRESSION),
    ("4.3", "entry that is not there (RFC 7541 2.3.3)", frame(HEADERS, 5, 1, b"\xff\x80\x01"), COMPRESSION),
    ("4.3", "head cut short", frame(HEADERS, 5, 1, b"\x40\x0aabc"), COMPRESSION),
    ("4.3", "table larger than allowed (RFC 7541 6.3)", frame(HEADERS, 5, 1, b"\x3f\xe2\x1f" + ASKED), COMPRESSION),
    ("4.3", "table resized behind a field (RFC 7541 4.2)", frame(HEADERS, 5, 1, ASKED + b"\x20"), COMPRESSION),
    ("4.3", "table resized three times (RFC 7541 4.2)", frame(HEADERS, 5, 1, b"\x20\x21\x20" + ASKED), COMPRESSION),
    ("4.3", "integer that never ends (RFC 7541 5.1)", frame(HEADERS, 5, 1, b"\xff" * 100), COMPRESSION),
    ("4.3", "EOS in Huffman (RFC 7541 5.2)", frame(HEADERS, 5, 1, b"\x40\x01a\x84\xff\xff\xff\xff"), COMPRESSION),
]  # fmt: skip

STREAM: list[Case] = [
    ("5.1", "DATA after the end", WHOLE + frame(DATA, 0, 1, b"x"), CLOSED),
    ("5.1", "DATA after a reset", RESET + frame(DATA, 0, 1, b"x"), CLOSED),
    ("5.1", "a head after a reset", RESET + frame(HEADERS, 5, 1, ASKED), CLOSED),
    ("6.9.1", "window above 2^31 - 1", BEGUN + frame(WINDOW_UPDATE, 0, 1, increment(2**31 - 1)), FLOW),
    ("8.1", "second head without an end", BEGUN + frame(HEADERS, 4, 1, block(("a", "b"))), PROTOCOL),
    ("8.1.1", "pseudo-header in trailers", BEGUN + frame(HEADERS, 5, 1, block((":path", "/"))), PROTOCOL),
    ("8.5", "CONNECT", frame(HEADERS, 5, 1, block((":method", "CONNECT"), (":authority", "a:1"))), PROTOCOL),
]  # fmt: skip

FINE: list[tuple[str, str, bytes]] = [
    ("4.1", "unknown frame", frame(0xBB, 0xFF, 0, b"whatever")),
    ("4.1", "unknown flags", frame(PING, 0xFE, 0, bytes(8))),
    ("4.1", "reserved bit", frame(PING, 0, 2**31, bytes(8))),
    ("4.2", "DATA of the largest size", BEGUN + frame(DATA, END_STREAM, 1, bytes(16384))),
    ("4.3", "table resized twice", frame(HEADERS, 5, 1, b"\x20\x3f\xe1\x1f" + ASKED)),
    ("5.1", "PRIORITY of an idle stream", frame(PRIORITY, 0, 99, bytes(4) + b"\x10")),
    ("5.1", "WINDOW_UPDATE after the end", WHOLE + frame(WINDOW_UPDATE, 0, 1, increment(9))),
    ("5.1", "RST_STREAM after the end", WHOLE + frame(RST_STREAM, 0, 1, increment(8))),
    ("6.1", "padded DATA", BEGUN + frame(DATA, PADDED | END_STREAM, 1, b"\x02abcd")),
    ("6.2", "padded HEADERS with a priority", frame(HEADERS, 0x2D, 1, b"\x01" + bytes(4) + b"\x10" + ASKED + b"\0")),
    ("6.2", "a head in pieces", frame(HEADERS, 1, 1, ASKED[:2]) + frame(CONTINUATION, 4, 1, ASKED[2:])),
    ("6.2", "a head with an empty piece", OPEN_HEAD + frame(CONTINUATION, 0, 1) + frame(CONTINUATION, 4, 1)),
    ("6.5.2", "unknown setting", frame(SETTINGS, 0, 0, setting(0xBEEF, 7))),
    ("6.5.2", "table of our fields as large as can be", frame(SETTINGS, 0, 0, setting(1, 2**32 - 1)) + WHOLE),
    ("6.5.2", "table of our fields of no size", frame(SETTINGS, 0, 0, setting(1, 0)) + WHOLE),
    ("6.5.3", "a setting twice", frame(SETTINGS, 0, 0, setting(4, 1) + setting(4, 100))),
    ("6.7", "PING acknowledgement nobody asked for", frame(PING, ACK, 0, bytes(8))),
    ("6.9.2", "window made negative", WHOLE + frame(SETTINGS, 0, 0, setting(4, 0))),
    ("7", "unknown error code", RESET[:-4] + increment(0xBAD)),
    ("8.1", "trailers", BEGUN + frame(DATA, 0, 1, b"x") + frame(HEADERS, 5, 1, block(("a", "b")))),
]  # fmt: skip


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> ErrorCodes:
        """Of RST_STREAM and GOAWAY."""
        return ErrorCodes(int.from_bytes(self.payload[-4:] if self.kind == RST_STREAM else self.payload[4:8], "big"))


async def frames(client: RawClient) -> list[Frame]:
    """All up to the answer to the last PING, or to the end of the connection."""
    found: list[Frame] = []
    while True:
        try:
            head = await client.read(9)
            payload = await client.read(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return found
        found.append(Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload))
        if found[-1].kind == PING and found[-1].payload == LAST:
            return found


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, await read_body(receive))


async def exchange(serve_plain: Serve, octets: bytes) -> tuple[RawClient, list[Frame]]:
    edge = await serve_plain(echo)
    client = await edge.connect()
    await client.send(PREFACE + octets + frame(PING, 0, 0, LAST))
    return client, await frames(client)


def ids(cases: list[Case] | list[tuple[str, str, bytes]]) -> list[str]:
    return [f"{case[0]} {case[1]}" for case in cases]


@pytest.mark.parametrize(("clause", "name", "octets", "codes"), CONNECTION, ids=ids(CONNECTION))
async def test_the_connection_ends_with(
    clause: str, name: str, octets: bytes, codes: set[ErrorCodes], serve_plain: Serve
) -> None:
    client, found = await exchange(serve_plain, octets)
    assert found[-1].kind == GOAWAY, "it says why"
    assert found[-1].code in codes
    assert await client.closed()


@pytest.mark.parametrize(("clause", "name", "octets", "codes"), STREAM, ids=ids(STREAM))
async def test_the_stream_ends_alone_with(
    clause: str, name: str, octets: bytes, codes: set[ErrorCodes], serve_plain: Serve
) -> None:
    client, found = await exchange(serve_plain, octets)
    resets = [each for each in found if each.kind == RST_STREAM]
    assert (resets[0].stream_id, resets[0].code in codes) == (1, True)
    assert found[-1].kind == PING
    await still_serves(client)


@pytest.mark.parametrize(("clause", "name", "octets"), FINE, ids=ids(FINE))
async def test_what_is_allowed_does_no_harm(clause: str, name: str, octets: bytes, serve_plain: Serve) -> None:
    client, found = await exchange(serve_plain, octets)
    assert found[-1].kind == PING
    assert not [each for each in found if each.kind in (RST_STREAM, GOAWAY)]
    await still_serves(client)


async def still_serves(client: RawClient) -> None:
    await client.send(frame(SETTINGS, 0, 0, setting(4, 100)) + frame(HEADERS, 5, 101, ASKED))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            head = await client.read(9)
            await client.read(int.from_bytes(head[:3], "big"))
            if head[4] & END_STREAM and head[3] in (DATA, HEADERS) and head[5:] == increment(101):
                return
