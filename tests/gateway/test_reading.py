"""A body is read at once or in pieces, and says the same either way: what a parser finds that makes all of it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeproxy.gateway.admit import read_chat
from edgeproxy.gateway.bodies import Bodies
from edgeproxy.gateway.reading import AT_ONCE_BYTES, REFUSED, ChatRequest, careful, usual
from edgeproxy.protocol.json_members import STEP
from edgeproxy.protocol.openai.checks import boolean, integer, required, text
from edgeproxy.protocol.openai.errors import ApiError
from tests.protocol.test_json_members import ODD, damaged, written

Verdict = tuple[str | None, str | None]
"""`param` and `code` of a refusal."""


def in_pieces(body: bytes) -> ChatRequest:
    pieces = careful(body)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            found: ChatRequest = end.value
            return found


def verdict(error: ApiError) -> Verdict:
    assert error.status == 400
    return error.param, error.code


def told(body: bytes) -> dict[str, Any] | Verdict:
    """What is found of it, by both ways."""
    at_once = usual(body)
    try:
        found = in_pieces(body)
    except ApiError as error:
        assert at_once is None, "both refuse it, or none"
        return verdict(error)
    assert at_once in (None, found)
    seen = {name: getattr(found, name) for name in ChatRequest.__struct_fields__}
    return seen | {"body": _loads(found.body), "prompt": _loads(found.prompt)}


def oracle(body: bytes) -> dict[str, Any] | Verdict:
    """Everything made, and then looked at."""
    value = _loads(body)
    if not isinstance(value, dict):
        return None, "invalid_json"
    present = {name: item for name, item in value.items() if item is not None}
    try:
        found = {"model": text(required(present, "model"), "model", len(body)), "stream": boolean(present, "stream")}
        for name in REFUSED:
            if name in present:
                return name, "unsupported_parameter"
        priority = integer(present, "priority", -1000, 1000)
    except ApiError as error:
        return verdict(error)
    chat, tools = present.get("messages"), present.get("tools")
    options = present.get("stream_options")
    sessions = [present.get(name) for name in ("prompt_cache_key", "user")]
    session = next((found for found in sessions if isinstance(found, str) and found), None)
    return found | {
        "body": {name: item for name, item in value.items() if name != "priority"},
        "priority": priority,
        "prompt": present.get("prompt", present.get("tokens", b"")) if chat is None else chat if tools is None else b"",
        "session": None if session is None else session.encode(),
        "counted": isinstance(options, dict) and options.get("include_usage") is True,
        "messages": orjson.dumps(chat).count(b'"role"'),
        "tools": b"{" in orjson.dumps(tools),
    }


def _loads(text: bytes) -> Any:
    """The text, where it is no JSON or no single value."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


OBJECTS = st.dictionaries(st.sampled_from(["type", "content"]), st.text(max_size=8), max_size=2)
ANYTHING = st.none() | st.booleans() | st.integers(-3, 3) | st.just(1.5) | st.text(max_size=4) | st.just([1]) | OBJECTS
MESSAGES: st.SearchStrategy[list[dict[str, str]]] = st.lists(
    st.builds(dict, role=st.sampled_from(["user", "system"]), content=st.text(max_size=20)), max_size=3
)
MEMBERS = {
    "model": st.just("m") | st.just("m") | st.just("m") | ANYTHING,
    "messages": MESSAGES | MESSAGES | ANYTHING,
    "prompt": ANYTHING,
    "tokens": ANYTHING,
    "tools": st.lists(OBJECTS, max_size=2) | ANYTHING,
    "stream": st.booleans() | ANYTHING,
    "stream_options": st.just({"include_usage": True}) | ANYTHING,
    "priority": st.none() | st.integers(-1001, 1001) | ANYTHING,
    "user": ANYTHING,
    "prompt_cache_key": ANYTHING,
    "cache_salt": st.none() | st.none() | ANYTHING,
    "resume": st.none() | st.none() | ANYTHING,
    "temperature": ANYTHING,
}
MOST = st.fixed_dictionaries(
    {"model": MEMBERS["model"]}, optional={name: member for name, member in MEMBERS.items() if name != "model"}
)
FEW = st.fixed_dictionaries({"model": st.just("m"), "messages": MESSAGES}).flatmap(
    lambda base: st.sampled_from(sorted(MEMBERS)).flatmap(
        lambda name: MEMBERS[name].map(lambda value: {**base, name: value})
    )
)
CHANCE = st.integers(0, 2**32).map(Random)


@settings(max_examples=150, deadline=None)
@given(st.builds(written, MOST | FEW, CHANCE))
@example(b'{"model":7,"model":"m"}')
@example(b'{"cache_salt":"x","model":"m","cache_salt":null}')
@example(b'{"cache_salt":null,"model":"m","cache_s\\u0061lt":"x"}')
@example(b'{"model":"m","stream_options":{"include_usage":1}}')
@example(b'{"model":"m","stream_options":{"include_usage":true,"x":[]}}')
@example(b'{"model":"m","priority":5}')
@example(b'{ "priority" : 5 , "model":"m"}')
@example(b'{"model":"m","messages":{"role":"x"},"tools":null}')
def test_whatever_a_body_says_is_found_either_way(body: bytes) -> None:
    expected, found = oracle(body), told(body)
    if isinstance(expected, dict) and isinstance(found, dict) and expected["prompt"] == b"":
        expected |= {"prompt": found["prompt"]}
    assert found == expected


