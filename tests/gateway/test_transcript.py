"""A transcript knows what the client has got, or knows that it does not know."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.gateway import transcript as module
from edgeproxy.gateway.transcript import MAX_SINCE, NodeGaveUp, Transcript
from edgeproxy.protocol.node.resume import encode_note
from edgeproxy.protocol.openai.sse import DONE, Event, SseParser, encode
from tests.fake_exchange import FINISH, ROLE, chunk

WORDS = ["Hello", ", ", "wörld 🌍", "!"]


def stream(words: list[str]) -> bytes:
    """As a native node sends it."""
    found, chars = ROLE, 0
    for number, word in enumerate(words):
        found += encode_note(chars, (100 + number,), None if number else (7, 99)) + chunk({"content": word})
        chars += len(word)
    return found


def taken(raw: bytes) -> Transcript:
    found = Transcript("n")
    found.take(SseParser().feed(raw))
    return found


def test_it_knows_tokens_characters_and_what_the_stream_is_called() -> None:
    resume = taken(stream(WORDS)).resume()
    assert resume is not None
    assert (resume.id, resume.created, resume.numerics) == ("chatcmpl-1", 1, "n")
    assert (resume.seed, resume.max_tokens, resume.ids) == (7, 99, (100, 101, 102, 103))
    assert (resume.chars, resume.finished) == (len("".join(WORDS)), False)
    finished = taken(stream(WORDS) + FINISH).resume()
    assert finished is not None
    assert finished.finished


@given(st.integers(0, 8))
def test_the_client_gets_all_but_the_notes(cut: int) -> None:
    events = SseParser().feed(stream(WORDS))
    found = Transcript("n")
    passed = found.take(events[:cut]) + found.take(events[cut:])
    assert passed == ROLE + b"".join(chunk({"content": word}) for word in WORDS)


def test_notes_read_early_and_late_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    late = taken(stream(WORDS * 20)).resume()
    monkeypatch.setattr(module, "MAX_NOTE_BYTES", 10)
    early = Transcript("n")
    for event in SseParser().feed(stream(WORDS * 20)):
        early.take([event])
    assert early.resume() == late


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        ROLE,
        ROLE + encode_note(0, (1,)) + chunk({"content": "no opening"}),
        stream(WORDS) + b":e chars=x ids=1\n" + chunk({"content": "?"}),
        stream(WORDS) + chunk({"content": "word"}) * (MAX_SINCE + 1),
        stream(WORDS) + b"data: 7\n\n",
        stream(WORDS) + b'data: {"choices":[{"delta":7}]}\n\n',
        stream(WORDS) + FINISH + encode(DONE),
    ],
)
def test_where_it_does_not_know_nothing_is_resumed(raw: bytes) -> None:
    assert taken(raw).resume() is None


def test_what_it_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDS", 10)
    monkeypatch.setattr(module, "MAX_NOTE_BYTES", 100)
    found = Transcript("n")
    for event in SseParser().feed(stream(WORDS * 100)):
        found.take([event])
    assert found.resume() is None
    assert len(found._ids) + len(found._notes) < 1000


def test_only_done_is_missing_after_the_usage() -> None:
    usage = encode(orjson.dumps({"id": "chatcmpl-1", "created": 1, "choices": [], "usage": {"completion_tokens": 4}}))
    found = taken(stream(WORDS) + FINISH + usage)
    assert found.resume() is None
    assert found.missing_end() == encode(DONE)
    assert taken(stream(WORDS) + FINISH + usage + encode(DONE)).missing_end() == b""
    assert taken(stream(WORDS)).missing_end() == b""


def test_a_nodes_own_failure_is_not_shown_and_what_came_before_it_is() -> None:
    error = encode(b'{"error":{"message":"engine","code":"engine_failed"}}')
    with pytest.raises(NodeGaveUp) as caught:
        taken(stream(WORDS) + error)
    assert caught.value.passed.endswith(chunk({"content": "!"}))
    assert taken(ROLE + error).resume() is None  # of a stream that nobody can go on with it is the client's to know


def test_an_error_of_the_request_itself_is_told_and_not_gone_on_with() -> None:
    error = encode(b'{"error":{"message":"too much","type":"invalid_request_error","code":"unsupported_schema"}}')
    found = Transcript("n")
    assert found.take(SseParser().feed(stream(WORDS) + error)).endswith(error)
    assert found.resume() is None


def test_a_node_that_tells_nothing_is_passed_on_as_it_comes() -> None:
    events = [Event(b"", b":e chars=0 ids=1\n", comment=True), *SseParser().feed(stream(WORDS))]
    assert Transcript(None).take(events) == b":e chars=0 ids=1\n" + stream(WORDS)


def test_tokens_are_counted_by_notes_and_without_them_by_events_with_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(stream(WORDS) + encode_note(9, ()) + encode_note(9, (7, 8, 9)) + FINISH + DONE).written == 7
    plain = SseParser().feed(ROLE + b"".join(chunk({"content": word}) for word in [*WORDS, '"content": "x"']) + FINISH)
    for numerics in (None, "n"):
        found = Transcript(numerics)
        found.take(plain)
        assert found.written == 5
    monkeypatch.setattr(module, "MAX_NOTE_BYTES", 10)
    found = Transcript("n")
    for event in SseParser().feed(stream(WORDS * 20)):
        found.take([event])
    assert found.written == 80
