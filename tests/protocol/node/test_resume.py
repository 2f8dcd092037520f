"""What passes between nodes of one stream survives the way, and nothing else gets through."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.node.resume import (
    Note,
    Resume,
    decode_note,
    decode_resume,
    encode_note,
    is_note,
    with_resume,
)

RESUME = Resume("chatcmpl-1", 1_760_000_000, "native-2", 2**64 - 1, 256, (1, 2, 3), 12)


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=5))
def test_a_note_comes_back_as_it_was(chars: int, ids: list[int]) -> None:
    line = encode_note(chars, ids)
    assert is_note(line)
    assert decode_note(line) == Note(None, None, chars, ",".join(map(str, ids)).encode())
    opened = decode_note(encode_note(chars, ids, (2**64 - 1, 256)))
    assert opened is not None
    assert (opened.seed, opened.max_tokens, opened.chars) == (2**64 - 1, 256, chars)


@pytest.mark.parametrize(
    "line",
    [
        b": keep-alive\n",
        b":e chars=1\n",
        b":e chars=1 ids=1,\n",
        b":e chars=1 ids=1;2\n",
        b":e seed=1 chars=1 ids=1\n",
        b":e chars=99999999999 ids=1\n",
        b':e chars=1 ids=1],"model":"x"\n',
    ],
)
def test_other_lines_are_no_notes(line: bytes) -> None:
    assert decode_note(line) is None


@pytest.mark.parametrize("body", [b'{"model":"m"}', b' { "model" : "m" } \n', b'{"model":"m","resume":null}'])
def test_a_body_gets_the_field_and_keeps_all_else(body: bytes) -> None:
    value = orjson.loads(with_resume(body, RESUME))
    assert value["model"] == "m"
    assert decode_resume(value["resume"]) == RESUME


def test_a_finished_stream_says_so() -> None:
    finished = RESUME._replace(finished=True)
    assert decode_resume(orjson.loads(with_resume(b'{"model":"m"}', finished))["resume"]) == finished


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", None),
        ("ids", [1, -1]),
        ("ids", [True]),
        ("ids", [2**32]),
        ("ids", ["1"]),
        ("seed", -1),
        ("seed", 2**64),
        ("chars", 1.5),
        ("max_tokens", None),
        ("max_tokens", 0),
        ("id", 7),
        ("numerics", "n" * 257),
        ("finished", 1),
    ],
)
def test_what_no_sound_proxy_sends_is_refused(name: str, value: Any) -> None:
    raw = orjson.loads(with_resume(b'{"model":"m"}', RESUME))["resume"]
    with pytest.raises(ValueError, match=name):
        decode_resume(raw | {name: value})


def test_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        decode_resume([1])
