"""What `h2` 4.4 keeps to itself and a server needs; tests/wire/test_h2_internals.py holds these assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from h2.config import H2Configuration
from h2.connection import H2Connection as SansIo
from h2.events import Event
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from edgeproxy.wire.limits import Limits

LAST_OF_ALL = 2**31 - 1
"""The stream id of a GOAWAY that only announces the next one (RFC 9113 section 6.8)."""
_FRAME_HEADER_BYTES = 9
_DEFAULT_WINDOW_BYTES = 65535
_UNREAD_STREAMS = 16
"""How many uploads may stand unread before they use up the connection's window and hold up the others."""


@dataclass(kw_only=True)
class ClientGoesAway(Event):
    """A GOAWAY came: no new streams, but those that run go on."""


class ServerH2(SansIo):
    """`h2` with limits in force from the first byte, and a GOAWAY, either way, that does not end running streams."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # `response_fields` has done both, as for HTTP/3.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        # In force from now on, where `update_settings` waits for the client's acknowledgement. So the window is never
        # smaller than the default one, which a client may use until it has read these settings.
        stream_window = max(limits.unread_body_bytes, _DEFAULT_WINDOW_BYTES)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_per_connection,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes,
                SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self.decoder.max_header_list_size = limits.head_bytes
        self._frame_dispatch_table[GoAwayFrame] = self._client_goes_away
        self.initiate_connection()
        self.increment_flow_control_window(_UNREAD_STREAMS * stream_window - _DEFAULT_WINDOW_BYTES)

    @property
    def frame_too_large(self) -> bool:
        """An unfinished frame longer than allowed is being collected; `h2` itself looks only once it has it all."""
        return len(self.incoming_buffer._data) > self.max_inbound_frame_size + _FRAME_HEADER_BYTES

    @staticmethod
    def goaway(last_stream_id: int) -> bytes:
        """To be written as it is: `close_connection` would end the running streams with it."""
        return GoAwayFrame(0, last_stream_id=last_stream_id).serialize()

    def _client_goes_away(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        return [], [ClientGoesAway()]
