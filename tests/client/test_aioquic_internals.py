"""What the project stands on in aioquic's private parts; an update of the library that moves it fails here first."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pylsqpack
import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, H3Connection, Setting, encode_frame
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionTerminated,
    ProtocolNegotiated,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicErrorCode, QuicProtocolVersion
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketRecovery
from aioquic.quic.stream import QuicStreamReceiver, QuicStreamSender

from edgeproxy.client import aioquic_internals
from edgeproxy.client.aioquic_internals import H3, MessageRefused, Quic, refusal_datagram
from edgeproxy.client.any_quic import Ending
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_peer import get, packet

CLIENT, SERVER = ("127.0.0.1", 1), ("127.0.0.1", 2)
WINDOW = 64 * 1024
ROOT = Path(__file__).parents[2]


class Pair:
    """A client and a server in one place, with a clock that the test turns; no sockets."""

    def __init__(self, certificate: DevCertificate, *, window: int = WINDOW, **server_options: Any) -> None:
        self.now = 0.0
        client = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name="localhost",
            max_stream_data=window,
            max_data=4 * window,
        )
        client.load_verify_locations(cafile=str(certificate.ca))
        server = QuicConfiguration(is_client=False, alpn_protocols=["h3"], max_stream_data=window, max_data=4 * window)
        server.load_cert_chain(certificate.certificate, certificate.key)
        self.client = Quic(client)
        self.client.connect(SERVER, now=0)
        self.server = Quic(
            server,
            streams=7,
            original_destination_connection_id=self.client.original_destination_connection_id,
            **server_options,
        )
        self.heard: dict[Quic, list[QuicEvent]] = {self.client: [], self.server: []}
        self.run()

    def run(self, rounds: int = 40) -> None:
        """Carry datagrams to and fro; each round takes 10 ms."""
        for _ in range(rounds):
            for quic, peer, source in ((self.client, self.server, CLIENT), (self.server, self.client, SERVER)):
                timer = quic.get_timer()
                if timer is not None and timer <= self.now:
                    quic.handle_timer(self.now)
                for data, _ in quic.datagrams_to_send(self.now) if quic is self.client or quic.started else ():
                    peer.receive_datagram(data, source, self.now)
                while (event := quic.next_event()) is not None:
                    self.heard[quic].append(event)
            self.now += 0.01

    def received(self, quic: Quic, stream_id: int) -> int:
        events = [e for e in self.heard[quic] if isinstance(e, StreamDataReceived) and e.stream_id == stream_id]
        return sum(len(event.data) for event in events)

    def run_unread(self, held: dict[int, int], rounds: int = 100) -> None:
        """As `run`, while the server reads nothing of the streams in `held`, which counts what it received."""
        for _ in range(rounds):
            self.run(1)
            for stream_id, before in held.items():
                if new := self.received(self.server, stream_id) - before:
                    self.server.hold(stream_id, new)
                    held[stream_id] += new


@pytest.fixture
def pair(certificate: DevCertificate) -> Pair:
    return Pair(certificate)


def test_the_version_is_one_this_was_written_for() -> None:
    assert version("aioquic").startswith("1.7.")


def test_private_parts_are_touched_in_one_package_only() -> None:
    """Elsewhere `quic._x`, `h3._x` and imports of private names do not occur."""
    private = re.compile(r"\b(quic|h3|sender|receiver|stream)\._[a-z]|from aioquic[\w.]* import .*\b_\w")
    for file in (ROOT / "edgeproxy").rglob("*.py"):
        if Path(aioquic_internals.__file__).parent not in file.parents:
            assert not private.search(file.read_text()), f"{file} reaches into aioquic"


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (QuicConnection, "_write_stream_limits", ["self", "builder", "space", "stream"]),
        (QuicConnection, "_write_connection_limits", ["self", "builder", "space"]),
        (QuicConnection, "_close_begin", ["self", "is_initiator", "now"]),
        (QuicConnection, "_write_stream_frame", ["self", "builder", "space", "stream", "max_offset"]),
        (QuicConnection, "_idle_timeout", ["self"]),
        (QuicConnection, "_replenish_connection_ids", ["self"]),
        (
            QuicPacketRecovery,
            "_on_packets_lost",
            ["self", "congestion_event", "now", "packets", "persistent_congestion", "space"],
        ),
        (QuicConnection, "_stream_is_discarded", ["self", "stream_id"]),
        (QuicConnection, "datagrams_to_send", ["self", "now"]),
        (QuicConnection, "send_stream_data", ["self", "stream_id", "data", "end_stream"]),
        (H3Connection, "_init_connection", ["self"]),
        (H3Connection, "_get_local_settings", ["self"]),
        (H3Connection, "_check_control_frame_type", ["self", "frame_type"]),
        (H3Connection, "_check_request_or_push_frame_type", ["self", "frame_type", "stream"]),
        (H3Connection, "_check_content_length", ["self", "stream"]),
        (H3Connection, "_decode_headers", ["self", "stream_id", "frame_data"]),
        (H3Connection, "_handle_control_frame", ["self", "frame_type", "frame_data"]),
        (
            H3Connection,
            "_handle_request_or_push_frame",
            ["self", "frame_type", "frame_data", "stream", "stream_ended"],
        ),
        (H3Connection, "_receive_request_or_push_data", ["self", "stream", "data", "stream_ended"]),
        (H3Connection, "_receive_stream_data", ["self", "event"]),
        (H3Connection, "_receive_stream_data_uni", ["self", "stream", "data", "stream_ended"]),
        (H3Connection, "_receive_stream_reset", ["self", "stream_id"]),
        (QuicStreamReceiver, "starting_offset", ["self"]),
        (QuicStreamReceiver, "stop", ["self", "error_code"]),
        (QuicStreamSender, "write", ["self", "data", "end_stream"]),
        (QuicPacketBuilder, "flush", ["self"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_overridden_and_called_methods_have_their_signatures(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_a_servers_reset_tokens_are_the_callers(certificate: DevCertificate) -> None:
    pair = Pair(certificate, reset_token=lambda cid: bytes(reversed(cid)) + cid)
    known = [pair.client._peer_cid, *pair.client._peer_cid_available]
    assert len(known) == 8
    assert all(one.stateless_reset_token == bytes(reversed(one.cid)) + one.cid for one in known)
    pair.client.change_connection_id()
    pair.run()
    assert {one.cid for one in pair.client._peer_cid_available} - {one.cid for one in known}
    assert all(one.stateless_reset_token[8:] == one.cid for one in pair.client._peer_cid_available)


def test_who_ended_a_connection_and_how_is_told(certificate: DevCertificate) -> None:
    ours, theirs, faulty, silent = (Pair(certificate) for _ in range(4))
    assert ours.server.ending is None
    ours.server.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="enough")
    assert ours.server.ending == Ending("us", ErrorCode.H3_EXCESSIVE_LOAD, True, "enough")
    ours.run(2)
    assert ours.server.ending == Ending("us", ErrorCode.H3_EXCESSIVE_LOAD, True, "enough")
    assert ours.client.ending == Ending("peer", ErrorCode.H3_EXCESSIVE_LOAD, True, "enough")
    theirs.client.close(error_code=QuicErrorCode.PROTOCOL_VIOLATION, frame_type=0, reason_phrase="no")
    theirs.run(2)
    assert theirs.server.ending == Ending("peer", QuicErrorCode.PROTOCOL_VIOLATION, False, "no")
    faulty.server.receive_datagram(packet(faulty.client, b"\x1f"), CLIENT, faulty.now)
    ending = faulty.server.ending
    assert ending is not None
    assert (ending.by, ending.code, ending.application) == ("us", QuicErrorCode.FRAME_ENCODING_ERROR, False)
    silent.server.handle_timer(silent.now + 1000)
    ending = silent.server.ending
    assert ending is not None
    assert (ending.by, ending.code) == ("silence", QuicErrorCode.NO_ERROR)


def test_lost_packets_are_counted_once_and_late_ones_not(pair: Pair) -> None:
    assert pair.server.take_lost() == 0
    stream = pair.client.get_next_available_stream_id()
    pair.client.send_stream_data(stream, b"x")
    pair.run()
    pair.server.send_stream_data(stream, bytes(3000))
    lost = pair.server.datagrams_to_send(pair.now)
    assert len(lost) == 3
    pair.now += 0.01
    for _ in range(5):
        pair.server.send_ping(1)
        for data, _ in pair.server.datagrams_to_send(pair.now):
            pair.client.receive_datagram(data, SERVER, pair.now)
    pair.run()
    assert pair.received(pair.client, stream) == 3000
    assert pair.server.take_lost() == 3
    assert pair.server.take_lost() == 0


def test_many_streams_share_what_is_sent_and_those_that_wait_lose_nothing(pair: Pair) -> None:
    streams = list(range(0, 28, 4))
    for stream in streams:
        pair.client.send_stream_data(stream, b"x")
    pair.run()
    for stream in streams[:3]:
        pair.server.send_stream_data(stream, bytes(40_000))
    for number in range(40):
        if number == 2:  # joins while the others are in the midst
            pair.server.send_stream_data(streams[5], bytes(100), end_stream=True)
        pair.run(1)
        if number == 8:
            assert pair.received(pair.client, streams[5]) == 100
    assert [pair.received(pair.client, stream) for stream in streams] == [40_000] * 3 + [0, 0, 100, 0]
    for stream in streams[:3]:
        pair.server.send_stream_data(stream, b"", end_stream=True)
    pair.server.reset_stream(streams[3], 1)
    pair.server.send_stream_data(streams[4], b"late", end_stream=True)
    pair.run()
    assert pair.received(pair.client, streams[4]) == 4
    assert [event.stream_id for event in pair.heard[pair.client] if isinstance(event, StreamReset)] == [streams[3]]


def test_the_limit_of_streams_is_announced(pair: Pair) -> None:
    for _ in range(8):
        pair.client.send_stream_data(pair.client.get_next_available_stream_id(), b"x")
    pair.run()
    opened = {e.stream_id for e in pair.heard[pair.server] if isinstance(e, StreamDataReceived)}
    assert opened == {4 * i for i in range(7)}, "the eighth waits"


def test_credit_stops_with_what_nobody_reads_and_goes_on_with_what_is_read(pair: Pair) -> None:
    pair.client.send_stream_data(0, bytes(10 * WINDOW))
    held = {0: 0}
    pair.run_unread(held)
    assert held[0] == WINDOW
    assert pair.client.unsent(0) == 9 * WINDOW
    assert not pair.server.release(0, WINDOW // 4), "too little to be worth a datagram"
    assert pair.server.release(0, WINDOW // 2)
    pair.run_unread(held)
    assert held[0] == WINDOW + 3 * WINDOW // 4


def test_unread_streams_together_stop_at_the_credit_of_the_connection(pair: Pair) -> None:
    held = dict.fromkeys(range(0, 24, 4), 0)
    for stream_id in held:
        pair.client.send_stream_data(stream_id, bytes(WINDOW))
    pair.run_unread(held)
    assert sum(held.values()) == 4 * WINDOW
    pair.server.forget(0)
    pair.server.forget(4)
    pair.server.forget(8)
    pair.run_unread(held)
    assert sum(held.values()) == 6 * WINDOW


def test_credit_without_a_reader_falling_behind_never_stops_a_sender(pair: Pair) -> None:
    pair.client.send_stream_data(0, bytes(20 * WINDOW), end_stream=True)
    pair.run(1000)
    assert pair.received(pair.server, 0) == 20 * WINDOW
    assert pair.client.delivered(0)


def test_a_stopped_stream_gets_no_further_credit(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"x")
    pair.run()
    pair.server.stop_receiving(0, ErrorCode.H3_NO_ERROR)
    pair.run()
    assert not pair.client.writable(0)
    assert pair.server._streams[0].max_stream_data_local == WINDOW


def test_writable_and_delivered_follow_the_stream(pair: Pair) -> None:
    assert pair.client.writable(0)
    pair.client.send_stream_data(0, b"x", end_stream=True)
    assert not pair.client.writable(0)
    assert not pair.client.delivered(0)
    pair.run()
    assert pair.client.delivered(0)
    assert pair.server.writable(0)
    pair.server.stop_sending(0, 1)
    assert not pair.server.writable(0)
    pair.run()
    assert pair.server.delivered(0)
    assert not pair.server.writable(0)


def test_the_round_trip_is_the_smallest_so_far(pair: Pair) -> None:
    before = pair.server.rtt
    assert before is not None
    pair.server.send_ping(1)
    late = pair.server.datagrams_to_send(pair.now)
    assert late
    pair.now += 0.5
    for data, _ in late:
        pair.client.receive_datagram(data, SERVER, pair.now)
    pair.run()
    assert pair.server.rtt == before


def test_the_life_of_a_connection_can_be_seen(pair: Pair) -> None:
    assert pair.server.started and pair.server.handshaken and not pair.server.ended
    assert pair.server.rtt == pytest.approx(0.01, abs=0.02)
    assert pair.server.idle_timeout == 60
    pair.client.close(error_code=0x100, reason_phrase="bye")
    pair.run(2)
    assert pair.server.ended, "before the draining period is over"
    assert pair.server.end_reason == "bye (0x100)"
    assert not any(isinstance(e, ConnectionTerminated) for e in pair.heard[pair.server])


def test_an_acknowledgement_travels_with_data_that_leaves_anyway(pair: Pair) -> None:
    pair.run(100)
    pair.client.send_stream_data(0, b"request", end_stream=True)
    for data, _ in pair.client.datagrams_to_send(pair.now):
        pair.server.receive_datagram(data, CLIENT, pair.now)
    pair.server.send_stream_data(0, b"answer", end_stream=True)
    for data, _ in pair.server.datagrams_to_send(pair.now):
        pair.client.receive_datagram(data, SERVER, pair.now)
    assert pair.client.delivered(0), "one datagram each way, no timer between"


def test_a_refusal_ends_a_connection_attempt(certificate: DevCertificate) -> None:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    client = QuicConnection(configuration=configuration)
    client.connect(SERVER, now=0)
    client.datagrams_to_send(0)
    chosen = client.original_destination_connection_id
    datagram = refusal_datagram(
        QuicProtocolVersion.VERSION_1, chosen, client.host_cid, QuicErrorCode.CONNECTION_REFUSED
    )
    client.receive_datagram(datagram, SERVER, now=0.1)
    client.handle_timer(now=100)
    events = iter(client.next_event, None)
    ended = [event for event in events if isinstance(event, ConnectionTerminated)]
    assert [event.error_code for event in ended] == [QuicErrorCode.CONNECTION_REFUSED]
    assert len(datagram) < 1200, "nothing to amplify"


# ---- HTTP/3


class Server:
    """The HTTP/3 layer of a server, fed with stream data as QUIC would give it."""

    def __init__(self, pair: Pair) -> None:
        self.quic = pair.server
        self.h3 = H3(pair.server, head_bytes=4096, fields=20)

    def feed(self, stream_id: int, data: bytes, end: bool = False) -> list[H3Event]:
        return self.h3.handle_event(StreamDataReceived(data=data, end_stream=end, stream_id=stream_id))


@pytest.fixture
def server(pair: Pair) -> Server:
    pair.client.send_stream_data(0, b"")
    for stream_id in range(0, 28, 4):
        pair.client.send_stream_data(stream_id, b"x")
    pair.run()
    return Server(pair)


def head(fields: list[tuple[bytes, bytes]]) -> bytes:
    return encode_frame(0x1, pylsqpack.Encoder().encode(0, fields)[1])


def test_settings_allow_no_dynamic_table(server: Server) -> None:
    assert server.h3.sent_settings == {
        Setting.QPACK_MAX_TABLE_CAPACITY: 0,
        Setting.QPACK_BLOCKED_STREAMS: 0,
        Setting.MAX_FIELD_SECTION_SIZE: 4096,
    }


def test_responses_never_wait_for_the_encoder_stream(server: Server) -> None:
    """Even where the peer offers a table: no instruction is sent, and the block decodes without any."""
    server.feed(2, b"\x00" + encode_frame(0x4, encode_uint_var(1) + encode_uint_var(4096) + b"\x07\x10"))
    for stream_id in (0, 4):
        server.feed(stream_id, head(get()), end=True)
        server.h3.write_head(stream_id, [(b":status", b"200"), (b"x-new", b"value")], b"", end=True)
    written = bytes(server.quic._streams[4].sender._buffer)
    frame = written[2:]
    assert pylsqpack.Decoder(0, 0).feed_header(4, frame)[1] == [(b":status", b"200"), (b"x-new", b"value")]


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 30])
def test_a_request_may_arrive_in_any_pieces(server: Server, cut: int) -> None:
    data = head(get()) + encode_frame(0x0, b"0123456789")
    events = server.feed(0, data[:cut]) + server.feed(0, data[cut:], end=True)
    assert isinstance(events[0], HeadersReceived)
    assert b"".join(e.data for e in events if isinstance(e, DataReceived)) == b"0123456789"
    assert events[-1].stream_ended  # type: ignore[attr-defined]


def test_refused_streams_are_ignored_to_their_end_and_then_forgotten(server: Server) -> None:
    events = server.feed(0, encode_uint_var(1) + encode_uint_var(5000) + b"x" * 100)
    assert events == [MessageRefused(0, True, "the field section exceeds the limits")]
    assert server.h3.is_ignored(0)
    assert server.feed(0, b"y" * 5000) == []
    assert server.feed(0, b"", end=True) == []
    assert not server.h3.is_ignored(0)
    assert not server.quic.ended


def test_an_aborted_request_leaves_nothing_behind(server: Server) -> None:
    server.feed(0, head(get()))
    server.h3.abort(0, ErrorCode.H3_REQUEST_CANCELLED)
    assert server.feed(0, encode_frame(0x0, b"late"), end=True) == []
    server.feed(4, head(get()), end=True)
    server.h3.abort(4, ErrorCode.H3_REQUEST_CANCELLED)
    assert not server.h3._stream.keys() & {0, 4}
    assert not server.h3._refused


def test_writing_to_a_stream_that_the_peer_stopped_is_no_error(pair: Pair) -> None:
    pair.client.send_stream_data(0, head(get()), end_stream=True)
    pair.run()
    server = Server(pair)
    server.feed(0, head(get()), end=True)
    pair.client.stop_receiving(0, ErrorCode.H3_REQUEST_CANCELLED)
    pair.run()
    server.h3.write_head(0, [(b":status", b"200")])
    server.h3.write_data(0, b"late", end=True)
    assert not server.quic.ended
    assert 0 not in server.h3._stream


def test_goaway_is_noticed(server: Server) -> None:
    server.feed(2, b"\x00" + encode_frame(0x4, b""))
    assert not server.h3.going_away
    server.feed(2, encode_frame(0x7, encode_uint_var(0)))
    assert server.h3.going_away


def test_the_alpn_event_comes_before_the_first_stream(pair: Pair) -> None:
    kinds = [type(event) for event in pair.heard[pair.server] if not isinstance(event, ConnectionIdIssued)]
    assert kinds[0] is ProtocolNegotiated
