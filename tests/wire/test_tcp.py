"""The listener: who gets in, and what happens to silent connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time

import pytest

from edgeproxy.config import Address
from edgeproxy.wire.ingress import Ingress, Scope, ingress
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tcp import TcpListener
from tests.wire.apps import Watcher, answer, echo
from tests.wire.conftest import GET, Serve, until_connections
from tests.wire.raw import PATIENCE_S, RawClient


async def turned_away(port: int) -> bool:
    """A plain TCP connection is closed without a byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read() == b""
    except ConnectionError:
        return True
    finally:
        writer.transport.abort()


# ---- admission


async def test_connections_are_limited_in_all_and_a_closed_one_makes_room(serve: Serve) -> None:
    edge = await serve(echo, Limits(connections=2))
    first, second = await edge.connect(), await edge.connect()
    assert await turned_away(edge.port)
    assert edge.listener.counts["refused"] == 1
    await first.close()
    await until_connections(edge, 1)
    third = await edge.connect()
    for client in (second, third):
        await client.send(GET)
        assert (await client.answer()).status == 200


async def test_connections_are_limited_per_address(serve_plain: Serve) -> None:
    edge = await serve_plain(echo, Limits(connections_per_address=1))
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == 200
    assert await turned_away(edge.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port, local_addr=("127.0.0.2", 0))
    other = RawClient(reader, writer)
    await other.send(GET)
    assert (await other.answer()).status == 200
    await other.close()


