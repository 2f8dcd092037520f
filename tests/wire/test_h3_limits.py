"""Everything an HTTP/3 peer can grow has a limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, encode_frame
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client.connection import Connection, StreamFailed
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import KIB, Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, read_body, reply, serving, soon
from tests.client.h3_peer import PATIENCE_S, Peer, get, post, stream_frame


def code(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]


async def unread_client(port: int, ca: Path, window: int) -> Connection:
    """A client whose credit follows its reading, so that it can stop."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], server_name="localhost", max_stream_data=window, max_data=4 * window
    )
    configuration.load_verify_locations(cafile=str(ca))
    return await Connection.connect(configuration, ("127.0.0.1", port))


@pytest.mark.parametrize(
    "fields",
    [[(b"x-large", b"v" * 40_000)], [(b"x-%d" % i, b"1") for i in range(200)], [(b"x", b"")] * 110],
    ids=["large", "many", "tiny"],
)
async def test_too_large_a_head_is_a_431_and_never_reaches_the_application(
    fields: list[tuple[bytes, bytes]], certificate: DevCertificate
) -> None:
    probe = Probe()
    probe.go.set()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request([*get(), *fields]))
        assert (answer.status, code(answer.body)) == (431, "headers_too_large")
        assert probe.calls == 0
        assert (await peer.reply(peer.request(get()))).body == b"held"


async def test_a_head_that_only_says_that_it_is_large_is_refused_at_once(certificate: DevCertificate) -> None:
    """The field section is never buffered: its length alone is enough."""
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.quic.get_next_available_stream_id()
        peer.raw(stream, encode_uint_var(0x1) + encode_uint_var(1 << 30) + b"start")
        assert (await peer.reply(stream)).status == 431


async def test_a_static_table_bomb_is_refused(certificate: DevCertificate) -> None:
    """One octet a field: 20 000 of them, each a line of QPACK's static table."""
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.quic.get_next_available_stream_id()
        peer.raw(stream, encode_frame(0x1, b"\x00\x00" + b"\xc0" * 20_000), end=True)
        assert (await peer.reply(stream)).status == 431


async def test_a_dynamic_table_bomb_cannot_be_loaded(certificate: DevCertificate) -> None:
    """The table has no room: an insertion is an error of the connection (RFC 9204 section 3.2.2)."""
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        assert peer.h3
        name, value = b"bomb", b"v" * 4000
        insertion = bytes([0x40 | len(name)]) + name + b"\x7f" + bytes([0x80 | ((4000 - 127) & 127), (4000 - 127) >> 7])
        encoder = 6  # the client's second unidirectional stream, after control
        peer.raw(encoder, b"\x3f\xe1\x1f" + insertion + value)
        assert (await peer.closing()).error_code == ErrorCode.QPACK_ENCODER_STREAM_ERROR


async def test_long_settings_are_not_buffered(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer(wait=False)
        control = peer.quic.get_next_available_stream_id(is_unidirectional=True)
        peer.raw(control, b"\x00\x04" + encode_uint_var(1 << 20))
        assert (await peer.closing()).error_code == ErrorCode.H3_EXCESSIVE_LOAD


async def test_too_long_a_target_is_a_414(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(get("/" + "x" * 9000)))
    assert (answer.status, code(answer.body)) == (414, "uri_too_long")


async def test_too_large_a_declared_body_is_a_413_before_the_application(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate, Limits(body_bytes=1000)) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(post("/", (b"content-length", b"1001")), end=False))
    assert (answer.status, code(answer.body), probe.calls) == (413, "request_too_large", 0)


async def test_too_large_an_undeclared_body_is_a_413_and_ends_the_application(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.wait, certificate, Limits(body_bytes=1000)) as edge:
        peer = await edge.peer()
        stream = peer.request(post(), b"x" * 500, end=False)
        await soon(probe.started)
        peer.data(stream, b"x" * 501)
        answer = await peer.reply(stream)
        assert (answer.status, code(answer.body)) == (413, "request_too_large")
        await soon(probe.disconnected)


async def side_request(client: Connection) -> None:
    """A round trip on a stream of its own, which everything that was to be sent before it has taken part in."""
    exchange = client.request(get("/side"), end=True)
    assert await exchange.read() == b"not disturbed"
    exchange.close()


async def test_an_upload_that_nobody_reads_stops_at_the_window(certificate: DevCertificate) -> None:
    window, size = 32 * KIB, 400 * KIB
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/side":
            await reply(send, b"not disturbed")
            return
        await go.wait()
        await reply(send, b"%d" % len(await read_body(receive)))

    async with serving(app, certificate, Limits(unread_body_bytes=window)) as edge:
        client = await unread_client(edge.port, edge.ca, 64 * KIB)
        exchange = client.request(post("/upload"), end=False)
        client.h3.write_data(0, bytes(size), end=True)
        async with asyncio.timeout(PATIENCE_S):
            while size - client.quic.unsent(0) < window - 100:
                await side_request(client)
        for _ in range(5):
            await side_request(client)
            assert size - client.quic.unsent(0) <= window
        go.set()
        assert await exchange.read() == b"%d" % size
        client.close()


