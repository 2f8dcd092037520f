"""Where the operator allows it, a foreign node goes on with a stream from its text; the client is told, and sees one
stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.gateway.continuation import Said
from edgeproxy.protocol.openai.sse import Event
from tests import fake_behaviours
from tests.fake_exchange import DONE, ROLE, SSE, WORDS, Exchange, chunk
from tests.gateway.drive import Edge, ask, chat, edge

MORE = [
    chunk({"role": "assistant", "content": ""}, id="other", created=9),
    chunk({"content": "!"}, id="other", created=9),
    chunk({}, "stop", id="other", created=9),
    chunk({}, id="other", created=9, usage={"prompt_tokens": 20, "completion_tokens": 1}, choices=[]),
    DONE,
]


NAMES = st.sampled_from(["choices", "delta", "usage", "content", "index", "id"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)


@asynccontextmanager
async def allowed(folder: Path, monkeypatch: pytest.MonkeyPatch, *, kind: Any = "vllm") -> AsyncIterator[Edge]:
    """The near node dies after three words; the far one may go on."""

    async def answer(x: Exchange) -> None:
        await x.head(200, SSE)
        if x.node is e.near:
            await x.events(ROLE, *WORDS)
        else:
            await x.events(*MORE)
            await x.end()

    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", answer)
    async with edge(folder) as e:
        for node in e.fleet.nodes:
            node.config = replace(node.config, kind=kind, continue_final_message=node.region == "far")
        e.fleet.replace(e.fleet.nodes)
        yield e


async def test_the_client_sees_one_stream_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with allowed(tmp_path, monkeypatch) as e:
        reply = await ask(e.app, chat("ok", stream=True, max_tokens=50, stream_options={"include_usage": True}))
        *chunks, done = reply.events()
        assert done == "[DONE]"
        assert {(found["id"], found["created"]) for found in chunks} == {("chatcmpl-1", 1)}
        choices = [choice for found in chunks for choice in found["choices"]]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Hello, wörld 🌍!"
        assert [choice["delta"] for choice in choices if "role" in choice["delta"]] == [
            {"role": "assistant", "content": ""}
        ]
        assert chunks[-1]["usage"] == {"prompt_tokens": 17, "completion_tokens": 4}
        assert b"\n: another node goes on" in reply.body
        sent = e.far.chats[0].json
        assert sent["messages"][-1] == {"role": "assistant", "content": "Hello, wörld 🌍"}
        assert (sent["continue_final_message"], sent["add_generation_prompt"], sent["max_tokens"]) == (True, False, 47)
        assert e.lines.requests[0]["resumes"] == 1
        assert e.in_flight == 0


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_what_must_be_of_one_piece_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    async with allowed(tmp_path, monkeypatch) as e:
        reply = await ask(e.app, chat("ok", stream=True, **more))
        assert reply.events()[-1]["error"]["code"] == "upstream_failed"
        assert b"[DONE]" not in reply.body
        assert e.far.chats == []


async def test_without_the_operators_word_nobody_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with allowed(tmp_path, monkeypatch) as e:
        for node in e.fleet.nodes:
            node.config = replace(node.config, continue_final_message=False)
        e.fleet.replace(e.fleet.nodes)
        reply = await ask(e.app, chat("ok", stream=True))
        assert reply.events()[-1]["error"]["code"] == "upstream_failed"
        assert e.far.chats == []


def test_tool_calls_and_second_choices_make_a_text_no_base() -> None:
    body = orjson.dumps(chat("ok"))
    for odd in (
        chunk({"tool_calls": [{"index": 0}]}),
        chunk({"content": "x"}).replace(b'"index":0', b'"index":1'),
        b"data: 7\n\n",
    ):
        said = Said()
        for raw in (ROLE, WORDS[0], odd):
            said.add(Event(raw[6:-2], raw))
        assert said.request(body) is None


def said() -> Said:
    found = Said()
    for raw in (ROLE, *WORDS):
        found.add(Event(raw[6:-2], raw))
    return found


@pytest.mark.parametrize("messages", [b"[ ]", b'[{"role":"user","content":1e400}\n]'])
def test_a_request_is_continued_as_it_was_written(messages: bytes) -> None:
    odd = b'"z":1e400,"y":%b,"x":%b%b' % (b"9" * 400, b"[" * 500, b"]" * 500)
    found = said().request(b'{"model":"ok","messages":%b,%b,"n":1,"tools":[],"max_tokens":50}' % (messages, odd))
    assert found is not None and odd in found
    assert b'{"role":"assistant","content":"Hello, ' in found and b'"max_tokens":47' in found
    assert messages[:-1].rstrip() in found and b"[," not in found


def test_a_prompt_or_a_limit_that_is_none_is_no_fault() -> None:
    assert said().request(b'{"model":"ok","prompt":"Once"}') is None
    assert said().request(b'{"model":"ok","messages":null}') is None
    assert said().request(b'{"model":"ok","messages":[],"z":%b%b}' % (b"[" * 1000, b"]" * 1000)) is None
    digits = b"9" * 5000
    found = said().request(b'{"model":"ok","messages":[],"max_tokens":%b}' % digits)
    assert found is not None and digits in found


@given(VALUES)
def test_no_event_is_a_fault(value: object) -> None:
    data = orjson.dumps(value)
    said = Said()
    event = Event(data, b"data: " + data + b"\n\n")
    said.add(event)
    assert isinstance(said.rename(event, 3), bytes)
