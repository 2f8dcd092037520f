"""Who asks finds the ledger beside the usage; who may not, or could not find it there, is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from edgeproxy.gateway.account import Call
from edgeproxy.gateway.answer import Answer
from edgeproxy.gateway.timings import MEMBER, Timings
from edgeproxy.protocol.openai.sse import SseParser
from edgeproxy.routing.budget import Ledger
from tests.gateway.drive import ask, chat, edge

ASKED = {"x-edge-timings": "usage"}
COUNTED = {"include_usage": True}


def terms(record: dict[str, Any]) -> dict[str, float]:
    """Of a log line, as the answer tells them: rounded to a thousandth of a millisecond."""
    found = {name: record["first_token_s" if name == "total" else f"{name}_s"] for name in Ledger._fields}
    found |= {"wait": record["wait_s"], "budget": record["budget_s"]}
    return {f"{name}_ms": round(seconds * 1e3, 3) for name, seconds in found.items() if seconds is not None}


async def test_a_stream_tells_them_with_its_usage_as_the_log_does(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok", stream=True, stream_options=COUNTED), headers=ASKED, client_rtt_s=0.025)
        told = [event[MEMBER] for event in reply.events() if event != "[DONE]" and MEMBER in event]
        (record,) = e.lines.requests
        assert told == [terms(record)]
        assert {"client_ms", "relay_ms", "total_ms", "wait_ms"} <= set(told[0])


async def test_a_whole_answer_tells_them_too(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), headers=ASKED)
        (record,) = e.lines.requests
        assert reply.json[MEMBER] == terms(record)
        assert dict(reply.headers)[b"content-length"] == b"%d" % len(reply.body)


async def test_nobody_else_finds_them(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for stream in (False, True):
            reply = await ask(e.app, chat("ok", stream=stream, stream_options=COUNTED))
            assert MEMBER.encode() not in reply.body


@pytest.mark.parametrize(
    ("value", "client", "more", "status"),
    [
        ("yes", "127.0.0.1", {}, 400),
        ("usage", "192.0.2.7", {}, 403),
        ("usage", "127.0.0.1", {"stream": True}, 400),
        ("usage", "127.0.0.1", {"stream": True, "stream_options": {"include_usage": False}}, 400),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    tmp_path: Path, value: str, client: str, more: dict[str, Any], status: int
) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok") | more, headers={"x-edge-timings": value}, client=client)
        assert (reply.status, reply.error["param"]) == (status, "x-edge-timings")


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 1}}, True),
        ({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}, True),
        ({"choices": [{"finish_reason": None}], "usage": {"prompt_tokens": 1}}, False),
        ({"choices": [], "usage": None}, False),
        ({"choices": 3, "usage": {"prompt_tokens": 1}}, False),
        ({"choices": [{"delta": {"content": '"usage"'}}]}, False),
        ([{"usage": 1}], False),
    ],
)
async def test_only_the_last_count_of_a_stream_has_them(chunk: object, told: bool) -> None:
    async def send(message: object) -> None: ...

    call = Call(b"r", 0.0, "h1", None)
    (event,) = SseParser().feed(b"data: " + orjson.dumps(chunk) + b"\r\n\r\n")
    found = Timings(call, Answer(send, b"r")).in_event(event)
    assert (found is not event) == told
    if told:
        (again,) = SseParser().feed(found.raw)
        assert isinstance(chunk, dict)
        value = orjson.loads(again.data)
        assert value.pop(MEMBER) and value == chunk