async def test_silent_connections_of_one_address_do_not_keep_others_out_of_tls(
    serve_tls: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await serve_tls(echo, Limits(half_open=2))
    silent = [await asyncio.open_connection("127.0.0.1", edge.port) for _ in range(5)]
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == 200
    counts = edge.listener.counts
    assert counts["accepted"] == 6
    assert counts["gave_way"] == 4
    edge.listener._tell(time.monotonic())
    edge.listener._tell(time.monotonic())
    assert caplog.text.count("turned 4 connections away") == 1
    for _, writer in silent:
        writer.transport.abort()
    await until_connections(edge, 1)


async def test_a_handshake_that_does_not_end_is_given_up(serve_tls: Serve) -> None:
    edge = await serve_tls(echo, Limits(handshake_s=0.05))
    assert await turned_away(edge.port)
    await until_connections(edge, 0)
    assert edge.listener.counts["handshake_failed"] == 1


async def test_a_failed_handshake_leaves_nothing_behind(serve_tls: Serve) -> None:
    edge = await serve_tls(echo)
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(GET)
        async with asyncio.timeout(PATIENCE_S):
            await reader.read()
        writer.transport.abort()
    await until_connections(edge, 0)
    assert edge.listener.counts["handshake_failed"] == 5


@pytest.mark.parametrize("body", [0, MIB // 2], ids=["empty", "large"])
async def test_plain_http_at_a_port_of_tls_is_told_to_use_https(serve_tls: Serve, body: int) -> None:
    edge = await serve_tls(echo)
    client = await RawClient.connect(edge.port)
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % body + bytes(body)
    )
    reply = await client.answer()
    assert (reply.status, reply["connection"], reply.error()["code"]) == (400, "close", "plain_http_on_tls_port")
    assert "https://" in reply.error()["message"]
    assert await client.closed()
    await client.close()
    await until_connections(edge, 0)
    assert edge.listener.counts["handshake_failed"] == 1


async def test_a_plain_client_that_does_not_leave_is_left(serve_tls: Serve) -> None:
    edge = await serve_tls(echo, Limits(linger_s=0.01))
    client = await RawClient.connect(edge.port)
    await client.send(GET)
    assert (await client.answer()).status == 400
    await until_connections(edge, 0)
    await client.close()


@pytest.mark.parametrize("words", [b"SSH-2.0-x\r\n", bytes(64)], ids=["ssh", "zeros"])
async def test_what_is_neither_tls_nor_http_gets_no_answer(serve_tls: Serve, words: bytes) -> None:
    edge = await serve_tls(echo)
    client = await RawClient.connect(edge.port)
    await client.send(words)
    with contextlib.suppress(ConnectionError):
        assert b"HTTP" not in await client.rest()
    await client.close()
    await until_connections(edge, 0)


async def test_a_handshake_for_which_no_file_is_left_is_closed(
    serve_tls: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = await serve_tls(echo)

    def short_of_files(sock: socket.socket) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "dup", short_of_files)
        assert await turned_away(edge.port)
    await until_connections(edge, 0)
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == 200


async def test_old_tls_is_refused(serve_tls: Serve) -> None:
    edge = await serve_tls(echo)
    context = edge.client_context()
    assert context is not None
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await RawClient.connect(edge.port, context)


async def test_accepting_pauses_while_files_run_out_and_then_goes_on(
    serve_plain: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edgeproxy.wire.tcp._ACCEPT_BACK_OFF_S", 0.01)
    edge = await serve_plain(echo)
    failures = 3
    accept = socket.socket.accept

    def short_of_files(sock: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", short_of_files)
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == 200
    assert edge.listener.counts["accept_failed"] == 3
    assert "ulimit -n" in caplog.text


async def test_a_burst_of_connections_is_taken(serve_plain: Serve) -> None:
    edge = await serve_plain(echo)
    clients = await asyncio.gather(*(edge.connect() for _ in range(200)))
    await asyncio.gather(*(client.send(GET) for client in clients))
    replies = await asyncio.gather(*(client.answer() for client in clients))
    assert {reply.status for reply in replies} == {200}


# ---- choice of protocol


@pytest.mark.parametrize("alpn", [(), ("http/1.1",), ("http/1.1", "unknown"), ("unknown",)])
async def test_http_1_1_is_spoken_with_clients_that_can(serve_tls: Serve, alpn: tuple[str, ...]) -> None:
    edge = await serve_tls(echo)
    client = await edge.connect(*alpn)
    await client.send(GET)
    assert (await client.answer()).body == b"GET / "


async def test_bytes_before_the_protocol_is_known_are_not_lost(serve_plain: Serve) -> None:
    edge = await serve_plain(echo)
    client = await edge.connect()
    for byte in b"PROPFIND / HTTP/1.1\r\nHost: h\r\n\r\n":  # begins as the HTTP/2 preface does
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"PROPFIND / "


# ---- deadlines


async def test_a_silent_connection_is_closed(serve: Serve) -> None:
    edge = await serve(echo, Limits(first_byte_s=5))
    client = await edge.connect()
    for _ in range(10):
        edge.later(4)
        await asyncio.sleep(0.001)
    assert edge.listener.connections == 1
    edge.later(5.1)
    assert await client.closed()


async def test_a_head_that_does_not_end_is_answered_408(serve: Serve) -> None:
    edge = await serve(echo, Limits(head_s=10))
    client = await edge.connect()
    await client.send(GET)
    await client.answer()
    await client.send(GET[:20])
    for _ in range(10):  # until the bytes are read: a connection without them would just be closed
        edge.later(9)
        await asyncio.sleep(0.001)
    edge.later(10.1)
    reply = await client.answer()
    assert (reply.status, reply["connection"], reply.error()["code"]) == (408, "close", "request_timeout")


async def test_a_dribbled_head_does_not_gain_time(serve: Serve) -> None:
    edge = await serve(echo, Limits(head_s=10))
    client = await edge.connect()
    await client.send(GET[:5])
    await asyncio.sleep(0.01)
    for byte in GET[5:15]:
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    edge.later(10)
    assert (await client.answer()).status == 408


async def test_an_idle_connection_is_closed_without_a_word(serve: Serve) -> None:
    edge = await serve(echo, Limits(keep_alive_s=75))
    client = await edge.connect()
    await client.send(GET)
    await client.answer()
    edge.later(74)
    await client.send(GET)
    assert (await client.answer()).status == 200
    edge.later(76)
    assert await client.closed()


async def test_a_running_request_has_no_deadline(serve: Serve) -> None:
    watcher = Watcher()
    edge = await serve(watcher)
    client = await edge.connect()
    await client.send(GET)
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
    edge.later(100_000)
    await asyncio.sleep(0)
    assert not watcher.disconnected.is_set()


# ---- the round trip


async def test_the_kernels_round_trip_is_there_while_the_connection_is(serve: Serve) -> None:
    ingresses: list[Ingress] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = ingress(scope)
        assert found is not None
        ingresses.append(found)
        await answer(send, b"")

    edge = await serve(app)
    client = await edge.connect()
    await client.send(GET)
    await client.answer()
    rtt = ingresses[0].rtt()
    assert rtt is not None
    assert 0 < rtt < 1
    await client.close()
    await until_connections(edge, 0)
    assert ingresses[0].rtt() is None


# ---- drain


# ---- addresses


async def test_a_bound_socket_can_be_listened_on() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    listener = TcpListener(echo, Limits(), ssl=None, alt_svc=lambda: None, state={})
    await listener.start(sock)
    assert listener.port == port
    client = await RawClient.connect(port)
    await client.send(GET)
    assert (await client.answer()).status == 200
    await client.close()
    await listener.drain(0)


async def test_ipv6_is_served_and_told() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await answer(send, b"")

    listener = TcpListener(app, Limits(), ssl=None, alt_svc=lambda: None, state={})
    await listener.start(Address("::1", 0))
    client = RawClient(*await asyncio.open_connection("::1", listener.port))
    await client.send(b"GET / HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n" % listener.port)
    assert (await client.answer()).status == 200
    assert (scopes[0]["client"][0], scopes[0]["server"]) == ("::1", ("::1", listener.port))
    await client.close()
    await listener.drain(0)


@pytest.mark.parametrize("alpn", [[], ["foreign"]], ids=["none", "foreign"])
async def test_a_client_that_names_neither_host_nor_a_protocol_of_ours_speaks_http_1_1(
    serve_tls: Serve, alpn: list[str]
) -> None:
    edge = await serve_tls(echo)
    context = edge.client_context(*alpn)
    assert context is not None
    context.check_hostname = False
    client = RawClient(*await asyncio.open_connection("127.0.0.1", edge.port, ssl=context, server_hostname=""))
    await client.send(GET)
    assert (await client.answer()).status == 200
    await client.close()


async def test_an_address_in_use_is_an_error_that_leaks_nothing(serve_plain: Serve) -> None:
    edge = await serve_plain(echo)
    listener = TcpListener(echo, Limits(), ssl=None, alt_svc=lambda: None, state={})
    with pytest.raises(OSError, match="in use"):
        await listener.start(Address("127.0.0.1", edge.port))
    listener.close()


async def test_vanished_peers_and_kernel_queues_are_bounded_on_accepted_sockets() -> None:
    limits = Limits(stalled_write_s=7, unsent_bytes=12345)
    listener = TcpListener(echo, limits, ssl=None, alt_svc=lambda: None, state={})
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as sock:
        await listener.start(sock)
        with contextlib.closing(socket.create_connection(("127.0.0.1", listener.port))):
            listener._loop.remove_reader(sock)
            sock.setblocking(True)
            accepted, _ = sock.accept()
            with contextlib.closing(accepted):
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 12345
        listener.close()
