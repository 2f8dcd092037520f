"""What edgeproxy believes of the insides of `h2`: an upgrade that breaks it is to be noticed here."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, RequestReceived
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from edgeproxy.wire.h2_internals import ClientGoesAway, ServerH2
from edgeproxy.wire.limits import Limits

HEAD = [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", "/")]


def pair(limits: Limits) -> tuple[ServerH2, H2Connection]:
    server, client = ServerH2(limits), H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    return server, client


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
