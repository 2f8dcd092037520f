"""Any order of what a client, a network and time can do to an HTTP/3 session, and any octets on its streams.

The session may end, but nothing is raised, nothing grows beyond its limit and nothing is left.
"""

from __future__ import annotations

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import FrameType, H3Connection, encode_frame
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.events import StopSendingReceived, StreamDataReceived, StreamReset
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_peer import get, post
from tests.wire.apps import echo
from tests.wire.h3_bench import Bench
from tests.wire.test_h3_conformance import block

LIMITS = Limits(streams_per_connection=8, resets_burst=6, head_bytes=2048, body_bytes=4000, cancel_grace_s=0)
PIECE = b"0123456789" * 20


class Machine(RuleBasedStateMachine):
    certificate: DevCertificate

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(echo, self.certificate, LIMITS)
        self.h3 = H3Connection(self.bench.client)
        self.open: dict[int, bytes] = {}
        """Requests not ended yet, and what was sent of their bodies."""
        self.whole: dict[int, bytes] = {}
        """Requests that were ended in good order."""
        self.spoilt: set[int] = set()
        self.answers: dict[int, bytes] = {}
        self.ended: set[int] = set()

    @property
    def alive(self) -> bool:
        return self.bench.client._close_event is None and not self.bench.session.quic.ended

    @property
    def usable(self) -> list[int]:
        """Open requests that the server has not stopped."""
        streams = self.bench.client._streams
        return [s for s in self.open if s in streams and streams[s].sender._reset_error_code is None]

    # ---- the client

    @precondition(lambda self: self.alive)
    @rule()
    def ask(self) -> None:
        stream = self.bench.client.get_next_available_stream_id()
        self.h3.send_headers(stream, post("/"))
        self.open[stream] = b""

    @precondition(lambda self: self.alive and self.usable)
    @rule(pick=st.integers(0, 7), end=st.booleans(), pieces=st.integers(0, 3))
    def send(self, pick: int, end: bool, pieces: int) -> None:
        stream = self._pick(pick)
        self.h3.send_data(stream, PIECE * pieces, end)
        self.open[stream] += PIECE * pieces
        if end:
            self.whole[stream] = self.open.pop(stream)

    @precondition(lambda self: self.alive and self.usable)
    @rule(pick=st.integers(0, 7))
    def trailers(self, pick: int) -> None:
        stream = self._pick(pick)
        self.h3.send_headers(stream, [(b"checksum", b"1")], end_stream=True)
        self.whole[stream] = self.open.pop(stream)

    @precondition(lambda self: self.alive and self.usable)
    @rule(pick=st.integers(0, 7), both=st.booleans())
    def give_up(self, pick: int, both: bool) -> None:
        stream = self._pick(pick)
        self.bench.client.reset_stream(stream, 0x10C)
        if both and stream in self.bench.client._streams:
            self.bench.client.stop_stream(stream, 0x10C)
        del self.open[stream]
        self.spoilt.add(stream)

    @precondition(lambda self: self.alive and self.whole)
    @rule(pick=st.integers(0, 7))
    def stop(self, pick: int) -> None:
        stream = list(self.whole)[pick % len(self.whole)]
        if stream in self.bench.client._streams and stream not in self.ended:
            self.bench.client.stop_stream(stream, 0x10C)
            self.spoilt.add(stream)

    @precondition(lambda self: self.alive and self.usable)
    @rule(pick=st.integers(0, 7), octets=st.binary(min_size=1, max_size=12))
    def garble(self, pick: int, octets: bytes) -> None:
        stream = self._pick(pick)
        self.bench.client.send_stream_data(stream, octets)
        del self.open[stream]
        self.spoilt.add(stream)

    @precondition(lambda self: self.alive)
    @rule()
    def go_away(self) -> None:
        assert self.h3._local_control_stream_id is not None
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(0))
        self.bench.client.send_stream_data(self.h3._local_control_stream_id, frame)

    # ---- network, time and operator

    @rule(outcome=st.lists(st.booleans(), max_size=6))
    def carry(self, outcome: list[bool]) -> None:
        fates = iter(outcome)
        self.bench.run(lambda: next(fates, True))
        self._take()

    @rule(seconds=st.sampled_from([1, 12, 40, 100]))
    def wait(self, seconds: float) -> None:
        self.bench.session.sweep(self.bench.loop.time() + seconds)

    @rule()
    def drain(self) -> None:
        self.bench.session.drain()

    # ---- what must hold

    @invariant()
    def nothing_grows(self) -> None:
        assert not self.bench.raised
        session = self.bench.session
        assert len(session.requests) <= LIMITS.streams_per_connection
        quic = self.bench.quic
        assert sum(quic._unread.values()) == quic._unread_total <= quic.configuration.max_data
        if session._h3 is not None:
            assert all(len(stream.buffer) <= 4096 + 1200 for stream in session._h3._stream.values())

    def teardown(self) -> None:
        for _ in range(30):
            self.bench.run()
        self._take()
        for stream in self.ended - self.spoilt:
            assert self.answers[stream] == b"POST / " + self.whole[stream]
        self.bench.close()

    def _pick(self, number: int) -> int:
        return self.usable[number % len(self.usable)]

    def _take(self) -> None:
        events, self.bench.events = self.bench.events, []
        for event in events:
            for message in self.h3.handle_event(event):
                if isinstance(message, HeadersReceived):
                    self.answers.setdefault(message.stream_id, b"")
                    status = dict(message.headers)[b":status"]
                    if status != b"200":
                        self.spoilt.add(message.stream_id)
                elif isinstance(message, DataReceived):
                    self.answers[message.stream_id] += message.data
                if isinstance(message, HeadersReceived | DataReceived) and message.stream_ended:
                    self.ended.add(message.stream_id)


