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
from tests.wire.stand_in import Wire


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def head(fields: list[tuple[bytes, bytes]]) -> bytes:
    """A header block without the dynamic table, so that it means the same in any order."""
    return b"".join(b"\x00%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)


REQUEST = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"h"), (b":path", b"/")]
FIELDS = [*REQUEST, (b"content-length", b"3"), (b"expect", b"100-continue"), (b"x", b"y"), (b"te", b"trailers")]
number = st.integers(1, 9).map(lambda n: n.to_bytes(4, "big"))
huge = st.integers(0, 2**32 - 1).map(lambda n: n.to_bytes(4, "big"))
stream = st.sampled_from([1, 1, 3, 5])
control = st.just(0)
block = st.lists(st.sampled_from(FIELDS[4:]), max_size=3, unique=True).map(lambda more: head(REQUEST + more))
wild_block = st.lists(st.sampled_from(FIELDS), max_size=8).map(head)
sensible = st.one_of(
    st.builds(frame, st.just(1), st.just(5), stream, st.just(head([(b"x", b"trailer")]))),  # HEADERS
    st.builds(frame, st.just(0), st.sampled_from([0, 0, 1]), stream, st.binary(max_size=3)),  # DATA
    st.builds(frame, st.just(3), control, stream, number),  # RST_STREAM
    st.builds(frame, st.just(8), control, stream | control, number),  # WINDOW_UPDATE
    st.builds(frame, st.just(4), control, control, number.map(lambda value: b"\x00\x04" + value)),  # a small window
    st.builds(frame, st.just(7), control, control, number.map(lambda last: last + bytes(4))),  # GOAWAY
    st.builds(frame, st.just(6), st.sampled_from([0, 1]), control, st.just(bytes(8))),  # PING
)
wild = st.one_of(
    st.builds(frame, st.just(1), st.sampled_from([0, 4, 5, 8, 32]), stream, wild_block),
    st.builds(frame, st.just(8), control, stream | control, huge),
    st.builds(frame, st.just(4), control, control, st.builds(lambda n, v: bytes([0, n]) + v, st.integers(1, 8), huge)),
)
odd = st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 6), st.binary(max_size=20))
opening = st.tuples(*(st.builds(frame, st.just(1), st.sampled_from([4, 4, 5]), st.just(n), block) for n in (1, 3, 5)))
unexpected = st.one_of(odd, st.binary(max_size=20), wild)
parts = st.tuples(opening, st.lists(sensible, max_size=20), st.lists(unexpected, max_size=2)).map(
    lambda three: [*three[0], *three[1], *three[2]]
)


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
@given(parts)
def test_any_sequence_of_frames_is_survived(received: list[bytes]) -> None:
    asyncio.run(feed(received))
