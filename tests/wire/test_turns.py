"""Whoever sends very much, or very small pieces, holds up himself alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection as ClientH2
from hyperframe.frame import PingFrame, SettingsFrame

from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.h2 import H2Connection
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quic_connection import Connection
from edgeproxy.wire.service import Message, Receive, Send, Service
from edgeproxy.wire.turns import Turns
from tests.wire.apps import answer, read_body
from tests.wire.stand_in import Wire

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
POST = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


def service(app: Any, **limits: Any) -> Service:
    return Service(app, Limits(**limits), scheme="http", state={}, alt_svc=None)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, await read_body(receive))


async def test_what_exceeds_a_portion_waits_for_the_next_turn() -> None:
    done: list[str] = []
    turns = Turns(asyncio.get_running_loop(), 2, lambda: done.append("rest"), lambda: done.append("go on"))
    turns.spend()
    assert not turns.waiting
    turns.spend()
    turns.spend()
    assert turns.waiting
    assert done == ["rest"]
    await asyncio.sleep(0)
    assert not turns.waiting
    assert done == ["rest", "go on"]


async def test_what_a_piece_took_beyond_its_portion_is_paid_for_in_later_turns() -> None:
    turns = Turns(asyncio.get_running_loop(), 2, lambda: None, lambda: None)
    turns.spend(5)
    await asyncio.sleep(0)
    assert turns.waiting
    await asyncio.sleep(0)
    assert not turns.waiting
    turns.spend()  # all that the second turn had left
    assert turns.waiting


@pytest.mark.parametrize("reads", [1, 50], ids=["one read", "many reads in one turn"])
async def test_h2_frames_are_worked_on_in_portions_however_they_were_read(reads: int) -> None:
    connection, wire = H2Connection(service(echo, frames_per_turn=10), lambda: None), Wire()
    connection.connection_made(wire)
    connection.data_received(PREFACE)
    await asyncio.sleep(0)
    flood = PingFrame(0, opaque_data=bytes(8)).serialize() * 500
    size = len(flood) // reads
    pongs = []
    for at in range(0, len(flood), size):
        connection.data_received(flood[at : at + size])
    assert not wire.reads
    for _ in range(200):
        wire.written = b""
        await asyncio.sleep(0)
        pongs.append(len(wire.written) // 17)
    assert sum(pongs) == 500
    assert max(pongs) <= 20  # a portion, and what was left of the one before
    assert wire.reads
    connection.abort()


async def test_a_request_takes_as_much_of_a_turn_as_many_frames() -> None:
    started = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal started
        started += 1
        await answer(send, b"")

    connection, wire = H2Connection(service(app, frames_per_turn=32), lambda: None), Wire()
    connection.connection_made(wire)
    connection.data_received(PREFACE)
    await asyncio.sleep(0)
    client = ClientH2(H2Configuration(client_side=True))
    head = [(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", "/")]
    for stream_id in range(1, 21, 2):
        client.send_headers(stream_id, head, end_stream=True)
    connection.data_received(client.data_to_send())
    counts = []
    for _ in range(20):
        before = started
        await asyncio.sleep(0)
        counts.append(started - before)
    assert sum(counts) == 10
    assert max(counts) == 2
    connection.abort()


async def test_the_chunks_of_an_h1_body_are_worked_on_in_portions_and_arrive_whole() -> None:
    turns = 0
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        message: Message = {"more_body": True}
        nonlocal turns
        while message["more_body"]:
            message = await receive()
            body += message["body"]
            turns += 1
        await answer(send, body)
        ended.set()

    connection, wire = H1Connection(service(app, frames_per_turn=10), lambda: None), Wire()
    connection.connection_made(wire)
    body = bytes(range(97, 122)) * 1000
    connection.data_received(POST + b"".join(b"1\r\n%c\r\n" % octet for octet in body) + b"0\r\n\r\n")
    assert not wire.reads
    async with asyncio.timeout(20):
        await ended.wait()
    assert turns > 10
    assert wire.written.endswith(b"\r\n\r\n" + body)
    async with asyncio.timeout(20):
        while not wire.reads:  # noqa: ASYNC110 - turns are counted here
            await asyncio.sleep(0)
    connection.abort()


async def test_a_body_that_nobody_takes_keeps_the_socket_paused_beyond_the_turn() -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await echo(scope, receive, send)

    connection, wire = H1Connection(service(app, frames_per_turn=10, unread_body_bytes=100), lambda: None), Wire()
    connection.connection_made(wire)
    connection.data_received(POST + b"1\r\na\r\n" * 10_000)
    for _ in range(500):
        await asyncio.sleep(0)
    assert not wire.reads
    go.set()
    async with asyncio.timeout(20):
        while not wire.reads:  # noqa: ASYNC110 - turns are counted here
            await asyncio.sleep(0)
    connection.abort()


class Home:
    """An endpoint of one connection."""

    def __init__(self, **limits: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = Limits(**limits)
        self.address = ("127.0.0.1", 1)

    def guard(self, connection: Connection, step: Any, *args: Any) -> None:
        step(*args)

    def wake(self, connection: Connection) -> None: ...

    handshaken = ended = remove = wake

    def migrated(self) -> None: ...

    def route(self, cid: bytes, connection: Connection) -> None: ...

    unroute = route


class Receiver:
    """In the place of a QUIC connection."""

    frames = 1
    idle_frames = 0.0

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def get_peer_address(self) -> None: ...

    def receive_datagram(self, data: bytes, address: object, now: float) -> None:
        self.received.append(data)

    def next_event(self) -> None:
        return None


async def test_the_datagrams_of_one_connection_are_worked_on_in_portions_in_order_and_not_hoarded() -> None:
    receiver: Any = Receiver()
    connection = Connection(receiver, Home(datagrams_per_turn=3, datagrams_waiting=5), "h", 0.0)
    for number in range(20):
        connection.receive(b"%d" % number, ("h", 1), 0.0)
    assert receiver.received == [b"0", b"1", b"2"]
    await asyncio.sleep(0)
    assert receiver.received == [b"%d" % number for number in range(6)]
    await asyncio.sleep(0)
    assert receiver.received == [b"%d" % number for number in range(8)]  # what did not fit is lost, as in the network
    connection.receive(b"later", ("h", 1), 0.0)
    assert receiver.received[-1] == b"later"


async def test_a_datagram_of_many_frames_takes_as_much_of_a_turn_as_many_datagrams() -> None:
    receiver: Any = Receiver()
    receiver.frames = 16
    connection = Connection(receiver, Home(datagrams_per_turn=6, datagrams_waiting=20), "h", 0.0)
    for number in range(6):
        connection.receive(b"%d" % number, ("h", 1), 0.0)
    assert receiver.received == [b"0", b"1"]
    await asyncio.sleep(0)
    assert receiver.received == [b"0", b"1", b"2", b"3"]