async def test_a_client_that_does_not_read_stops_the_application(certificate: DevCertificate) -> None:
    window, limits = 32 * KIB, Limits(unsent_bytes=64 * KIB)
    probe = Probe()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/side":
            await reply(send, b"not disturbed")
        else:
            await probe.flood(scope, receive, send)

    async with serving(app, certificate, limits) as edge:
        client = await unread_client(edge.port, edge.ca, window)
        exchange = client.request(get(), end=True)
        await exchange.head()
        before = -1
        async with asyncio.timeout(PATIENCE_S):
            while probe.sent > before:  # until it stands still
                before = probe.sent
                for _ in range(5):
                    await side_request(client)
        assert window < probe.sent <= window + limits.unsent_bytes
        read = 0
        while read < 10 * window:
            read += len(await exchange.read())
        assert probe.sent > 9 * window, "reading lets it go on"
        exchange.close()
        await soon(probe.send_failed)
        client.close()


async def test_a_client_that_never_reads_on_is_reset(certificate: DevCertificate) -> None:
    limits = Limits(unsent_bytes=16 * KIB, stalled_write_s=30)
    probe = Probe()
    async with serving(probe.flood, certificate, limits) as edge:
        client = await unread_client(edge.port, edge.ca, 16 * KIB)
        exchange = client.request(get(), end=True)
        await exchange.head()
        edge.later(29)
        assert not probe.send_failed.is_set()
        edge.later(10_000)
        edge.later(20_000)  # the first look saw that something had left since the wait began
        await soon(probe.send_failed)
        with pytest.raises(StreamFailed):
            while await exchange.read():
                pass
        client.close()


async def test_an_upload_that_stalls_is_a_408(certificate: DevCertificate) -> None:
    probe = Probe()
    limits = Limits()
    async with serving(probe.wait, certificate, limits) as edge:
        peer = await edge.peer()
        stream = peer.request(post(), b"part", end=False)
        await soon(probe.started)
        await peer.round_trip()
        edge.later(limits.stalled_read_s - 1)
        assert not probe.disconnected.is_set()
        edge.later(limits.stalled_read_s + 1)
        answer = await peer.reply(stream)
        assert (answer.status, code(answer.body)) == (408, "request_timeout")
        await soon(probe.disconnected)


async def test_a_head_that_never_ends_is_given_up(certificate: DevCertificate) -> None:
    limits = Limits()
    async with serving(echo, certificate, limits) as edge:
        peer = await edge.peer()
        stream = peer.quic.get_next_available_stream_id()
        peer.raw(stream, b"\x01\x20half")
        await peer.round_trip()
        edge.later(limits.head_s - 1)
        await peer.round_trip()
        assert peer.at(stream).reset is None
        edge.later(limits.head_s + 1)
        assert (await peer.reply(stream)).reset == ErrorCode.H3_REQUEST_CANCELLED


async def test_more_running_applications_than_the_limit_are_not_started(certificate: DevCertificate) -> None:
    """A cancelled request frees its stream, but not the place of an application that has not noticed yet."""
    limits = Limits(streams_per_connection=4)
    probe = Probe()
    async with serving(probe.hang, certificate, limits) as edge:
        peer = await edge.peer()
        streams = [peer.request(get()) for _ in range(4)]
        await peer.round_trip()
        for stream in streams:
            peer.cancel(stream)
        for stream in streams:
            await peer.reply(stream)
        await peer.round_trip()
        assert (await peer.reply(peer.request(get()))).reset == ErrorCode.H3_REQUEST_REJECTED
    assert probe.calls == 4


async def test_rapid_resets_end_the_connection(certificate: DevCertificate) -> None:
    limits = Limits(resets_burst=10, resets_per_s=0)
    probe = Probe()
    async with serving(probe.wait, certificate, limits) as edge:
        peer, bystander = await edge.peer(), await edge.peer()
        for _ in range(11):
            peer.cancel(peer.request(get()))
            await peer.round_trip()
        assert (await peer.closing()).error_code == ErrorCode.H3_EXCESSIVE_LOAD
        assert probe.calls <= 11
        bystander.cancel(bystander.request(get()))
        await bystander.round_trip()
        assert bystander.closed is None


