"""Whatever a client sends, an HTTP/2 connection answers or closes; nothing is thrown into the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection as SansIo
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.wire.h2 import H2Connection
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Service
from tests.wire.apps import echo


class Wire(asyncio.Transport):
    """Takes what is written, and closes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += len(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def head(fields: list[tuple[bytes, bytes]]) -> bytes:
    """A header block without the dynamic table, so that it means the same in any order."""
    return b"".join(b"\x00%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)


REQUEST = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"h"), (b":path", b"/")]
FIELDS = [*REQUEST, (b"content-length", b"3"), (b"expect", b"100-continue"), (b"x", b"y"), (b"te", b"trailers")]
number = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)).map(lambda n: n.to_bytes(4, "big"))
stream = st.sampled_from([1, 1, 3, 5])
block = st.just(head(REQUEST)) | st.lists(st.sampled_from(FIELDS), max_size=8).map(head)
sensible = st.one_of(
    st.builds(frame, st.just(1), st.sampled_from([4, 5, 0]), stream, block),  # HEADERS
    st.builds(frame, st.just(0), st.sampled_from([0, 1, 8]), stream, st.binary(max_size=9)),  # DATA
    st.builds(frame, st.just(3), st.just(0), stream, number),  # RST_STREAM
    st.builds(frame, st.just(8), st.just(0), stream | st.just(0), number),  # WINDOW_UPDATE
    st.builds(
        frame, st.just(4), st.just(0), st.just(0), st.builds(lambda n, v: bytes([0, n]) + v, st.integers(1, 8), number)
    ),
    st.builds(frame, st.just(7), st.just(0), st.just(0), st.builds(lambda a, b: a + b, number, number)),  # GOAWAY
    st.builds(frame, st.just(6), st.sampled_from([0, 1]), st.just(0), st.just(bytes(8))),  # PING
)
odd = st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 6), st.binary(max_size=20))
parts = st.one_of(sensible, sensible, sensible, odd, st.binary(max_size=20))


async def feed(parts: list[bytes]) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    service = Service(echo, Limits(cancel_grace_s=0), scheme="https", state={}, alt_svc=None)
    wire = Wire()
    connection = H2Connection(service, lambda: None)
    connection.connection_made(wire)
    client = SansIo(H2Configuration(client_side=True))
    client.initiate_connection()
    for part in [client.data_to_send(), *parts]:
        if wire.closed:
            break
        connection.data_received(part)
        await asyncio.sleep(0)
    connection.sweep(1e9)
    connection.connection_lost(None)
    if service.tasks:
        await asyncio.wait(tuple(service.tasks), timeout=10)
    assert not service.tasks
    assert not service.connections
    assert not raised


@settings(max_examples=200, deadline=None)
@given(st.lists(parts, max_size=25))
def test_any_sequence_of_frames_is_survived(received: list[bytes]) -> None:
    asyncio.run(feed(received))
