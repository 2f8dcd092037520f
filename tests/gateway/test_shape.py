"""A 200 is worth what its body is: a server that speaks of something else does not serve the request, another does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest

from tests import fake_behaviours
from tests.fake_exchange import ANSWER, DONE, JSON, ROLE, SSE, STREAM, WORDS, Exchange, error_body
from tests.gateway.drive import ask, chat, edge

Behaviour = Callable[[Exchange], Awaitable[None]]


def body(value: Any) -> Behaviour:
    async def answer(x: Exchange) -> None:
        await x.whole(200, orjson.dumps(value))

    return answer


def events(*pieces: bytes) -> Behaviour:
    async def answer(x: Exchange) -> None:
        await x.head(200, SSE)
        await x.events(*pieces)
        await x.end()

    return answer


WHOLE = [
    {"hello": 1},
    {},
    [],
    "text",
    1,
    None,
    {"choices": []},
    {"choices": None},
    {"choices": {"0": {}}},
    {"choices": [None]},
    {"choices": [{"index": 0}]},
    {"choices": [{"message": "text"}]},
    {"error": {"message": "out of luck", "code": 500}},
    {"error": {"message": "slow down", "code": 429}},
]
EVENTS = [
    [b'data: {"hello":1}\n\n', DONE],
    [b"data: []\n\n", DONE],
    [b"data: 1\n\n", DONE],
    [b'data: {"choices":{}}\n\n', DONE],
    [b'data: {"hello":1}\n\n'] * 3,
    [DONE],
]


def scripted(monkeypatch: pytest.MonkeyPatch, answer: Behaviour) -> None:
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", answer)
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "well", fake_behaviours.ok)


@pytest.mark.parametrize("value", WHOLE)
async def test_what_is_no_completion_is_a_failure_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    scripted(monkeypatch, body(value))
    async with edge(tmp_path) as e:
        e.far.overrides["ok"] = "well"
        reply = await ask(e.app, chat("ok"))
        assert (reply.status, reply.body) == (200, ANSWER)
        assert e.lines.requests[0]["failures"][0].startswith("near-1: ")


@pytest.mark.parametrize("pieces", EVENTS)
async def test_events_that_are_no_chunks_are_a_failure_of_their_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    scripted(monkeypatch, events(*pieces))
    async with edge(tmp_path) as e:
        e.far.overrides["ok"] = "well"
        reply = await ask(e.app, chat("ok", stream=True))
        assert (reply.status, reply.body) == (200, STREAM)
        assert e.lines.requests[0]["failures"][0].startswith("near-1: ")


@pytest.mark.parametrize(
    ("stream", "answer"), [(True, body(orjson.loads(ANSWER))), (False, events(ROLE, *WORDS, DONE))]
)
async def test_an_answer_of_the_other_kind_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, answer: Behaviour
) -> None:
    scripted(monkeypatch, answer)
    async with edge(tmp_path) as e:
        e.far.overrides["ok"] = "well"
        reply = await ask(e.app, chat("ok", stream=stream))
        assert (reply.status, reply.body) == (200, STREAM if stream else ANSWER)


async def test_where_all_nodes_speak_of_something_else_the_client_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, body({"hello": 1}))
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"))
        assert (reply.status, reply.error["code"]) == (502, "upstream_malformed")
        assert e.lines.requests[0]["failures"] == ["near-1: malformed", "far-1: malformed"]
        for _ in range(8):
            await ask(e.app, chat("ok"))
        assert {node.breaker.state(monotonic()) for node in e.fleet.nodes} == {"open"}


async def test_a_refusal_with_status_200_gets_its_true_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, body(orjson.loads(error_body("prompt too long", "invalid_request_error", 400))))
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"))
        assert (reply.status, reply.error["message"]) == (400, "prompt too long")
        assert e.far.chats == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/v1/completions", {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}),
        ("/tokenize", {"count": 2, "tokens": [1, 2]}),
        ("/detokenize", {"prompt": "a"}),
    ],
)
async def test_the_other_paths_have_answers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: Any
) -> None:
    scripted(monkeypatch, body(value))
    async with edge(tmp_path) as e:
        assert (await ask(e.app, {"model": "ok", "prompt": "a"}, path=path)).json == value


async def test_what_servers_send_before_content_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure's filter results come in a chunk without choices, others tell of their progress."""
    told = [b'data: {"choices":[],"prompt_filter_results":[]}\n\n', b'data: {"progress":0.5}\n\n']
    scripted(monkeypatch, events(*told, ROLE, *WORDS, DONE))
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok", stream=True))
        assert reply.body == b"".join([*told, ROLE, *WORDS, DONE])
        assert e.far.chats == []


async def test_a_node_says_once_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def overloaded(x: Exchange) -> None:
        await x.whole(503, b"", [*JSON, (b"retry-after", b"9")])

    scripted(monkeypatch, overloaded)
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"))
        assert [value for name, value in reply.headers if name == b"retry-after"] == [b"9"]
