"""RFC 9114 and RFC 9204, clause by clause: what a peer does wrong, and with which error the server must answer.

The client is aioquic as it is. Where the connection must end, the case says the code of its CONNECTION_CLOSE; where
only the stream must, that of its RESET_STREAM, and the connection still serves. Codes: RFC 9114 section 8.1, RFC 9204
section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pylsqpack
import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, Setting, encode_frame
from aioquic.h3.events import Headers

from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import echo, serving
from tests.client.h3_peer import Peer, get, post

CONTROL, PUSH, ENCODER, DECODER = 0x0, 0x1, 0x2, 0x3
GREASE = 0x21
HTTP2_PRIORITY, HTTP2_PING, HTTP2_WINDOW_UPDATE, HTTP2_CONTINUATION = 0x2, 0x6, 0x8, 0x9


def var(*numbers: int) -> bytes:
    return b"".join(map(encode_uint_var, numbers))


def block(fields: Headers) -> bytes:
    return pylsqpack.Encoder().encode(0, fields)[1]


def headers(fields: Headers) -> bytes:
    return encode_frame(FrameType.HEADERS, block(fields))


def data(octets: bytes) -> bytes:
    return encode_frame(FrameType.DATA, octets)


def settings(*pairs: tuple[int, int]) -> bytes:
    return encode_frame(FrameType.SETTINGS, b"".join(var(*pair) for pair in pairs))


@dataclass(frozen=True)
class Case:
    clause: str
    name: str
    code: int
    act: Callable[[Peer], object]

    def __str__(self) -> str:
        return f"{self.clause} {self.name}"


def on_request(octets: bytes, *, end: bool = False) -> Callable[[Peer], object]:
    """On a new request stream."""
    return lambda peer: peer.raw(peer.quic.get_next_available_stream_id(), octets, end=end)


def on_new(kind: int, octets: bytes = b"", *, end: bool = False) -> Callable[[Peer], object]:
    """On a new unidirectional stream of that type."""
    return lambda peer: peer.raw(
        peer.quic.get_next_available_stream_id(is_unidirectional=True), var(kind) + octets, end=end
    )


def local(peer: Peer, kind: int) -> int:
    assert peer.h3
    found = {
        CONTROL: peer.h3._local_control_stream_id,
        ENCODER: peer.h3._local_encoder_stream_id,
        DECODER: peer.h3._local_decoder_stream_id,
    }[kind]
    assert found is not None
    return found


def on_own(kind: int, octets: bytes, *, end: bool = False) -> Callable[[Peer], object]:
    """On the critical stream that the client has opened already."""
    return lambda peer: peer.raw(local(peer, kind), octets, end=end)


def reset_own(kind: int) -> Callable[[Peer], object]:
    return lambda peer: peer.reset(local(peer, kind), ErrorCode.H3_NO_ERROR)


E = ErrorCode
CONNECTION = [
    # frames and their streams
    Case("9114 4.1", "DATA before HEADERS", E.H3_FRAME_UNEXPECTED, on_request(data(b"x"))),
    Case("9114 4.1", "HEADERS after trailers", E.H3_FRAME_UNEXPECTED, on_request(headers(get()) + 2 * headers([]))),
    Case(
        "9114 4.1", "DATA after trailers", E.H3_FRAME_UNEXPECTED, on_request(headers(get()) + headers([]) + data(b"x"))
    ),
    Case("9114 7.1", "frame cut by the end of its stream", E.H3_FRAME_ERROR, on_request(headers(get())[:-3], end=True)),
    Case(
        "9114 7.1",
        "DATA cut by the end of its stream",
        E.H3_FRAME_ERROR,
        on_request(headers(get()) + var(0, 9) + b"x", end=True),
    ),
    Case("9114 7.2.1", "DATA on the control stream", E.H3_FRAME_UNEXPECTED, on_own(CONTROL, data(b"x"))),
    Case("9114 7.2.2", "HEADERS on the control stream", E.H3_FRAME_UNEXPECTED, on_own(CONTROL, headers(get()))),
    Case("9114 7.2.3", "CANCEL_PUSH on a request", E.H3_FRAME_UNEXPECTED, on_request(encode_frame(0x3, var(0)))),
    Case("9114 7.2.4", "SETTINGS on a request", E.H3_FRAME_UNEXPECTED, on_request(settings())),
    Case("9114 7.2.4", "second SETTINGS", E.H3_FRAME_UNEXPECTED, on_own(CONTROL, settings())),
    Case(
        "9114 7.2.5",
        "PUSH_PROMISE from a client",
        E.H3_FRAME_UNEXPECTED,
        on_request(encode_frame(0x5, var(0) + block(get()))),
    ),
    Case(
        "9114 7.2.5",
        "PUSH_PROMISE on the control stream",
        E.H3_FRAME_UNEXPECTED,
        on_own(CONTROL, encode_frame(0x5, var(0))),
    ),
    Case("9114 7.2.6", "GOAWAY on a request", E.H3_FRAME_UNEXPECTED, on_request(encode_frame(0x7, var(0)))),
    Case("9114 7.2.7", "MAX_PUSH_ID on a request", E.H3_FRAME_UNEXPECTED, on_request(encode_frame(0xD, var(1)))),
    Case(
        "9114 7.2.7",
        "MAX_PUSH_ID that goes down",
        E.H3_ID_ERROR,
        on_own(CONTROL, encode_frame(0xD, var(9)) + encode_frame(0xD, var(8))),
    ),
    *(
        Case("9114 7.2.8", f"frame 0x{kind:x} of HTTP/2 on {name}", E.H3_FRAME_UNEXPECTED, on(encode_frame(kind, b"")))
        for kind in (HTTP2_PRIORITY, HTTP2_PING, HTTP2_WINDOW_UPDATE, HTTP2_CONTINUATION)
        for name, on in (("a request", on_request), ("the control stream", lambda octets: on_own(CONTROL, octets)))
    ),
    # streams
    Case("9114 6.2.1", "second control stream", E.H3_STREAM_CREATION_ERROR, on_new(CONTROL, settings())),
    Case("9114 6.2.1", "control stream ended", E.H3_CLOSED_CRITICAL_STREAM, on_own(CONTROL, b"", end=True)),
    Case("9114 6.2.1", "control stream reset", E.H3_CLOSED_CRITICAL_STREAM, reset_own(CONTROL)),
    Case("9114 6.2.2", "push stream from a client", E.H3_STREAM_CREATION_ERROR, on_new(PUSH, var(0))),
    Case("9204 4.2", "second encoder stream", E.H3_STREAM_CREATION_ERROR, on_new(ENCODER)),
    Case("9204 4.2", "second decoder stream", E.H3_STREAM_CREATION_ERROR, on_new(DECODER)),
    Case("9204 4.2", "encoder stream ended", E.H3_CLOSED_CRITICAL_STREAM, on_own(ENCODER, b"", end=True)),
    Case("9204 4.2", "decoder stream ended", E.H3_CLOSED_CRITICAL_STREAM, on_own(DECODER, b"", end=True)),
    Case("9204 4.2", "encoder stream reset", E.H3_CLOSED_CRITICAL_STREAM, reset_own(ENCODER)),
    Case("9204 4.2", "decoder stream reset", E.H3_CLOSED_CRITICAL_STREAM, reset_own(DECODER)),
    # QPACK
    Case(
        "9204 2.2.3",
        "reference to an entry that cannot be",
        E.QPACK_DECOMPRESSION_FAILED,
        on_request(encode_frame(1, b"\x00\x00\xff\x30")),
    ),
    Case(
        "9204 4.5.1",
        "field section that needs inserts",
        E.QPACK_DECOMPRESSION_FAILED,
        on_request(encode_frame(1, b"\x02\x00\x80")),
    ),
    Case(
        "9204 4.5",
        "field section cut short",
        E.QPACK_DECOMPRESSION_FAILED,
        on_request(encode_frame(1, b"\x00\x00\x51")),
    ),
    Case("9204 4.3.1", "table above its limit", E.QPACK_ENCODER_STREAM_ERROR, on_own(ENCODER, b"\x3f\xe1\x1f")),
    Case("9204 4.3.3", "insert into a table of no size", E.QPACK_ENCODER_STREAM_ERROR, on_own(ENCODER, b"\x41a\x01b")),
    Case("9204 4.4.3", "insert count increment of zero", E.QPACK_DECODER_STREAM_ERROR, on_own(DECODER, b"\x00")),
    Case("9204 4.4.3", "increment beyond what was sent", E.QPACK_DECODER_STREAM_ERROR, on_own(DECODER, b"\x0a")),
    Case("9204 4.4.1", "acknowledgement of no section", E.QPACK_DECODER_STREAM_ERROR, on_own(DECODER, b"\x80")),
]

LATE_SETTINGS = [
    # what the control stream may begin with; the client opens its own by hand
    Case("9114 6.2.1", "no SETTINGS first", E.H3_MISSING_SETTINGS, on_new(CONTROL, encode_frame(0x7, var(0)))),
    Case("9114 6.2.1", "grease before SETTINGS", E.H3_MISSING_SETTINGS, on_new(CONTROL, encode_frame(GREASE, b""))),
    *(
        Case("9114 7.2.4.1", f"setting 0x{name:x} of HTTP/2", E.H3_SETTINGS_ERROR, on_new(CONTROL, settings((name, 1))))
        for name in (0x2, 0x3, 0x4, 0x5)
    ),
    Case("9114 7.2.4", "the same setting twice", E.H3_SETTINGS_ERROR, on_new(CONTROL, settings((6, 1), (6, 1)))),
    Case("9114 7.2.4", "setting without a value", E.H3_FRAME_ERROR, on_new(CONTROL, encode_frame(4, var(6)))),
]


def but(name: bytes) -> Headers:
    return [field for field in get() if field[0] != name]


def changed(name: bytes, value: bytes) -> Headers:
    return [(key, value if key == name else old) for key, old in get()]


MESSAGE: list[tuple[str, str, bytes]] = [
    ("9114 4.3.1", "no :method", headers(but(b":method"))),
    ("9114 4.3.1", "no :scheme", headers(but(b":scheme"))),
    ("9114 4.3.1", "no :path", headers(but(b":path"))),
    ("9114 4.3.1", "neither :authority nor host", headers(but(b":authority"))),
    ("9114 4.3.1", "empty :path", headers(changed(b":path", b""))),
    ("9114 4.3.1", "relative :path", headers(changed(b":path", b"a"))),
    ("9114 4.3.1", "empty :authority", headers(changed(b":authority", b""))),
    ("9114 4.3.1", "host that differs from :authority", headers([*get(), (b"host", b"other")])),
    ("9114 4.3", "pseudo-header twice", headers([*get(), (b":path", b"/")])),
    ("9114 4.3", "pseudo-header of a response", headers([(b":status", b"200"), *get()])),
    ("9114 4.3", "unknown pseudo-header", headers([(b":protocol", b"x"), *get()])),
    ("9114 4.3", "pseudo-header after a field", headers([(b"a", b"b"), *get()])),
    ("9114 4.3", "pseudo-header in trailers", headers(post()) + headers([(b":path", b"/")])),
    ("9114 4.2", "upper-case name", headers([*get(), (b"Accept", b"x")])),
    ("9114 4.2", "name with a blank", headers([*get(), (b"a b", b"x")])),
    ("9114 4.2", "connection", headers([*get(), (b"connection", b"close")])),
    ("9114 4.2", "keep-alive", headers([*get(), (b"keep-alive", b"1")])),
    ("9114 4.2", "proxy-connection", headers([*get(), (b"proxy-connection", b"close")])),
    ("9114 4.2", "transfer-encoding", headers([*get(), (b"transfer-encoding", b"chunked")])),
    ("9114 4.2", "upgrade", headers([*get(), (b"upgrade", b"h2c")])),
    ("9114 4.2", "te other than trailers", headers([*get(), (b"te", b"gzip")])),
    ("9114 10.3", "value with a line feed", headers([*get(), (b"a", b"b\nc: d")])),
    ("9114 10.3", "value with a carriage return", headers([*get(), (b"a", b"b\rc")])),
    ("9114 10.3", "value with a NUL", headers([*get(), (b"a", b"b\0c")])),
    ("9114 4.1.2", "longer than its content-length", headers(post("/", (b"content-length", b"1"))) + data(b"xy")),
    ("9114 4.1.2", "content-length twice", headers(post("/", (b"content-length", b"1"), (b"content-length", b"1")))),
    ("9114 4.1.2", "content-length that is no number", headers(post("/", (b"content-length", b"+1")))),
    ("9114 4.4", "CONNECT", headers([(b":method", b"CONNECT"), (b":authority", b"a:1")])),
]
FINE: list[tuple[str, str, bytes]] = [
    ("9114 9", "grease frame first", encode_frame(GREASE, b"x") + headers(get())),
    ("9114 9", "grease frame between", headers(post()) + encode_frame(GREASE + 0x1F, b"") + data(b"")),
    ("9114 4.2", "te: trailers", headers([*get(), (b"te", b"trailers")])),
    ("9114 4.2.1", "cookie in several fields", headers([*get(), (b"cookie", b"a=1"), (b"cookie", b"b=2")])),
    ("9114 4.3.1", "host that equals :authority", headers([*get(), (b"host", b"localhost")])),
    ("9114 4.3.1", "OPTIONS *", headers([(b":method", b"OPTIONS"), *changed(b":path", b"*")[1:]])),
    ("9114 4.1", "trailers", headers(post()) + data(b"x") + headers([(b"checksum", b"1")])),
    ("9114 4.1", "trailers without a field", headers(post()) + data(b"x") + headers([])),
    ("9114 4.1", "empty DATA", headers(post()) + data(b"")),
]


@pytest.mark.parametrize("case", CONNECTION, ids=str)
async def test_the_connection_ends_with(case: Case, certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        bystander, peer = await edge.peer(), await edge.peer()
        await peer.round_trip()
        case.act(peer)
        assert (await peer.closing()).error_code == case.code
        assert (await bystander.reply(bystander.request(get()))).status == 200


@pytest.mark.parametrize("case", LATE_SETTINGS, ids=str)
async def test_a_control_stream_must_begin_well(case: Case, certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer(mute=True)
        case.act(peer)
        assert (await peer.closing()).error_code == case.code


@pytest.mark.parametrize(("clause", "name", "octets"), MESSAGE, ids=[f"{clause} {name}" for clause, name, _ in MESSAGE])
async def test_a_malformed_message_ends_its_stream_alone(
    clause: str, name: str, octets: bytes, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.quic.get_next_available_stream_id()
        peer.raw(stream, octets, end=True)
        reply = await peer.reply(stream)
        assert (reply.reset, reply.status, peer.closed) == (ErrorCode.H3_MESSAGE_ERROR, None, None)
        assert (await peer.reply(peer.request(get()))).status == 200


@pytest.mark.parametrize(("clause", "name", "octets"), FINE, ids=[f"{clause} {name}" for clause, name, _ in FINE])
async def test_what_is_allowed_is_served(clause: str, name: str, octets: bytes, certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.quic.get_next_available_stream_id()
        peer.raw(stream, octets, end=True)
        assert (await peer.reply(stream)).status == 200


@pytest.mark.parametrize("kind", [GREASE, GREASE + 0x1F, 0x54], ids=hex)
async def test_streams_of_unknown_types_are_ignored(kind: int, certificate: DevCertificate) -> None:
    """RFC 9114 section 6.2.3."""
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        on_new(kind, b"whatever")(peer)
        await peer.round_trip()
        assert (await peer.reply(peer.request(get()))).status == 200


async def test_the_server_says_what_it_can_do(certificate: DevCertificate) -> None:
    """RFC 9114 sections 6.2.1 and 7.2.4.1: SETTINGS first, a limit on field sections, no dynamic table."""
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        assert peer.h3
        await peer.until(lambda: peer.h3 and peer.h3.received_settings is not None)
        found = peer.h3.received_settings
        assert found is not None
        assert found[Setting.QPACK_MAX_TABLE_CAPACITY] == found[Setting.QPACK_BLOCKED_STREAMS] == 0
        assert found[Setting.MAX_FIELD_SECTION_SIZE] == 32 * 1024
        assert Setting.ENABLE_CONNECT_PROTOCOL not in found
