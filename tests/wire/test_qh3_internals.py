"""What the project stands on in qh3 and its private parts, and what HTTP/3 does otherwise on it than on aioquic."""

from __future__ import annotations

import inspect
import random
from importlib.metadata import version

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import PingAcknowledged, QuicEvent, StopSendingReceived, StreamDataReceived
from qh3.quic.connection import QuicConnection as NativeConnection
from qh3.quic.tls_bridge import QuicTlsBridge

from edgeproxy.wire.limits import KIB, Limits
from edgeproxy.wire.qh3_internals import Quic
from edgeproxy.wire.qh3_internals.quic import FRAME_S, FREE_EVENTS, FREE_S, MOVES
from edgeproxy.wire.quic_servers import UNREAD_STREAMS, quic_server
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Library, echo, serving
from tests.client.h3_peer import get, packet, post, stream_frame
from tests.wire.test_h3_network import Upstream, digest, relayed
from tests.wire.udp_relay import Faults

CLIENT, SERVER = ("127.0.0.1", 1), ("127.0.0.1", 2)
WINDOW = 64 * KIB
STREAMS = 7


class Pair:
    """aioquic's client and our server in one place, with a clock that the test turns; no sockets."""

    def __init__(self, certificate: DevCertificate) -> None:
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
        configuration.load_verify_locations(cafile=str(certificate.ca))
        self.client = QuicConnection(configuration=configuration)
        self.client.connect(SERVER, now=0.0)
        server = quic_server("qh3", Limits(unread_body_bytes=WINDOW), certificate.certificate, certificate.key)
        quic = server.accept(
            streams=STREAMS,
            reset_token=None,
            tickets=Tickets(8),
            original_cid=self.client.original_destination_connection_id,
            retry_cid=None,
        )
        assert isinstance(quic, Quic)
        self.server = quic
        self.now = 0.0
        self.heard: list[QuicEvent] = []
        """By the client."""

    def to_server(self) -> list[QuicEvent]:
        """What the client has to say, and the events that come of it."""
        for data, _ in self.client.datagrams_to_send(self.now):
            self.server.receive_datagram(data, CLIENT, self.now)
        events = []
        while (event := self.server.next_event()) is not None:
            events.append(event)
            if isinstance(event, StreamDataReceived):
                self.server.hold(event.stream_id, len(event.data))
        return events

    def run(self, rounds: int = 20) -> list[QuicEvent]:
        """Each round takes 10 ms; nobody reads what arrives."""
        events = []
        for _ in range(rounds):
            for quic in (self.client, self.server):
                timer = quic.get_timer()
                if timer is not None and timer <= self.now:
                    quic.handle_timer(self.now)
            events += self.to_server()
            for data, _ in self.server.datagrams_to_send(self.now):
                self.client.receive_datagram(data, SERVER, self.now)
            while (event := self.client.next_event()) is not None:
                self.heard.append(event)
            self.now += 0.01
        return events

    def receive(self, frames: bytes) -> None:
        self.server.receive_datagram(packet(self.client, frames), CLIENT, self.now)
        while self.server.next_event() is not None:
            pass


@pytest.fixture
def pair(certificate: DevCertificate) -> Pair:
    pair = Pair(certificate)
    pair.run()
    assert pair.server.handshaken
    return pair


@pytest.fixture
def on_qh3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "name", "qh3")


