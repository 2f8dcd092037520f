"""What `h2` 4.4 keeps to itself and a server needs; tests/wire/test_h2_internals.py holds these assumptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from h2.config import H2Configuration
from h2.connection import AllowedStreamIDs
from h2.connection import H2Connection as SansIo
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream
from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKDecodingError, HPACKError, OversizedHeaderListError
from hyperframe.exceptions import InvalidPaddingError
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame

from edgeproxy.wire.limits import Limits

LAST_OF_ALL = 2**31 - 1
"""The stream id of a GOAWAY that only announces the next one (RFC 9113 section 6.8)."""
_FRAME_HEADER_BYTES = 9
_DEFAULT_WINDOW_BYTES = 65535
_UNREAD_STREAMS = 16
"""How many uploads may stand unread before they use up the connection's window and hold up the others."""
FRAMES_PER_REQUEST = 4.0
"""That a client may send beside the head of a request, or a long piece of its body, without being charged for them."""
SMALL_DATA_BYTES = 64
"""DATA frames of fewer octets on average are charged: they cost as much as long ones."""
HEADER_TABLE_BYTES = 4096
"""Of response fields that are remembered so as to name them shortly: the table is searched from end to end for each
field. A client may ask for less; that it allows 4 GB does not mean that it gets them."""
_OCTETS_PER_PIECE = 64
"""Of a head, or of settings, that are as much work as a frame without any."""
_FRAMES_PER_REQUEST = 16
"""Of those that bring no request, that are as much work as one of those that do."""
_TABLE_UPDATES = 2
"""At the beginning of a header block (RFC 7541 section 4.2)."""


_SETTINGS = frozenset(SettingCodes)


@dataclass(kw_only=True)
class ClientGoesAway(Event):
    """A GOAWAY came: no new streams, but those that run go on."""


class RequestStream(H2Stream):
    """A malformed message is an error of its stream (RFC 9113 section 8.1.1); `h2` makes it one of the connection.
    So `h2` looks at no message: `message_head` and the streams of `h2_stream` do."""

    def receive_headers(
        self, headers: Iterable[Any], end_stream: bool, header_encoding: bool | str | None
    ) -> tuple[list[Frame], list[Event]]:
        if self.state_machine.headers_received and not end_stream:
            return [], [TrailersReceived(stream_id=self.stream_id, headers=[])]  # without the end that they must have
        # A status would make it a response in the eyes of the state machine.
        fields = [(b":" if name == b":status" else name, value) for name, value in headers]
        return super().receive_headers(fields, end_stream, header_encoding)

    def _initialize_content_length(self, headers: Iterable[Any]) -> None:
        pass

    def _track_content_length(self, length: int, end_stream: bool) -> None:
        pass


class BoundedDecoder(Decoder):
    """HPACK that is not kept busy by octets which say nothing: 32 KiB hold that many changes of the table's size."""

    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._table_updates = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        if len(data) > self.max_header_list_size:
            raise OversizedHeaderListError(f"a header block of {len(data)} octets")
        self._table_updates = 0
        return super().decode(data, raw)

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._table_updates += 1
        if self._table_updates > _TABLE_UPDATES:
            raise HPACKDecodingError("the size of the table changes too often")
        return super()._update_encoding_context(data)


