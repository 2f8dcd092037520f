"""What edgeproxy believes of the insides of `h2`: an upgrade that breaks it is to be noticed here."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, RequestReceived
from h2.exceptions import DenialOfServiceError
from h2.settings import SettingCodes
from hpack.exceptions import HPACKDecodingError
from hyperframe.frame import ContinuationFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame

from edgeproxy.wire.h2_internals import HEADER_TABLE_BYTES, BoundedDecoder, ClientGoesAway, ServerH2
from edgeproxy.wire.limits import Limits

HEAD = [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", "/")]


def pair(limits: Limits) -> tuple[ServerH2, H2Connection]:
    server, client = ServerH2(limits), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    return server, client


def test_frames_are_not_written_down_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`h2` does, for a logger that is not there: 2 us for each frame."""

    def refuse(self: Frame) -> str:
        raise AssertionError("a frame was written down")

    server, client = pair(Limits())
    monkeypatch.setattr(Frame, "__repr__", refuse)
    client.send_headers(1, HEAD)
    client.send_data(1, b"x", end_stream=True)
    server.feed(client.data_to_send())
    events = [event for found in iter(server.next_frame, None) for event in found[0]]
    assert {RequestReceived, DataReceived} <= {type(event) for event in events}


def test_limits_are_in_force_before_the_client_has_acknowledged_them() -> None:
    server = ServerH2(Limits(unread_body_bytes=100_000, streams_per_connection=7, head_bytes=5000))
    assert server.local_settings.initial_window_size == 100_000
    assert server.local_settings.max_concurrent_streams == 7
    assert server.decoder.max_header_list_size == 5000


def test_a_client_may_use_the_default_window_before_it_has_read_the_settings() -> None:
    server, client = ServerH2(Limits(unread_body_bytes=1000)), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, HEAD)
    for _ in range(3):
        client.send_data(1, bytes(16384))
    client.send_data(1, bytes(65535 - 3 * 16384))
    assert any(isinstance(event, DataReceived) for event in server.receive_data(client.data_to_send()))


def test_the_client_learns_the_limits_and_a_wide_connection_window() -> None:
    _, client = pair(Limits(unread_body_bytes=65536, streams_per_connection=7))
    assert client.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] == 7
    assert client.remote_settings[SettingCodes.INITIAL_WINDOW_SIZE] == 65536
    assert client.remote_settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] == 0
    assert client.outbound_flow_control_window == 16 * 65536


def test_a_goaway_from_the_client_leaves_running_streams_alone() -> None:
    server, client = pair(Limits())
    client.send_headers(1, HEAD, end_stream=True)
    events = server.receive_data(client.data_to_send() + GoAwayFrame(0, last_stream_id=0).serialize())
    assert [type(event) for event in events if not isinstance(event, RequestReceived)][-1] is ClientGoesAway
    server.send_headers(1, [(":status", "200")])
    server.send_data(1, b"body", end_stream=True)
    assert any(isinstance(event, DataReceived) for event in client.receive_data(server.data_to_send()))


def test_our_goaway_does_not_end_our_own_streams() -> None:
    server, client = pair(Limits())
    client.send_headers(1, HEAD, end_stream=True)
    server.receive_data(client.data_to_send())
    events = client.receive_data(server.goaway(1))
    assert any(isinstance(event, ConnectionTerminated) and event.last_stream_id == 1 for event in events)
    server.send_headers(1, [(":status", "200")], end_stream=True)
    assert server.data_to_send()


def test_an_overlong_frame_is_visible_before_it_is_whole() -> None:
    server, _ = pair(Limits())
    server.receive_data(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(16384))
    assert not server.frame_too_large
    server.receive_data(b"\0")
    assert server.frame_too_large


def test_a_request_with_a_status_is_no_response_and_left_to_our_own_checks() -> None:
    server, client = pair(Limits())
    block = client.encoder.encode([(b":status", b"100"), *HEAD])
    server.receive_data(len(block).to_bytes(3, "big") + b"\x01\x04\x00\x00\x00\x01" + block)
    events = server.receive_data(len(block).to_bytes(3, "big") + b"\x01\x05\x00\x00\x00\x03" + block)
    assert isinstance(events[0], RequestReceived)
    assert events[0].headers[0] == (b":", b"100")


@pytest.mark.parametrize("allowed", [0, 100, 4096, 2**32 - 1])
def test_what_a_client_allows_does_not_make_us_remember_more_of_our_own_fields(allowed: int) -> None:
    server, client = pair(Limits())
    client.update_settings({SettingCodes.HEADER_TABLE_SIZE: allowed})
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    for number in range(200):
        stream_id = client.get_next_available_stream_id()
        client.send_headers(stream_id, HEAD, end_stream=True)
        server.receive_data(client.data_to_send())
        server.send_headers(stream_id, [(":status", "200"), ("x-request-id", f"{number:064}")], end_stream=True)
        client.receive_data(server.data_to_send())  # and understands it
    assert server.encoder.header_table._current_size <= min(allowed, HEADER_TABLE_BYTES)


def test_settings_that_mean_nothing_are_not_kept() -> None:
    server, _ = pair(Limits())
    before = len(server.remote_settings)
    for start in range(0, 2**16, 2048):
        codes = b"".join(code.to_bytes(2, "big") + bytes(4) for code in range(start, start + 2048) if code > 8)
        server.receive_data(len(codes).to_bytes(3, "big") + b"\x04\x00" + bytes(4) + codes)
    assert len(server.remote_settings) <= before + 2


def test_a_header_block_changes_the_size_of_its_table_twice_at_most_and_each_block_anew() -> None:
    decoder = BoundedDecoder(1000)
    for _ in range(2):
        assert decoder.decode(b"\x20\x3f\xe1\x1f\x82", raw=True) == [(b":method", b"GET")]
    with pytest.raises(HPACKDecodingError):
        decoder.decode(b"\x20" * 3 + b"\x82", raw=True)


def test_a_header_block_longer_than_the_fields_may_be_is_not_looked_at() -> None:
    server, _ = pair(Limits(head_bytes=1000))
    server.feed(HeadersFrame(1, b"\x20" * 1001, flags=["END_HEADERS"]).serialize())
    with pytest.raises(DenialOfServiceError):
        server.next_frame()


def test_a_head_that_does_not_end_is_noticed_before_it_does() -> None:
    server, _ = pair(Limits(head_bytes=1000))
    server.feed(HeadersFrame(1, bytes(900)).serialize())
    assert server.next_frame() is None
    assert not server.head_too_large
    server.feed(ContinuationFrame(1, bytes(101)).serialize())
    assert server.next_frame() is None
    assert server.head_too_large


def test_long_heads_and_settings_are_more_work_than_short_ones() -> None:
    server, client = pair(Limits())
    server.receive_data(client.data_to_send())
    client.send_headers(1, HEAD)
    client.send_headers(3, [*HEAD, ("x", "\N{DEGREE SIGN}" * 5000)])
    server.feed(client.data_to_send())
    short, long = server.next_frame(), server.next_frame()
    assert short is not None
    assert long is not None
    assert short[2] < 20
    assert long[2] > 100
    server.feed(SettingsFrame(0, dict.fromkeys(range(9, 255), 0)).serialize())
    settings = server.next_frame()
    assert settings is not None
    assert settings[1] == settings[2] > 20