@settings(max_examples=150, deadline=None)
@given(st.builds(damaged, st.builds(written, FEW, CHANCE), CHANCE))
def test_damaged_bodies_are_judged_alike(body: bytes) -> None:
    assert isinstance(told(body), tuple) == isinstance(oracle(body), tuple)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_no_bytes_are_a_fault(body: bytes) -> None:
    assert told(body) == oracle(body)


@pytest.mark.parametrize("body", ODD)
def test_odd_texts_are_judged_alike(body: bytes) -> None:
    body = body.replace(b"{", b'{"model":"m",', 1) if body[:2] != b"{}" and body[:1] == b"{" else body
    assert isinstance(told(body), tuple) == isinstance(oracle(body), tuple)


def parsed(**fields: Any) -> ChatRequest:
    found = usual(orjson.dumps({"model": "m", **fields}))
    assert found is not None
    return found


def test_a_prompt_decides_where_a_request_goes_as_messages_do() -> None:
    assert parsed(prompt="Once upon a time").prompt == b'"Once upon a time"'
    assert parsed(tokens=[1, 2]).prompt == b"[1,2]"
    assert parsed(messages=[1], tools=[2]).prompt == b"[2][1]"
    assert parsed(messages=[1], prompt="x").prompt == b"[1]"
    assert parsed().prompt == b""


def test_messages_are_counted_and_what_they_quote_is_not() -> None:
    messages = [{"role": "user", "content": '{"role": "user"}'}, {"content": "hi", "role": "user"}]
    assert parsed(messages=messages).messages == 2
    many = orjson.dumps({"model": "m", "messages": messages * 5000})
    assert len(many) > AT_ONCE_BYTES
    assert usual(many) is None
    assert in_pieces(many).messages == 10_000


@pytest.mark.parametrize("name", ["messages", "prompt", "x"])
def test_a_body_nested_too_deeply_is_refused(name: str) -> None:
    body = b'{"model":"m","%b":%b%b}' % (name.encode(), b"[" * 5000, b"]" * 5000)
    assert told(body) == (None, "invalid_json")


def test_a_number_out_of_range_is_wrong_where_it_counts() -> None:
    assert told(b'{"model":"m","priority":1e999}') == ("priority", "invalid_type")
    assert told(b'{"model":-1e999}') == ("model", "invalid_type")
    found = usual(b'{"model":"m","temperature":1e999}')
    assert found is not None, "the node's to judge"


def test_a_priority_stands_there_once() -> None:
    """It is taken out: tenants may have it only as far as they are allowed to."""
    found = in_pieces(b'{"model":"m", "prior\\u0069ty": 7 ,"messages":[]}')
    assert (found.priority, found.body) == (7, b'{"model":"m", "messages":[]}')
    assert told(b'{"model":"m","priority":7,"priority":7}') == ("priority", "invalid_value")


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {f"p{n}": {"enum": ["a"]} for n in range(30)}}},
}
PART = [{"type": "text", "text": 'x[0] = {"[": []}'}]


@pytest.mark.parametrize(
    ("messages", "tools"),
    [([{"role": "user", "content": PART}] * 20_000, None), ([{"role": "user", "content": "hi"}], [TOOL] * 900)],
    ids=["20,000 messages", "900 tools"],
)
def test_what_agents_send_is_not_too_much(messages: list[Any], tools: list[Any] | None) -> None:
    found = in_pieces(orjson.dumps({"model": "m", "messages": messages, "tools": tools}))
    assert (found.messages, found.tools) == (len(messages), tools is not None)


def test_of_a_very_long_name_only_the_beginning_is_read() -> None:
    body = orjson.dumps({"user": "x" * 2 * AT_ONCE_BYTES, "model": "m" * 2 * AT_ONCE_BYTES})
    found = in_pieces(body)
    assert found.session == b"x" * (AT_ONCE_BYTES - 1)
    assert len(found.model) < AT_ONCE_BYTES


async def test_others_have_their_turn_while_large_bodies_are_read() -> None:
    """Of all of them together, a piece in each turn of the loop."""
    body = orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}] * 20_000}
    )
    bodies = Bodies(2**30)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def one() -> ChatRequest:
        return await read_chat({b"content-type": b"application/json"}, receive, 2**30, bodies.room("x"))

    reading = [asyncio.ensure_future(one()) for _ in range(3)]
    turns = 0
    while not all(task.done() for task in reading):
        await asyncio.sleep(0)
        turns += 1
    assert [task.result().messages for task in reading] == [20_000] * 3
    assert turns >= 3 * len(body) / STEP, "one piece a turn"