class ServerH2(SansIo):
    """`h2` with limits in force from the first byte, frame by frame, with errors of messages confined to their stream,
    and a GOAWAY, either way, that does not end running streams."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # `response_fields` has done both, as for HTTP/3.
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        # In force from now on, where `update_settings` waits for the client's acknowledgement. So the window is never
        # smaller than the default one, which a client may use until it has read these settings.
        self._head_bytes = limits.head_bytes
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
        self.decoder = BoundedDecoder(limits.head_bytes)
        self._frame_dispatch_table[GoAwayFrame] = self._client_goes_away
        self._frame_dispatch_table[SettingsFrame] = self._client_settings
        self._frame_dispatch_table[_Failed] = _fail
        self.initiate_connection()
        self.increment_flow_control_window(_UNREAD_STREAMS * stream_window - _DEFAULT_WINDOW_BYTES)

    def feed(self, data: bytes) -> None:
        """Bytes whose frames `next_frame` gives. Raises ProtocolError as it does."""
        self.incoming_buffer.max_frame_size = self.max_inbound_frame_size
        try:
            self.incoming_buffer.add_data(data)
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise

    def next_frame(self) -> tuple[list[Event], float, int] | None:
        """The events of the next whole frame, what it costs, and how many frames it was as much work as; None where
        there is none.

        Raises ProtocolError, with the GOAWAY that says why to be sent.
        """
        try:
            frame = next(self.incoming_buffer, None)
            if frame is None:
                return None
            events = self._receive_frame(frame)
        except InvalidPaddingError as error:
            self._terminate_connection(ErrorCodes.PROTOCOL_ERROR)
            raise ProtocolError("a frame with invalid padding") from error
        except ProtocolError as error:
            undecodable = isinstance(error.__cause__, HPACKError) and error.error_code is ErrorCodes.PROTOCOL_ERROR
            self._terminate_connection(ErrorCodes.COMPRESSION_ERROR if undecodable else error.error_code)
            raise
        return events, _cost(frame, events), _work(frame)

    def _receive_frame(self, frame: Frame) -> list[Event]:
        """The library's first writes each frame down for a logger, whether or not there is one. So it gets only those
        that fail, with how they did: what is then to be done is its own affair."""
        events: list[Event]
        try:
            frames, events = self._frame_dispatch_table[frame.__class__](frame)
        except ProtocolError as error:
            events = super()._receive_frame(_Failed(error))
            return events
        self._prepare_for_sending(frames)
        return events

    @property
    def open_inbound_streams(self) -> int:
        """None, so that `h2` ends no connection over their number: who comes too many is refused alone."""
        super().open_inbound_streams  # noqa: B018 - asking makes it forget those that have ended
        return 0

    def _begin_new_stream(self, stream_id: int, allowed_ids: AllowedStreamIDs) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream.__class__ = RequestStream
        return stream

    @property
    def frame_too_large(self) -> bool:
        """To be asked when no whole frame is left: the unfinished one that is being collected is longer than allowed;
        `h2` itself looks only once it has it all."""
        return len(self.incoming_buffer._data) > self.max_inbound_frame_size + _FRAME_HEADER_BYTES

    @property
    def head_too_large(self) -> bool:
        """To be asked when no whole frame is left: of the head that is being collected."""
        return sum([len(frame.data) for frame in self.incoming_buffer._headers_buffer]) > self._head_bytes

    @staticmethod
    def goaway(last_stream_id: int) -> bytes:
        """To be written as it is: `close_connection` would end the running streams with it."""
        return GoAwayFrame(0, last_stream_id=last_stream_id).serialize()

    def _client_settings(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        """`h2` keeps whatever a client calls a setting, and has 65,536 of them in the end."""
        found = {code: value for code, value in frame.settings.items() if code in _SETTINGS}
        if SettingCodes.HEADER_TABLE_SIZE in found:
            found[SettingCodes.HEADER_TABLE_SIZE] = min(found[SettingCodes.HEADER_TABLE_SIZE], HEADER_TABLE_BYTES)
        frame.settings = found
        return self._receive_settings_frame(frame)

    def _client_goes_away(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        return [], [ClientGoesAway()]


class _Failed(Frame):
    """A frame whose handling has raised."""

    def __init__(self, error: ProtocolError) -> None:
        super().__init__(0)
        self.error = error

    def __repr__(self) -> str:
        return "a frame that failed"


def _fail(frame: _Failed) -> NoReturn:
    raise frame.error


def _cost(frame: Frame, events: list[Event]) -> float:
    """Of an allowance of frames that bring no request further. Those that do give some of it back: what clients say
    beside a request (windows, priorities, its end) is in proportion to it."""
    if isinstance(frame, HeadersFrame):
        return -FRAMES_PER_REQUEST
    if isinstance(frame, DataFrame) and any(isinstance(event, DataReceived) for event in events):
        if "END_STREAM" in frame.flags:
            return 0
        return max(1 - len(frame.data) / SMALL_DATA_BYTES, -FRAMES_PER_REQUEST)
    return _work(frame)


def _work(frame: Frame) -> int:
    """Of how many frames without a content."""
    if isinstance(frame, HeadersFrame):
        return _FRAMES_PER_REQUEST + len(frame.data) // _OCTETS_PER_PIECE
    if isinstance(frame, SettingsFrame):
        return 1 + frame.body_len // _OCTETS_PER_PIECE
    return 1
