"""One member is set, and all that stands beside it stays as it was written."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.json_edit import set_at_once, set_in_pieces
from edgeproxy.protocol.openai.errors import ApiError
from tests.protocol.test_json_members import BODIES, CUT, NAMES, WHOLE


def run(pieces: Generator[None, None, bytes]) -> tuple[bytes, int]:
    """What it comes to, and in how many pieces."""
    count = 1
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value, count
        count += 1


def pairs(body: bytes) -> list[tuple[str, Any]]:
    """The members of an object as they stand there; numbers as they are written."""
    found: list[list[tuple[str, Any]]] = []

    def keep(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(items)
        return dict(items)

    json.loads(body, object_pairs_hook=keep, parse_int=str, parse_float=str)
    return found[-1]


REPEATED = st.lists(BODIES, min_size=1, max_size=3).map(
    lambda bodies: b"{%b}" % b",".join(inner for body in bodies if (inner := body.strip()[1:-1].strip(b" \n")))
)


@settings(max_examples=60, deadline=None)
@given(REPEATED, st.sampled_from(sorted(NAMES)))
@example(b"{}", "a")
@example(b" { \n } ", "a")
@example(b'{"c":1}', "a")
@example(b'{"a":1}', "a")
@example(b'{"a":1 , "a":2,"c":3}', "a")
@example(b'{"c":1,"a":1,\n"\\u0061" : {"a":[]} , "c":2 , "a":null }', "a")
@example(b'{"b":{"a":1},"c":["a"]}', "a")
@example(b'{"c":1e400,"a":"\\ud83d\\ude00","b":%b}' % (b"9" * 400), "a")
def test_every_reader_finds_the_new_value_and_the_others_as_they_were(body: bytes, name: str) -> None:
    others = [item for item in pairs(body) if item[0] != name]
    for grammar in (WHOLE, CUT) if len(body) < 400 else (WHOLE,):
        try:
            found = pairs(run(set_in_pieces(body, name, b'{"x":7}', grammar))[0])
        except ValueError:  # blanks or numbers longer than a piece of `CUT`
            assert grammar is CUT
            continue
        assert [item for item in found if item[0] != name] == others
        assert [value for key, value in found if key == name] == [{"x": "7"}]
    at_once = pairs(set_at_once(body, name, b'{"x":7}'))
    assert sorted(at_once, key=repr) == sorted((dict(others) | {name: {"x": "7"}}).items(), key=repr)


@pytest.mark.parametrize(
    "body",
    [b'{"a":1,"c":[%b0]}' % (b'"word",' * 100_000), b'{%b"c":0}' % (b'"a":1,' * 50_000)],
    ids=["large", "repeated"],
)
def test_a_large_body_is_edited_in_small_pieces(body: bytes) -> None:
    edited, pieces = run(set_in_pieces(body, "a", b"2", WHOLE))
    assert json.loads(edited) == {**json.loads(body), "a": 2}
    assert edited.count(b'"a"') == 1
    assert pieces > len(body) / 2**14


def test_what_is_nested_too_deeply_to_be_followed_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        set_at_once(b'{"a":1,"z":%b%b}' % (b"[" * 1000, b"]" * 1000), "a", b"2")
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_what_is_not_set_stays_byte_for_byte() -> None:
    body = b'{ "\\u0061" : [1 , 2] , "b" : 1.50 , "\\u0061":3 }'
    assert run(set_in_pieces(body, "a", b"0", WHOLE))[0] == b'{ "a":0 , "b" : 1.50  }'
