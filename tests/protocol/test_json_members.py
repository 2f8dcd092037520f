"""What is found in a large body piece by piece is what a parser finds that takes it whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from edgeproxy.protocol.json_members import MAX_DEPTH, MAX_ELEMENTS, STEP, Grammar, Malformed, Member

NAMES = frozenset({"a", "b", "messages"})
WHOLE = Grammar(NAMES)
CUT = Grammar(NAMES, step=48)
"""Cuts nearly everything that is longer than a few words."""
LONGEST = 12
"""Bytes of names, numbers and blanks in what the tests make: short enough for `CUT`."""


def read(body: bytes, grammar: Grammar = WHOLE) -> tuple[dict[str, Member], int]:
    """What was found, and in how many pieces."""
    reading, pieces = grammar.members(body), 1
    while True:
        try:
            next(reading)
        except StopIteration as end:
            found: dict[str, Member] = end.value
            return found, pieces
        pieces += 1


def values(body: bytes, grammar: Grammar = WHOLE) -> dict[str, Any] | None:
    """None where it is refused."""
    try:
        found, _ = read(body, grammar)
    except Malformed:
        return None
    return {name: orjson.loads(body[member.value : member.end]) for name, member in found.items()}


def oracle(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "parsed as double" in str(error):  # a number out of range is no fault of the text
            reject()
        return None
    if not isinstance(value, dict):
        return None
    return {name: value[name] for name in NAMES & value.keys()}


ODD = [
    b"", b" ", b"[]", b"1", b"null", b'"a"', b"{", b"{}", b" \n\t\r{ } ", b"{,}", b"{a:1}", b"{'a':1}", b"\x00{}",
    b"\x0c{}", b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16"), b'{"a":1}{"b":1}', b'{"a":1} x', b'{"a":1}\x00',
    b'{"a":1,}', b'{"a" 1}', b'{"a":}', b'{"a":', b'{"a"', b'{"a":[1,]}', b'{"a":[,1]}', b'{"a":[1 2]}', b'{"a":[}',
    b'{"a":[1}}', b'{"a":{]}', b'{"a":tru}', b'{"a":truex}', b'{"a":nul}', b'{"a":True}', b'{"a":NaN}',
    b'{"a":-Infinity}', b'{"a":/**/1}', b'{"a":\xa01}', b'{"a":01}', b'{"a":-}', b'{"a":-01}', b'{"a":1.}',
    b'{"a":.5}', b'{"a":1e}', b'{"a":+1}', b'{"a":0x10}', b'{"a":1_0}', b'{"a":1e5,"b":-0.0}', b'{"a":1E+5}',
    b'{"a":123456789012345678901234567890}', b'{"a":-0}', b'{"a":"\\q"}', b'{"a":"\\u00"}', b'{"a":"\\u00g0"}',
    b'{"a":"\\u0000"}', b'{"a":"\\/"}', b'{"a":"\\', b'{"a":"abc', b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}',
    b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\ud83d\\u0041"}', b'{"\\ud800":1}', b'{"a":"\x01"}', b'{"a":"\t"}',
    b'{"a":"\x7f"}', b'{"\n":1}', b'{"a":"\xff"}', b'{"\xff":1}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\x80"}',
    b'{"a":"\xf4\x90\x80\x80"}', b'{"a":"\xe2\x82"}', b'{"c":"\xe2\x82\xac"}', b'{"c":"\xe2\x82', b'{"\\u0061":1}',
    b'{"a":1,"\\u0061":2}', b'{"a":1,"a":2,"c":3,"a":[]}', b'{"c":{"a":1}}', b'{"c":["a",1,{"a":{"b":2}}],"b":3}',
    b'{"a\\"":1,"a":2}', b'{"aa":1,"":2}', b'{"x":"\\"a\\":1","a":2}',
]  # fmt: skip


@pytest.mark.parametrize("body", ODD)
@pytest.mark.parametrize("grammar", [WHOLE, CUT], ids=["whole", "cut"])
def test_odd_bodies_are_judged_as_by_a_parser(body: bytes, grammar: Grammar) -> None:
    assert values(body, grammar) == oracle(body)


def test_odd_bodies_are_judged_alike_wherever_a_piece_ends() -> None:
    for body in ODD:
        if not body.startswith(b"{"):
            continue
        expected = oracle(body)
        for pad in range(30, 52):
            padded = b'{"c":"%b",%b' % (b"x" * pad, body[1:]) if body != b"{}" else body
            assert values(padded, CUT) == (oracle(padded) if expected is None else expected), padded


BLANKS = [b"", b"", b"", b" ", b"\n  "]
TEXTS = st.text(st.sampled_from('ab"\\/é€😀\n\x00 ,:{}[]') | st.characters(codec="utf-8"), max_size=60)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**LONGEST), 10**LONGEST)
    | st.floats(width=16, allow_nan=False, allow_infinity=False)
    | TEXTS
)
KEYS = st.sampled_from(["a", "b", "messages", "c", "", "é", 'a"'])


def written(value: object, chance: Random) -> bytes:
    """As JSON, with blanks and escapes as chance will have them."""

    def blank() -> bytes:
        return chance.choice(BLANKS)

    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode()
    if isinstance(value, list):
        return b"[" + blank() + b",".join(blank() + written(item, chance) + blank() for item in value) + b"]"
    if isinstance(value, dict):
        pairs = (
            blank() + written(name, chance) + blank() + b":" + blank() + written(item, chance)
            for name, item in value.items()
        )
        return b"{" + blank() + b",".join(pairs) + blank() + b"}"
    return orjson.dumps(value)


VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
BODIES = st.builds(written, st.dictionaries(KEYS, VALUES, max_size=6), st.integers(0, 2**32).map(Random))
MARKS = [b"", b",", b'"', b"\\", b"]", b"}", b"[", b"{", b":", b"0", b"-", b"e", b" ", b"\xff", b"\n", b"t"]


def damaged(body: bytes, chance: Random) -> bytes:
    at = chance.randint(0, len(body))
    return body[:at] + chance.choice(MARKS) + body[at + chance.randint(0, 2) :]


@settings(max_examples=80, deadline=None)
@given(BODIES)
def test_any_object_is_found_as_a_parser_finds_it(body: bytes) -> None:
    assert values(body) == values(body, CUT) == oracle(body)


@settings(max_examples=120, deadline=None)
@given(st.builds(damaged, BODIES, st.integers(0, 2**32).map(Random)))
def test_damaged_text_is_judged_as_by_a_parser(body: bytes) -> None:
    expected = oracle(body)
    assert values(body) == expected
    assert values(body, CUT) == expected


def test_offsets_are_those_of_the_last_member_of_a_name() -> None:
    body = b'{ "a" : 1 , "c":2, "\\u0061": [ 3 ] }'
    found, _ = read(body)
    member = found["a"]
    assert body[member.key : member.end] == b'"\\u0061": [ 3 ]'
    assert body[member.value : member.end] == b"[ 3 ]"
    assert member.times == 2


TEXT = b'{"messages":["%b"]}'
LARGE = {
    "one text": TEXT % (b"word and " * 40_000),
    "escapes": TEXT % (b'\\"\\n\\ud83d\\ude00' * 20_000),
    "not ASCII": TEXT % ("wärd 😀 ".encode() * 30_000),
    "messages": b'{"messages":[%b]}' % b",".join([b'{"role":"user","content":[{"type":"text","text":"hi"}]}'] * 6000),
    "pretty": b'{"messages":[\n%b\n]}'
    % b",\n".join([b'    {\n        "role": "user",\n        "content": ""\n    }'] * 5000),
    "brackets": b'{"messages":[%b[]]}' % (b"[]," * 100_000),
    "deep": b'{"messages":[%b[]]}' % (b"[[[[[[]]]]]]," * 10_000),
    "tokens": b'{"messages":[%b0]}' % (b"12345," * 50_000),
    "others": b'{%b"a":1}' % (b'"c":1,' * 50_000),
    "escaped names": b'{%b"a":1}' % (b'"\\u0063":1,' * 20_000),
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_bodies_are_read_in_small_pieces(kind: str) -> None:
    body = LARGE[kind]
    found, pieces = read(body)
    assert {name: orjson.loads(body[m.value : m.end]) for name, m in found.items()} == oracle(body)
    texts = kind in ("one text", "not ASCII", "escapes")  # eight times as fast
    assert pieces >= len(body) / STEP * (1 / 4 if texts else 1 + 1 / 8)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_what_is_nested_too_deeply_is_refused(opening: bytes) -> None:
    with pytest.raises(Malformed, match="levels"):
        read(b'{"c":' + opening * MAX_DEPTH)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b'{"a":' + b" " * 2 * STEP + b"1}", "blanks"),
        (b'{"a":' + b"1" * 2 * STEP + b"}", "number"),
        (b'{"' + b"a" * 2 * STEP + b'":1}', "name"),
    ],
    ids=["blanks", "digits", "name"],
)
def test_what_nobody_writes_is_bounded(body: bytes, cause: str) -> None:
    with pytest.raises(Malformed, match=cause):
        read(body)


MOST = 2**12
FULL = {
    "flat": b"[%b[]]" % (b"[]," * (MOST - 3)),
    "in lists": b"[%b0]" % (b"[[]]," * (MOST // 2 - 2)),
    "deep": b"[%b0]" % (b"[[[[[[[[]]]]]]]]," * (MOST // 8 - 1)),
    "objects": b"[%b0]" % (b'{"a":[{}]},' * ((MOST - 3) // 3)),
    "names": b"{%b}" % b",".join(b'"%x":{}' % n for n in range(MOST - 2)),
    "pretty": b"[%b0]" % (b'{\n  "[": [\n    "{"\n  ]\n},\n' * (MOST // 2 - 2)),
}
"""As many lists and objects as may be there, or a few less."""


@pytest.mark.parametrize("kind", FULL)
def test_lists_and_objects_are_bounded_however_they_stand(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeproxy.protocol.json_members.MAX_ELEMENTS", MOST)
    body = b'{"a":%b}' % FULL[kind]
    assert read(body)[0]["a"].end == len(body) - 1
    with pytest.raises(Malformed, match="lists and objects"):
        read(b'{"c":[[[[[[[[[]]]]]]]]],"a":%b}' % FULL[kind])


@pytest.mark.parametrize(
    "members",
    [
        lambda count: b'{"a":{%b}}' % b",".join(b'"%x":1' % n for n in range(count - 1)),
        lambda count: b"{%b}" % b",".join([b'"b:":":"'] * (count - 1) + [b'"a":0']),
        lambda count: b'{"a":[%b0]}' % (b'{"x" : {"y":":"}},' * ((count - 1) // 2)),
        lambda count: b'{"a":[%b0]}' % (b'{"a":{"a":{"a":{"a":{}}}}},' * ((count - 1) // 4)),
    ],
    ids=["one object", "outermost", "objects", "deep"],
)
def test_names_are_bounded_wherever_they_stand(
    members: Callable[[int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeproxy.protocol.json_members.MAX_NAMES", MOST)
    assert "a" in read(members(MOST))[0]
    with pytest.raises(Malformed, match="members"):
        read(members(MOST + 10))


CODE = orjson.dumps('if (a[0] == "}") { b[1] = {"c": [\\"]\\"]}; }\n')


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[%b0]}' % (b'{"role":"user","content":[{"type":"text","text":%b}]},' % CODE * 30_000),
        b'{"a":[%b0]}' % (b"%b," % CODE * 50_000),
        b'{"a":[%b0]}' % (b'"%b",' % (b"[{" * 40_000) * 20),
        b'{"a":{%b"":0}}' % (b"%b:0," % CODE * 50_000),
    ],
    ids=["messages", "texts", "long texts", "names"],
)
def test_brackets_within_strings_do_not_count(body: bytes) -> None:
    assert body.count(b"{") + body.count(b"[") > MAX_ELEMENTS
    found, pieces = read(body)
    assert found["a"].end == len(body) - 1
    assert pieces >= len(body) / STEP / 8


def test_faults_are_told_by_their_place_and_not_quoted() -> None:
    for body in ODD:
        try:
            read(body.replace(b"abc", b"secret"))
        except Malformed as fault:
            assert "byte" in str(fault)
            assert "secret" not in str(fault)
