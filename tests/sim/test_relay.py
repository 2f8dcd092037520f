from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from time import monotonic

import pytest

from edgeproxy.sim import relay as relay_module
from edgeproxy.sim.relay import Relay
from tests.sim.distance import distance
from tests.upstream.raw import Peer, until


async def echo(peer: Peer) -> None:
    while data := await peer.read():
        await peer.send(data)


async def connect(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", relay.port)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_a_round_trip_takes_the_delay_and_no_less() -> None:
    async with distance(echo, 0.040) as (_, relay):
        reader, writer = await connect(relay)
        taken = [1.0]
        while min(taken) > 0.043 and len(taken) < 200:  # a busy machine may be late many times, never early
            start = monotonic()
            writer.write(b"x")
            await reader.readexactly(1)
            taken.append(monotonic() - start)
        await close(writer)
    assert 0.039 <= min(taken) <= 0.043


async def test_the_first_bytes_of_a_connection_pay_for_its_handshake() -> None:
    async with distance(echo, 0.020) as (_, relay):
        start = monotonic()
        reader, writer = await connect(relay)
        writer.write(b"x")
        await reader.readexactly(1)
        assert monotonic() - start >= 0.039
        await close(writer)


async def test_many_bytes_arrive_in_order_and_the_half_close_after_them() -> None:
    data = bytes(range(251)) * 40_000
    async with distance(echo, 0.004) as (_, relay):
        reader, writer = await connect(relay)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read() == data
        await sending
        await close(writer)
        await until(lambda: not relay.sides)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_the_end_of_a_client_reaches_the_node(how: str) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def script(peer: Peer) -> None:
        try:
            while await peer.read():
                pass
            ended.set_result("close")
        except ConnectionResetError:
            ended.set_result("reset")

    async with distance(script, 0.004) as (_, relay):
        reader, writer = await connect(relay)
        writer.write(b"x")
        if how == "reset":
            Peer(0, reader, writer).reset()
        else:
            writer.close()
        assert await ended == how


async def test_the_end_of_a_node_reaches_the_client() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"bye")

    async with distance(script, 0.004) as (_, relay):
        reader, writer = await connect(relay)
        assert await reader.read() == b"bye"
        await close(writer)


async def test_a_node_that_refuses_looks_dead() -> None:
    async with distance(echo, 0.004) as (server, relay):
        server.refuse()
        reader, writer = await connect(relay)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await close(writer)


async def test_a_killed_region_resets_and_refuses_and_comes_back_on_its_port() -> None:
    async with distance(echo, 0.002) as (_, relay):
        reader, writer = await connect(relay)
        writer.write(b"x")
        await reader.readexactly(1)
        port = relay.port
        relay.kill()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        with pytest.raises(ConnectionRefusedError):
            await connect(relay)
        await close(writer)
        await relay.start()
        assert relay.port == port
        reader, writer = await connect(relay)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        await close(writer)


async def test_a_stalled_region_is_silent_and_loses_nothing() -> None:
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        while data := await peer.read():
            got.append(data)
            await peer.send(data)

    async with distance(script, 0.0) as (_, relay):
        reader, writer = await connect(relay)
        writer.write(b"1")
        await reader.readexactly(1)
        relay.stall()
        writer.write(b"2")
        await until(lambda: any(side.queued for side in relay.sides))
        assert got == [b"1"]
        relay.resume()
        assert await reader.readexactly(1) == b"2"
        await close(writer)


async def test_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "IN_FLIGHT_BYTES", 100_000)
    async with distance(echo, 0.0) as (_, relay):
        reader, writer = await connect(relay)
        writer.write(b"1")
        await reader.readexactly(1)
        relay.stall()
        writer.write(b"x" * 50_000_000)
        await until(lambda: any(side.queued > 100_000 for side in relay.sides))
        size = max(side.queued for side in relay.sides)
        for _ in range(50):
            await asyncio.sleep(0)
        assert size <= max(side.queued for side in relay.sides) <= 100_000 + 2 * 256 * 1024
        relay.resume()
        await reader.readexactly(50_000_000)
        await close(writer)


def test_the_program_relays_and_ends_with_its_parents_pipe() -> None:
    command = [sys.executable, "-m", "edgeproxy.sim.relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]
    options = ["--delay-ms", "40", "--exit-with-parent"]
    with subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().endswith("to 127.0.0.1:1, 40 ms away\n")
        process.stdin.close()
        assert process.wait(10) == 0


def test_the_program_ends_at_sigterm_without_a_trace() -> None:
    command = [sys.executable, "-m", "edgeproxy.sim.relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]
    with subprocess.Popen(
        [*command, "--delay-ms", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=10) == ("", "")
        assert process.returncode == 0
