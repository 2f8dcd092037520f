from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.openai.sse import Event, SseError, SseParser, encode, encode_comment, has_content

LINES = st.sampled_from(
    [b"", b"data: a", b"data:b", b"data", b": note", b":", b"event: x", b"data: c: d", b"id", b"\xef\xbb\xbf"]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=12).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


def feed_all(chunks: list[bytes]) -> tuple[list[Event], bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)], parser.tail


@given(STREAMS, st.lists(st.integers(0, 200)))
def test_any_chunking_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert feed_all(chunks) == feed_all([stream])
    assert feed_all([bytes([byte]) for byte in stream]) == feed_all([stream])


@given(STREAMS)
def test_raws_and_tail_joined_are_the_stream(stream: bytes) -> None:
    events, tail = feed_all([stream])
    assert b"".join(event.raw for event in events) + tail == stream


@given(st.lists(st.sampled_from([b"data: a\n\n", b"\n", b": c\n", b"data: a\ndata: b\n\n", b"data: a\n"]), max_size=8))
def test_the_quick_way_for_whole_events_agrees_with_the_byte_wise_one(parts: list[bytes]) -> None:
    whole = SseParser()
    events = [event for part in (b"data: 0\n\n", b"".join(parts)) for event in whole.feed(part)]
    assert (events, whole.tail) == feed_all([bytes([byte]) for byte in b"data: 0\n\n" + b"".join(parts)])


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_end_ends_lines(end: bytes) -> None:
    events, tail = feed_all([b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end + b"data:"])
    assert [event.data for event in events] == [b"a\nb", b"c"]
    assert tail == b"data:"


def test_an_event_is_out_with_its_last_byte() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [Event(b"a", b"data: a\n\n")]
    assert parser.feed(b"data: b\r\n\r") == []
    assert parser.feed(b"\n") == [Event(b"b", b"data: b\r\n\r\n")]


def test_a_comment_between_events_is_out_at_its_line_end_and_one_inside_stays_in_place() -> None:
    parser = SseParser()
    assert parser.feed(b": keep-alive\n") == [Event(b"", b": keep-alive\n", comment=True)]
    assert parser.feed(b"data: a\n: inside\n\n") == [Event(b"a", b"data: a\n: inside\n\n")]


def test_one_space_after_the_colon_is_removed() -> None:
    assert [event.data for event in SseParser().feed(b"data:  two\n\ndata:none\n\ndata\n\n")] == [b" two", b"none", b""]


@pytest.mark.parametrize("end", [b"", b"\n\n"])
@pytest.mark.parametrize("before", [b"", b"data: 0\n\n"])
def test_an_event_over_the_limit_is_an_error(before: bytes, end: bytes) -> None:
    parser = SseParser(limit=64)
    parser.feed(before)
    with pytest.raises(SseError, match="64 bytes"):
        parser.feed(b"data: " + b"x" * 64 + end)


def test_many_small_events_in_one_chunk_are_within_the_limit() -> None:
    assert len(SseParser(limit=16).feed(encode(b"x") * 1000)) == 1000


def test_what_is_encoded_is_parsed() -> None:
    events = SseParser().feed(encode(b'{"a":1}') + encode_comment(b"note") + encode(b"[DONE]"))
    assert [(event.data, event.comment) for event in events] == [(b'{"a":1}', False), (b"", True), (b"[DONE]", False)]


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}, False),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, True),
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [], "usage": {"total_tokens": 1}}, False),
        ({"error": {"message": "broken"}}, True),
        ({"choices": None}, False),
        ({"choices": [None, {"delta": None}]}, False),
        ([], False),
    ],
)
def test_content_is_text_tool_call_finish_or_error(chunk: object, expected: bool) -> None:
    assert has_content(chunk) is expected
