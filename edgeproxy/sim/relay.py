"""A TCP relay that adds distance: half of a round trip in each direction, bandwidth unlimited.

    python -m edgeproxy.sim.relay --listen 127.0.0.1:9101 --to 127.0.0.1:8101 --delay-ms 40

Bytes, half-closes and resets arrive in order and equally late. The kernel accepts a connection at once, so the round
trip of the handshake is charged to the client's first bytes: a new connection costs what it would over the distance.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import cast

IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Read and not yet delivered, per direction; above it the sender is paused."""
_LINGER_NONE = struct.pack("ii", 1, 0)
"""struct linger: on, zero seconds: close sends a reset."""
_PR_SET_PDEATHSIG = 1


class _End(Enum):
    EOF = "half-close"
    CLOSED = "close"
    RESET = "reset"


class Relay:
    """Relays to `target` with `delay_s` of added round trip. `start` again after `kill` to bring the region back."""

    def __init__(self, host: str, port: int, delay_s: float) -> None:
        self._target = (host, port)
        self.one_way_s = delay_s / 2
        self.stalled = False
        self.killed = False
        self._server: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)
        self.sides: set[_Side] = set()
        self.connecting: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return self._address[1]

    async def start(
        self, host: str | None = None, port: int | None = None, *, sock: socket.socket | None = None
    ) -> None:
        """On the address given, or where it was before; port 0 takes a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self.killed = False
        if sock is not None:
            self._server = await loop.create_server(self._accept, sock=sock)
        else:
            old_host, old_port = self._address
            self._server = await loop.create_server(self._accept, host or old_host, old_port if port is None else port)
        self._address = self._server.sockets[0].getsockname()[:2]

    def kill(self) -> None:
        """The region dies: every connection is reset at once and new ones are refused."""
        self.killed = True
        self.close()
        for side in list(self.sides):
            side.reset()

    def close(self) -> None:
        """No new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def stall(self) -> None:
        """Nothing arrives any more and nothing is closed, until `resume`."""
        self.stalled = True

    def resume(self) -> None:
        self.stalled = False
        for side in list(self.sides):
            side.schedule()

    def _accept(self) -> _Side:
        loop = asyncio.get_running_loop()
        client = _Side(self, not_before=loop.time() + 2 * self.one_way_s)
        target = _Side(self, not_before=0.0)
        client.peer, target.peer = target, client
        task = loop.create_task(self._connect(target))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)
        return client

    async def _connect(self, target: _Side) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: target, *self._target)
        except OSError:
            target.refused()


class _Side(asyncio.Protocol):
    """One socket of a pair. What it reads is written to the peer's socket when its time has come."""

    def __init__(self, relay: Relay, not_before: float) -> None:
        self.peer = self
        """Set by the relay as soon as both sides are there."""
        self._relay = relay
        self._not_before = not_before
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self._queue: deque[tuple[float, bytes | _End]] = deque()
        self.queued = 0
        """Bytes read and not yet delivered."""
        self._timer: asyncio.TimerHandle | None = None
        self._eof_in = False
        self._full = self._paused = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._relay.sides.add(self)
        if self._relay.killed:  # it was on its way when the region died
            self.reset()
        self.peer.schedule()

    def data_received(self, data: bytes) -> None:
        self.queued += len(data)
        self.push(data)
        self._flow()

    def eof_received(self) -> bool:
        self._eof_in = True
        self.push(_End.EOF)
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._lost = None, True
        self._relay.sides.discard(self)
        self.push(_End.CLOSED if exc is None else _End.RESET)
        self.peer.schedule()

    def pause_writing(self) -> None:
        self._full = True
        self.peer._flow()

    def resume_writing(self) -> None:
        self._full = False
        self.peer._flow()

    # What the relay and the peer call.

    def push(self, item: bytes | _End) -> None:
        due = max(asyncio.get_running_loop().time(), self._not_before) + self._relay.one_way_s
        self._queue.append((due, item))
        self.schedule()

    def schedule(self) -> None:
        """Sets the timer for the oldest item; nothing is delivered while stalled or before the peer is connected."""
        open_or_lost = self.peer._transport is not None or self.peer._lost
        if self._queue and self._timer is None and open_or_lost and not self._relay.stalled:
            self._timer = asyncio.get_running_loop().call_at(self._queue[0][0], self._deliver)

    def refused(self) -> None:
        """The target took no connection."""
        self._lost = True
        self.push(_End.RESET)
        self.peer.schedule()

    def reset(self) -> None:
        """Whoever is at the other end of this socket sees a reset."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            self._transport.abort()

    # Parts.

    def _deliver(self) -> None:
        self._timer = None
        if self._relay.stalled:
            return
        now = asyncio.get_running_loop().time()
        while self._queue and self._queue[0][0] <= now:
            item = self._queue.popleft()[1]
            if isinstance(item, bytes):
                self.queued -= len(item)
            self.peer._write(item)
        self._flow()
        self.schedule()

    def _write(self, item: bytes | _End) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if isinstance(item, bytes):
            self._transport.write(item)
        elif item is _End.RESET:
            self.reset()
        elif item is _End.CLOSED or self._eof_in:
            self._transport.close()
        else:
            self._transport.write_eof()

    def _flow(self) -> None:
        """Pauses this socket while too much of it is under way, or while the peer's takes no more."""
        if self._transport is None or self._transport.is_closing() or self._eof_in:
            return
        paused = self.queued > IN_FLIGHT_BYTES or self.peer._full
        if paused and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not paused:
            self._transport.resume_reading()
        self._paused = paused


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _listener(text: str) -> tuple[str, int] | int:
    return int(text.removeprefix("fd:")) if text.startswith("fd:") else _address(text)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, however that happens (Linux; elsewhere stdin must do)."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent ended before the relay had begun")


def _read_to_end(stop: Callable[[], None]) -> None:
    """In a thread, because a loop cannot watch everything that stdin can be (a file, /dev/null)."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop()


async def _serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = options.to
    relay = Relay(host, port, options.delay_ms / 1e3)
    try:
        if isinstance(options.listen, int):
            await relay.start(sock=socket.socket(fileno=options.listen))
        else:
            await relay.start(*options.listen)
    except OSError as error:
        sys.exit(f"cannot listen: {error}; give another address with --listen")
    print(f"relaying port {relay.port} to {host}:{port}, {options.delay_ms:g} ms away", flush=True)
    if options.exit_with_parent:
        end = functools.partial(loop.call_soon_threadsafe, stop.set)
        threading.Thread(target=_read_to_end, args=(end,), daemon=True).start()
    await stop.wait()
    relay.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m edgeproxy.sim.relay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--listen", type=_listener, required=True, metavar="HOST:PORT", help="or fd:N, inherited")
    parser.add_argument("--to", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, required=True, help="added to the round trip")
    parser.add_argument("--exit-with-parent", action="store_true", help="end with the parent or at the end of stdin")
    options = parser.parse_args()
    if options.exit_with_parent:
        die_with_parent()
    asyncio.run(_serve(options))


if __name__ == "__main__":
    main()
