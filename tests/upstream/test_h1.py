"""The pool against raw sockets."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from edgeproxy.upstream.h1 import Pool, UpstreamError
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.response import ResponseLimits
from tests.upstream.certificate import make_certificate
from tests.upstream.raw import FAST, OK, Peer, always, body, get, pool_to, raw_server, until


async def test_a_request_goes_out_whole_with_our_own_framing() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        while True:
            seen.append(await peer.request())
            await peer.send(OK)

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        headers = [
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
            (b"transfer-encoding", b"chunked"),
        ]
        headers += [(b"host", b"evil"), (b"content-length", b"99"), (b"expect", b"100-continue"), (b"x-a", b"1")]
        response = await pool.request(b"POST", b"/v1/chat/completions", headers, b'{"a":1}')
        assert (response.status, await body(response)) == (200, b"ok")
        await get(pool)
        await pool.request(b"POST", b"/empty")
        pool.close()
    host = b"host: 127.0.0.1:%d\r\n" % server.port
    assert seen == [
        (
            b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"content-type: application/json\r\nx-a: 1\r\n"
            b"content-length: 7\r\n\r\n",
            b'{"a":1}',
        ),
        (b"GET / HTTP/1.1\r\n" + host + b"\r\n", b""),
        (b"POST /empty HTTP/1.1\r\n" + host + b"content-length: 0\r\n\r\n", b""),
    ]
    assert server.accepted == 1


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/ HTTP/1.1\r\nx: y", b"1"),
        (b"/a b", b"1"),
        (b"/", b"1\r\nx-injected: 1"),
        (b"/", b"1\nx-injected: 1"),
        (b"/", b"1\r"),
        (b"/", b"\0"),
    ],
)
async def test_what_would_change_the_meaning_of_a_request_is_refused(target: bytes, header: bytes) -> None:
    pool = pool_to(1)
    with pytest.raises(ValueError, match="meaning"):
        await pool.request(b"GET", target, [(b"x", header)])


@pytest.mark.parametrize("stale", ["closed", "closed on use", "reset on use"])
async def test_a_stale_connection_is_replaced_without_notice(stale: str) -> None:
    dead = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number == 0:
            if stale != "closed":
                await peer.request()
            if stale == "reset on use":
                peer.reset()
            peer.close()
            dead.set()
        else:
            await peer.gone()

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        assert await body(await get(pool)) == b"ok"
        if stale == "closed":
            await dead.wait()
        response = await get(pool)
        assert (await body(response), response.reused) == (b"ok", False)
        assert server.accepted == 2
        pool.close()


async def test_only_one_replacement_is_tried() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.request()
            await peer.send(OK)
        await peer.request()

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        await get(pool)
        with pytest.raises(UpstreamError, match="near-1") as caught:
            await get(pool)
        assert caught.value.phase == "head"
        assert server.accepted == 2


async def test_one_byte_of_an_answer_forbids_the_second_try() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"H")

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        await get(pool)
        with pytest.raises(UpstreamError, match="response head"):
            await get(pool)
        assert server.accepted == 1


async def test_a_new_connection_that_dies_is_not_retried() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with raw_server(script) as server:
        with pytest.raises(UpstreamError, match="response head"):
            await get(pool_to(server.port))
        assert server.accepted == 1


async def test_a_refused_connection_names_node_address_and_cause() -> None:
    async with raw_server(always(OK)) as server:
        port = server.port
    with pytest.raises(UpstreamError, match=f"near-1.*127.0.0.1:{port}.*refused") as caught:
        await get(pool_to(port))
    assert caught.value.phase == "connect"


async def test_a_handshake_that_does_not_end_is_given_up() -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone()

    async with raw_server(silent) as server:
        pool = Pool(Origin("https", "127.0.0.1", server.port), name="n", limits=replace(FAST, connect_s=0.05))
        with pytest.raises(UpstreamError, match=r"no connection within 0\.05 s") as caught:
            await get(pool)
        assert caught.value.phase == "connect"
        assert pool.busy == 0


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart"])
async def test_silence_fails_after_its_limit(sent: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.gone()

    async with raw_server(script) as server:
        pool = pool_to(server.port, replace(FAST, response=ResponseLimits(first_byte_s=0.03, stall_s=0.03)))
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.03 s") as caught:
            await body(await get(pool))
        assert caught.value.phase == ("body" if sent else "head")
        assert pool.busy == 0


async def test_a_slow_dribble_is_no_silence() -> None:
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        for byte in wire:
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        assert await body(await get(pool)) == b"hello"
        pool.close()


async def test_a_slow_reader_is_no_silence_of_the_node() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 9_000_000)
        await peer.gone()

    limits = replace(FAST, response=ResponseLimits(stall_s=0.5, buffer_bytes=1000))
    async with raw_server(script) as server:
        pool = pool_to(server.port, limits)
        response = await get(pool)
        first = await response.read()
        sweeps = 0

        def count() -> None:
            nonlocal sweeps
            sweeps += 1
            if sweeps < 100:
                asyncio.get_running_loop().call_later(limits.sweep_s, count)

        count()
        await until(lambda: sweeps == 100)  # twice the stall limit
        assert len(first) + len(await body(response)) == 9_000_000
        pool.close()


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"])
async def test_cancelling_the_reader_closes_the_connection_at_once(head: bytes) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head)
        asked.set()
        await peer.gone()
        gone.set()

    async with raw_server(script) as server:
        pool = pool_to(server.port)

        async def client() -> None:
            await body(await get(pool))

        task = asyncio.create_task(client())
        await asked.wait()
        if head:
            await until(lambda: task.get_stack() != [] and pool.busy == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await gone.wait()
        assert (pool.busy, pool.idle) == (0, 0)


async def test_idle_connections_expire() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()
        gone.set()

    async with raw_server(script) as server:
        pool = pool_to(server.port, replace(FAST, idle_s=0.01))
        await get(pool)
        await gone.wait()
        assert pool.idle == 0


async def test_an_announced_keep_alive_timeout_is_not_tried_out() -> None:
    async with raw_server(always(b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=1\r\ncontent-length: 0\r\n\r\n")) as server:
        pool = pool_to(server.port)
        await get(pool)
        assert not (await get(pool)).reused
        assert server.accepted == 2
        pool.close()


async def test_warm_opens_connections_ahead_up_to_the_limit() -> None:
    async with raw_server(always(OK)) as server:
        pool = pool_to(server.port, replace(FAST, connections=3))
        await pool.warm(2)
        assert pool.idle == 2
        response = await get(pool)
        assert not response.reused  # open, but it has served nothing yet
        assert (await get(pool)).reused
        await pool.warm(9)
        await until(lambda: server.accepted == 3)
        assert pool.idle == 3
        pool.close()


async def test_a_warm_connection_that_was_closed_unused_is_replaced() -> None:
    async def script(peer: Peer) -> None:
        if peer.number > 0:
            await always(OK)(peer)
        await peer.request()

    async with raw_server(script) as server:
        pool = pool_to(server.port)
        await pool.warm(1)
        assert (await get(pool)).status == 200
        pool.close()


async def test_a_large_body_goes_out_and_comes_back() -> None:
    data = bytes(range(256)) * 20_000

    async def echo(peer: Peer) -> None:
        _, received = await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(received) + received)

    async with raw_server(echo) as server:
        pool = pool_to(server.port)
        assert await body(await pool.request(b"POST", b"/", [], data)) == data
        pool.close()


async def test_the_kernel_knows_the_round_trip_of_a_live_connection() -> None:
    async with raw_server(always(OK)) as server:
        pool = pool_to(server.port)
        rtt = (await get(pool)).tcp_rtt()
        assert rtt is not None
        assert 0 < rtt < 1
        pool.close()


async def test_a_closed_pool_opens_nothing() -> None:
    pool = pool_to(1)
    pool.close()
    with pytest.raises(UpstreamError, match="pool was closed"):
        await get(pool)


async def test_https_checks_the_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with raw_server(always(OK), ssl_context=context) as server:
        origin = Origin("https", "127.0.0.1", server.port)
        trusting = Pool(origin, limits=FAST, ssl_context=ssl.create_default_context(cafile=str(certificate)))
        for reused in (False, True):
            response = await get(trusting)
            assert (await body(response), response.reused) == (b"ok", reused)
        trusting.close()
        doubting = Pool(origin, limits=FAST)
        with pytest.raises(UpstreamError, match="certificate"):
            await get(doubting)
