"""Failures stay where they happen: in their request, or at worst in their connection."""

from __future__ import annotations

import json

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, encode_frame
from aioquic.h3.events import Headers

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, read_body, reply, serving, soon
from tests.client.h3_peer import get, post

HEADERS, SETTINGS, WEBTRANSPORT = 0x1, 0x4, 0x41


async def test_an_exception_before_the_start_is_a_500_in_the_form_of_the_api(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("secret detail")

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(post(), b"x" * 1000, end=False))
    assert answer.status == 500
    assert answer.headers[b"content-type"] == b"application/json"
    error = json.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert b"secret" not in answer.body


async def test_an_exception_after_the_start_cuts_the_body(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise RuntimeError

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(get()))
    assert (answer.ended, answer.reset) == (False, ErrorCode.H3_INTERNAL_ERROR)


@pytest.mark.parametrize("sent", [b"", b"12", b"12345678"], ids=["nothing", "short", "long"])
async def test_a_response_off_its_content_length_never_looks_whole(sent: bytes, certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        await send({"type": "http.response.body", "body": sent})

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(get()))
    assert (answer.ended, answer.reset) == (False, ErrorCode.H3_INTERNAL_ERROR)


@pytest.mark.parametrize("begun", [False, True])
async def test_an_application_that_just_returns_has_failed(begun: bool, certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(get()))
    assert not (begun and answer.ended)
    assert answer.reset == (ErrorCode.H3_INTERNAL_ERROR if begun else None)
    assert begun or answer.status == 500


@pytest.mark.parametrize(
    "headers", [(b"bad name", b"x"), (b"x", b"a\r\nset-cookie: b"), (b"content-length", b"ten")], ids=str
)
async def test_a_response_head_that_cannot_be_sent_is_a_500(
    headers: tuple[bytes, bytes], certificate: DevCertificate
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"ok", 200, headers)

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        assert (await peer.reply(peer.request(get()))).status == 500


def without(name: bytes) -> Headers:
    return [field for field in get() if field[0] != name]


@pytest.mark.parametrize(
    "headers",
    [
        without(b":path"),
        without(b":scheme"),
        without(b":authority"),
        without(b":method"),
        [*get(), (b":path", b"/again")],
        [*get(), (b"connection", b"close")],
        [*get(), (b"Upper", b"case")],
        [(b":method", b"CONNECT"), (b":authority", b"localhost")],
    ],
    ids=["no-path", "no-scheme", "no-authority", "no-method", "twice", "connection", "upper", "connect"],
)
async def test_a_malformed_request_is_reset_and_its_connection_goes_on(
    headers: Headers, certificate: DevCertificate
) -> None:
    probe = Probe()
    probe.go.set()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(headers, b"body", end=False))
        assert answer.reset == ErrorCode.H3_MESSAGE_ERROR
        assert (await peer.reply(peer.request(get()))).body == b"held"
    assert probe.calls == 1


@pytest.mark.parametrize(("declared", "sent"), [(b"3", b"12345"), (b"9", b"12345")], ids=["long", "short"])
async def test_a_request_off_its_content_length_is_never_whole(
    declared: bytes, sent: bytes, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(post("/", (b"content-length", declared)), sent)
        assert (await peer.reply(stream)).reset == ErrorCode.H3_MESSAGE_ERROR
        assert (await peer.reply(peer.request(get()))).status == 200


async def test_malformed_trailers_reset_a_running_request(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.wait, certificate) as edge:
        peer = await edge.peer()
        assert peer.h3
        stream = peer.request(post(), b"body", end=False)
        await soon(probe.started)
        peer.h3.send_headers(stream, [(b":path", b"/in-trailers")], end_stream=True)
        peer.flush()
        assert (await peer.reply(stream)).reset == ErrorCode.H3_MESSAGE_ERROR
        await soon(probe.disconnected)


async def test_an_answer_without_the_body_being_read_stops_the_upload(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"enough", 200)

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(post(), b"part", end=False)
        answer = await peer.reply(stream)
        assert (answer.body, answer.ended, answer.reset) == (b"enough", True, None)
        await peer.until(lambda: answer.stopped is not None)
        assert answer.stopped == ErrorCode.H3_NO_ERROR


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (encode_frame(HEADERS, b"\xff\xff\xff\xff"), ErrorCode.QPACK_DECOMPRESSION_FAILED),
        (encode_frame(0x0, b"data first"), ErrorCode.H3_FRAME_UNEXPECTED),
        (encode_frame(SETTINGS, b""), ErrorCode.H3_FRAME_UNEXPECTED),
        (encode_uint_var(WEBTRANSPORT) + encode_uint_var(0), ErrorCode.H3_FRAME_UNEXPECTED),
    ],
    ids=["qpack", "data-first", "settings", "webtransport"],
)
async def test_a_broken_connection_is_closed_and_disturbs_no_other(
    frame: bytes, code: int, certificate: DevCertificate
) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate) as edge:
        bystander, peer = await edge.peer(), await edge.peer()
        waiting = bystander.request(get())
        await soon(probe.started)
        peer.raw(peer.quic.get_next_available_stream_id(), frame)
        assert (await peer.closing()).error_code == code
        probe.go.set()
        assert (await bystander.reply(waiting)).body == b"held"
        assert (await bystander.reply(bystander.request(get()))).body == b"held"


async def test_a_bug_in_our_own_handling_ends_only_that_connection(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo, certificate) as edge:
        bystander, peer = await edge.peer(), await edge.peer()

        def broken(fields: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr("edgeproxy.wire.h3.parse_request", broken)
            peer.request(get())
            assert (await peer.closing()).error_code == ErrorCode.H3_INTERNAL_ERROR
        assert (await bystander.reply(bystander.request(get()))).status == 200
    assert "ZeroDivisionError" in caplog.text


async def test_unknown_frames_and_streams_are_ignored(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, await read_body(receive))

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        peer.raw(peer.quic.get_next_available_stream_id(is_unidirectional=True), encode_uint_var(0x21) + b"grease")
        stream = peer.request(post(), b"body", end=False)
        peer.raw(stream, encode_frame(0x21, b"grease"))
        peer.data(stream, b"!", end=True)
        assert (await peer.reply(stream)).body == b"body!"
