"""All addresses of a name are tried, the first handshake wins, and nothing is left of the others."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest

from edgeproxy.client import httpx as on_httpx
from edgeproxy.client import httpx2 as on_httpx2
from edgeproxy.client import race
from edgeproxy.client.connection import Connection
from edgeproxy.client.race import ADDRESSES, SocketAddress, addresses, first_of
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import echo, serving

A, B, C = (("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.3", 1))


class Place:
    """What is behind an address: connects, or fails, when told."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def connect(self) -> Place:
        self.begun.set()
        await self.answer
        return self

    def close(self) -> None:
        self.closed = True


class World(dict[SocketAddress, Place]):
    def __init__(self, *targets: SocketAddress) -> None:
        super().__init__({target: Place() for target in targets})
        self.race = asyncio.create_task(first_of(targets, lambda target: self[target].connect()))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt begins with a failure, never with time."""
    monkeypatch.setattr(race, "STAGGER_S", 1000.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "STAGGER_S", 0.0)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("patient")
async def test_one_after_the_other_is_tried_and_the_next_at_once_where_one_fails() -> None:
    world = World(A, B, C)
    await world[A].begun.wait()
    await turn()
    assert not world[B].begun.is_set()
    world[A].answer.set_exception(ConnectionRefusedError())
    await world[B].begun.wait()
    world[B].answer.set_result(None)
    assert await world.race is world[B]
    assert not world[C].begun.is_set()


@pytest.mark.usefixtures("hasty")
async def test_the_first_that_connects_wins_and_the_others_are_ended() -> None:
    world = World(A, B, C)
    await world[C].begun.wait()
    world[B].answer.set_result(None)
    assert await world.race is world[B]
    await turn()
    assert world[A].answer.cancelled()
    assert world[C].answer.cancelled()
    assert not world[B].closed


@pytest.mark.usefixtures("hasty")
async def test_of_two_that_connect_at_once_one_is_closed() -> None:
    world = World(A, B)
    await world[B].begun.wait()
    for place in world.values():
        place.answer.set_result(None)
    winner = await world.race
    await turn()
    assert [place for place in world.values() if not place.closed] == [winner]


@pytest.mark.usefixtures("hasty")
async def test_whoever_stops_waiting_leaves_nothing_behind() -> None:
    world = World(A, B)
    await world[B].begun.wait()
    world.race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await world.race
    await turn()
    assert all(place.answer.cancelled() for place in world.values())


@pytest.mark.usefixtures("hasty")
async def test_where_none_is_there_every_cause_is_told() -> None:
    world = World(A, B)
    world[A].answer.set_exception(ConnectionRefusedError("nobody listens"))
    world[B].answer.set_exception(OSError("no route"))
    with pytest.raises(ConnectionError, match=r"192\.0\.2\.1: nobody listens; 192\.0\.2\.2: no route"):
        await world.race


async def test_a_name_without_an_address_is_said_to_have_none() -> None:
    with pytest.raises(ConnectionError, match="no address"):
        await World().race


async def test_the_families_take_turns_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(family: int, host: str) -> tuple[Any, ...]:
        return (family, socket.SOCK_DGRAM, 17, "", (host, 1))

    async def resolve(*_: object, **__: object) -> list[tuple[Any, ...]]:
        six = [info(socket.AF_INET6, f"::{i}") for i in range(20)]
        return [*six, info(socket.AF_INET, "192.0.2.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve, raising=False)
    found = [address[0] for address in await addresses("name", 1)]
    assert found[:3] == ["::0", "192.0.2.1", "::1"]
    assert len(found) == ADDRESSES


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes datagrams and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("flavour", [on_httpx, on_httpx2], ids=["httpx", "httpx2"])
async def test_a_server_at_the_second_address_of_its_name_is_found(
    flavour: ModuleType,
    silent: int,
    certificate: DevCertificate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gc.collect()  # what other tests left is not to be told here
    caplog.clear()
    made = list[Connection]()

    class Counted(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            super().connection_made(transport)

    async with serving(echo, certificate) as edge:

        async def both(host: str, port: int) -> list[SocketAddress]:
            return [("127.0.0.1", silent), ("127.0.0.1", port)]

        monkeypatch.setattr("edgeproxy.client.h3.addresses", both)
        monkeypatch.setattr("edgeproxy.client.h3.Connection", Counted)
        url = f"https://localhost:{edge.port}/"

        def wait() -> str:
            with flavour.Client(verify=edge.ca, only=True, timeout=20) as http:
                return str(http.get(url).text)

        assert await asyncio.to_thread(wait) == "GET / "
        async with flavour.AsyncClient(verify=edge.ca, only=True, timeout=20) as http:
            assert (await http.get(url)).text == "GET / "
        await turn()
        assert len(made) == 4
        assert all(connection._transport is None for connection in made), "no socket is left"
    made.clear()
    gc.collect()
    assert not caplog.records


@pytest.mark.usefixtures("hasty")
async def test_an_attempt_that_is_cancelled_leaves_no_socket(silent: int, certificate: DevCertificate) -> None:
    async with on_httpx.AsyncClient(verify=certificate.ca, only=True) as http:
        with pytest.raises(httpx.ConnectTimeout):
            await http.get(f"https://127.0.0.1:{silent}/", timeout=httpx.Timeout(20, connect=0.05))
    await turn()
    assert len(asyncio.all_tasks()) == 1