def test_the_version_is_one_this_was_written_for() -> None:
    assert version("qh3").startswith("2.1.")


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (NativeConnection, "_create_core", ["self", "remote_addr", "initial_dcid", "now"]),
        (NativeConnection, "_create_tls", ["self", "remote_source_cid"]),
        (NativeConnection, "_normalize_address", ["self", "addr"]),
        (NativeConnection, "_drain_core", ["self"]),
        (NativeConnection, "_drain_tls", ["self"]),
        (NativeConnection, "_set_version", ["self", "version"]),
        (NativeConnection, "send_stream_data", ["self", "stream_id", "data", "end_stream"]),
        (NativeConnection, "get_send_buffer_size", ["self", "stream_id"]),
        (QuicTlsBridge, "serialize_transport_parameters", ["self"]),
        (QuicTlsBridge, "receive_crypto", ["self", "epoch", "data", "offset", "version"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_overridden_and_called_methods_have_their_signatures(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_the_limit_of_streams_is_announced_and_kept(pair: Pair) -> None:
    assert pair.client._remote_max_streams_bidi == STREAMS
    pair.receive(stream_frame(4 * STREAMS, 0, b"one too many"))
    ending = pair.server.ending
    assert ending is not None
    assert (ending.by, ending.application) == ("us", False)


def test_what_nobody_reads_is_bounded_over_the_connection_and_goes_on_when_it_is_read(pair: Pair) -> None:
    sizes = dict.fromkeys(range(0, 4 * STREAMS, 4), 8 * WINDOW)
    for stream_id, size in sizes.items():
        pair.client.send_stream_data(stream_id, bytes(size), end_stream=True)
    pair.run(200)
    sent = sum(pair.client._streams[stream_id].sender.highest_offset for stream_id in sizes)
    assert UNREAD_STREAMS // 2 * WINDOW <= sent <= UNREAD_STREAMS * WINDOW
    assert sum(pair.server._unread.values()) == pair.server._unread_total <= (UNREAD_STREAMS // 2 + 1) * WINDOW
    arrived = 0
    for _ in range(400):
        for stream_id, held in list(pair.server._unread.items()):
            pair.server.release(stream_id, held)
            arrived += held
        pair.run(1)
        if arrived == sum(sizes.values()):
            break
    assert arrived == sum(sizes.values())


def test_a_reader_that_makes_room_is_told_to_look_for_more(pair: Pair) -> None:
    pair.client.send_stream_data(0, bytes(UNREAD_STREAMS * WINDOW))
    pair.run(200)
    assert pair.server.next_event() is None
    half = UNREAD_STREAMS // 2 * WINDOW
    assert pair.server.release(0, pair.server._unread_total - half + 1)
    assert isinstance(pair.server.next_event(), StreamDataReceived)
    pair.server.forget(0)
    assert pair.server._unread_total == 0


@pytest.mark.parametrize(
    "frames",
    [b"\x1a12345678" * 100, b"\x14\x01" * 100],
    ids=["PATH_CHALLENGE", "DATA_BLOCKED"],
)
def test_what_a_datagram_makes_us_hand_out_or_answer_is_charged_with_the_next_one(pair: Pair, frames: bytes) -> None:
    pair.receive(frames)
    pair.server.datagrams_to_send(pair.now)
    pair.receive(b"")
    assert pair.server.idle_frames > 100 - 3 * FREE_EVENTS


def test_an_upload_is_charged_nothing(pair: Pair) -> None:
    pair.server._cpu = lambda: 0.0
    pair.client.send_stream_data(0, bytes(8 * WINDOW))
    for _ in range(100):
        pair.run(1)
        pair.server.forget(0)
        assert pair.server.idle_frames == 0
    assert pair.client._streams[0].sender.highest_offset == 8 * WINDOW


def test_a_datagram_that_costs_more_than_any_honest_one_is_charged_by_the_time_it_took(pair: Pair) -> None:
    clock = iter([0.0, 0.001, 1.0, 1.0005, 2.0, 2.0])
    pair.server._cpu = lambda: next(clock)
    pair.receive(b"")
    pair.server.datagrams_to_send(pair.now)
    pair.receive(b"")
    assert pair.server.idle_frames == pytest.approx(FREE_EVENTS + (0.001 + 0.0005 - 2 * FREE_S) / FRAME_S)


def test_an_address_that_is_not_proved_gets_three_times_what_it_sent(certificate: DevCertificate) -> None:
    pair = Pair(certificate)
    configuration = pair.server._configuration
    assert configuration.certificate is not None
    configuration.certificate_chain = [configuration.certificate] * 20
    pair.to_server()
    received, sent = pair.server._received, 0
    for _ in range(10):
        pair.now += 1
        pair.server.handle_timer(pair.now)
        sent += sum(len(data) for data, _ in pair.server.datagrams_to_send(pair.now))
    assert 0 < sent <= 3 * received


def test_an_answer_goes_out_though_what_comes_is_not_wanted(pair: Pair) -> None:
    pair.client.send_stream_data(0, bytes(2 * WINDOW))
    pair.to_server()
    pair.server.send_stream_data(0, b"answer", end_stream=True)
    pair.server.stop_receiving(0, 0x100)
    pair.server.reset_stream(0, 0x10D)  # as HTTP/3 does where a request ends early
    pair.run()
    assert StreamDataReceived(b"answer", True, 0) in pair.heard
    assert StopSendingReceived(0x100, 0) in pair.heard
    assert pair.server.delivered(0)


def test_after_the_end_nothing_is_sent_and_nothing_fails(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"request")
    pair.run(2)
    pair.server.close(0x107, reason_phrase="enough")
    pair.server.send_stream_data(0, b"late")
    pair.server.stop_sending(0, 1)
    pair.server.stop_receiving(0, 1)
    pair.server.send_ping(1)
    assert not pair.server.writable(0)
    assert len(pair.server.datagrams_to_send(pair.now)) == 1
    assert pair.server.ending is not None
    assert pair.server.ending.code == 0x107


def test_a_ping_is_answered_and_the_round_trip_is_known(pair: Pair) -> None:
    pair.server.send_ping(7)
    assert PingAcknowledged(7) in pair.run()
    assert pair.server.rtt is not None
    assert 0 < pair.server.rtt <= 0.02


def test_silence_ends_a_connection(pair: Pair) -> None:
    pair.now += 1000
    pair.server.handle_timer(pair.now)
    while pair.server.next_event() is not None:
        pass
    assert pair.server.ending is not None
    assert pair.server.ending.by == "silence"


def test_a_panic_of_the_core_is_an_error_of_its_connection(pair: Pair) -> None:
    class PanicException(BaseException):
        """As the binding calls its own."""

    def fails() -> None:
        raise PanicException("index out of bounds")

    with pytest.raises(RuntimeError, match="index out of bounds"):
        pair.server._native(fails)
    assert pair.server.ended
    assert pair.server.datagrams_to_send(pair.now) == []
    assert pair.server.next_event() is None


@pytest.mark.usefixtures("on_qh3")
async def test_an_upload_and_its_answer_go_on_across_new_addresses(certificate: DevCertificate) -> None:
    upstream, body = Upstream(), random.Random(1).randbytes(160_000)
    async with serving(upstream, certificate) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        stream = peer.request(post("/"), body[:50_000], end=False)
        await relay.rebind()
        await peer.round_trip()
        peer.data(stream, body[50_000:], end=True)
        await peer.until(lambda: len(peer.at(stream).body) > 40_000)
        await relay.rebind()
        assert digest((await peer.reply(stream)).body) == digest(body)
        assert upstream.calls == {"/": 1}


@pytest.mark.usefixtures("on_qh3")
async def test_who_moves_once_more_than_can_be_followed_is_asked_to_come_anew(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        for _ in range(MOVES):
            assert (await peer.reply(peer.request(get()))).status == 200
            await relay.rebind()
            await peer.round_trip()
        assert (await peer.closing()).error_code == 0x100