def test_any_order_of_events_is_survived(certificate: DevCertificate) -> None:
    class Here(Machine):
        pass

    Here.certificate = certificate
    run_state_machine_as_test(Here, settings=settings(max_examples=20, stateful_step_count=25, deadline=None))


@pytest.mark.long
def test_any_order_of_many_events_is_survived(certificate: DevCertificate) -> None:
    class Here(Machine):
        pass

    Here.certificate = certificate
    run_state_machine_as_test(Here, settings=settings(max_examples=300, stateful_step_count=50, deadline=None))


# ---- octets, where no cryptography is in their way

WHOLE = [
    encode_frame(FrameType.HEADERS, block(post("/", (b"content-length", b"5")))),
    encode_frame(FrameType.HEADERS, block(get("/"))),
    encode_frame(FrameType.DATA, b"12345"),
    encode_frame(FrameType.DATA, b""),
    encode_frame(FrameType.SETTINGS, encode_uint_var(6) + encode_uint_var(100)),
    encode_frame(FrameType.GOAWAY, b"\x00"),
    encode_frame(0x21, b"grease"),
    b"\x00",
    b"\x02",
    b"\x03",
]
octets = st.lists(st.one_of(st.sampled_from(WHOLE), st.binary(max_size=6)), min_size=1, max_size=4).map(b"".join)
mutation = st.tuples(st.integers(0, 200), st.integers(0, 255))
mutated = st.builds(
    lambda data, changes: bytes(
        dict(changes).get(index, octet) if changes else octet for index, octet in enumerate(data)
    ),
    octets,
    st.lists(mutation, max_size=3),
)
STREAMS = [0, 4, 8, 2, 6, 10]
events = st.one_of(
    st.builds(StreamDataReceived, data=mutated, end_stream=st.booleans(), stream_id=st.sampled_from(STREAMS)),
    st.builds(StreamDataReceived, data=mutated, end_stream=st.just(False), stream_id=st.sampled_from(STREAMS)),
    st.builds(StreamReset, error_code=st.just(0x10C), stream_id=st.sampled_from(STREAMS)),
    st.builds(StopSendingReceived, error_code=st.just(0x10C), stream_id=st.sampled_from([0, 4, 8])),
)


def test_any_octets_on_any_stream_are_survived(certificate: DevCertificate) -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.lists(events, min_size=1, max_size=12))
    def survives(sequence: list[StreamDataReceived | StreamReset | StopSendingReceived]) -> None:
        bench = Bench(echo, certificate, LIMITS)
        for stream in STREAMS:
            bench.client.send_stream_data(stream, b"")
        # The streams exist for QUIC; what arrives on them is what the test says.
        for stream in STREAMS:
            bench.quic._get_or_create_stream(0, stream)
        for event in sequence:
            if bench.session.quic.ended:
                break
            bench.session.event(event)
            bench.turn()
        assert bench.session._h3 is not None
        assert all(len(stream.buffer) <= 4096 + 1200 for stream in bench.session._h3._stream.values())
        bench.close()

    survives()