@pytest.mark.parametrize("kind", ["malformed head", "no head", "no head, reset", "trailers first"])
async def test_streams_that_bring_no_request_are_charged_as_requests_taken_back(
    kind: str, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate, Limits(resets_burst=10, resets_per_s=0)) as edge:
        peer, bystander = await edge.peer(), await edge.peer()
        for _ in range(11):
            if kind == "malformed head":
                peer.request(get("relative"))
            elif kind == "trailers first":
                peer.request([(b"checksum", b"1")])
            else:
                stream = peer.quic.get_next_available_stream_id()
                peer.quic.send_stream_data(stream, b"", end_stream=kind != "no head, reset")
                if kind == "no head, reset":
                    peer.reset(stream)
            await peer.round_trip()
        assert (await peer.closing()).error_code == ErrorCode.H3_EXCESSIVE_LOAD
        assert (await bystander.reply(bystander.request(get()))).status == 200


async def test_a_reset_that_our_own_early_answer_asked_for_is_not_charged(certificate: DevCertificate) -> None:
    limits = Limits(body_bytes=10, resets_burst=3, resets_per_s=0)
    async with serving(echo, certificate, limits) as edge:
        peer = await edge.peer()
        for _ in range(20):
            stream = peer.request(post("/", (b"content-length", b"1001")), end=False)
            assert (await peer.reply(stream)).status == 413
            peer.reset(stream)
            await peer.round_trip()
        assert peer.closed is None


async def test_an_idle_connection_is_closed_gracefully(certificate: DevCertificate) -> None:
    limits = Limits()
    async with serving(echo, certificate, limits) as edge:
        peer: Peer = await edge.peer()
        await peer.reply(peer.request(get()))
        await peer.round_trip()
        edge.later(limits.keep_alive_s - 1)
        await peer.round_trip()
        assert peer.closed is None
        edge.later(limits.keep_alive_s + 1)
        assert (await peer.closing()).error_code == ErrorCode.H3_NO_ERROR


async def test_answers_that_are_not_taken_do_not_hold_a_connection_for_ever(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, bytes(20 * KIB))

    limits = Limits()
    async with serving(app, certificate, limits) as edge:
        client = await unread_client(edge.port, edge.ca, 16 * KIB)
        exchange = client.request(get(), end=True)
        await exchange.head()
        edge.later(limits.stalled_write_s - 1)
        assert client.usable
        edge.later(limits.stalled_write_s + 1)
        with pytest.raises(StreamFailed, match="not taken"):
            while await exchange.read():
                pass


async def test_many_answers_that_are_not_read_share_the_limit_of_their_connection(certificate: DevCertificate) -> None:
    """Each alone could queue `unsent_bytes`; all together no more than the connection may."""
    probe, streams = Probe(), 32
    limits = Limits(unsent_bytes=64 * KIB, unsent_connection_bytes=256 * KIB)
    async with serving(probe.flood, certificate, limits) as edge:
        client = await unread_client(edge.port, edge.ca, window=KIB)
        for _ in range(streams):
            client.request(get(), end=True)
        async with asyncio.timeout(PATIENCE_S):
            while probe.calls < streams:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        sent = -1
        while probe.sent != sent:  # until nothing moves any more
            sent = probe.sent
            for _ in range(20):
                await asyncio.sleep(0.001)
        # A stream may be over its share by one write of 8 KiB; its window is what the client took.
        assert sent <= 256 * KIB + streams * (8 + 1) * KIB
        client.close()


@pytest.mark.parametrize(
    "frame",
    [encode_frame(0x0, b""), encode_frame(0x0, b"x"), encode_frame(0x21, b"grease")],
    ids=["empty", "one octet", "unknown"],
)
async def test_a_flood_of_frames_that_say_nothing_ends_the_connection(
    frame: bytes, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate, Limits(control_burst=50, control_per_s=0)) as edge:
        peer = await edge.peer()
        stream = peer.request(post(), b"", end=False)
        peer.raw(stream, 60 * frame)
        assert (await peer.closing()).error_code == ErrorCode.H3_EXCESSIVE_LOAD


@pytest.mark.parametrize(
    "frame",
    [b"\x01", b"\x10\x01", b"\x05\x00\x00", stream_frame(0, 0, b"x"), stream_frame(0, 0, b"")],
    ids=["PING", "MAX_DATA", "STOP_SENDING", "one octet of a stream", "none"],
)
async def test_a_flood_of_quic_frames_that_bring_nothing_ends_its_connection_alone(
    frame: bytes, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate, Limits(control_burst=50, control_per_s=0)) as edge:
        peer, bystander = await edge.peer(), await edge.peer()
        stream = peer.request(post(), b"", end=False)
        assert stream == 0
        await peer.round_trip()
        peer.frames(100 * frame)
        assert (await peer.closing()).error_code == ErrorCode.H3_EXCESSIVE_LOAD
        assert (await bystander.reply(bystander.request(get()))).status == 200


async def test_many_small_requests_are_no_flood(certificate: DevCertificate) -> None:
    async with serving(echo, certificate, Limits(control_burst=50, control_per_s=0)) as edge:
        peer = await edge.peer()
        for _ in range(150):
            assert (await peer.reply(peer.request(post(), b"tiny"))).status == 200
