"""What users of other gateways complained of, replayed. Each test names the property; the issue is cited in its place.

Covered elsewhere, by the same properties:
    test_watch.py     litellm#13774, #37140, #31499: a client's leaving did not stop the node
    test_relay.py     litellm#4419, #14670: traceparent lost; #21553, aisix#144: Retry-After lost; sglang#25811: 4xx
                      opened the breaker; litellm#29557: buffered behind nginx; aisix#111: UTF-8 split over chunks
    test_account.py   litellm#7603, #13073, semantic-router#2132: keys in logs
    test_answer.py    llama.cpp#24774: no pings
    test_resume.py    bifrost#5395, litellm#40404: nothing goes on with a stream that has begun
    test_property.py  aisix#177: a break in mid-stream became a 502
    tests/routing     litellm#40202, #3574, #1393, #873, sglang#14532, #32195, llm-d-router#298, dynamo#1056,
                      tailscale#8603: which node is chosen
    tests/wan         production-stack#749: one dead backend hangs everything, across a network
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from time import monotonic

import orjson
import pytest

from edgeproxy.config import GatewayLimits, NodeConfig
from edgeproxy.upstream.h1 import Pool
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.probe import Prober
from tests import fake_behaviours, fake_exchange
from tests.fake_exchange import ANSWER, DONE, ROLE, SSE, STREAM, chunk
from tests.fake_native import Native
from tests.fake_node import FakeNode
from tests.gateway.drive import Edge, ask, begin, chat, edge

Behaviour = Callable[[fake_exchange.Exchange], Awaitable[None]]
HASTY = GatewayLimits(first_byte_s=0.1, stall_s=0.1)


def shows(monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour) -> None:
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", behaviour)


def both(e: Edge, behaviour: str) -> None:
    e.near.overrides["ok"] = e.far.overrides["ok"] = behaviour


async def test_when_the_nodes_are_well_again_so_are_the_answers(tmp_path: Path) -> None:
    """litellm#30192: 408s until a restart, though the backend had recovered; LLMKube#453: quarantined for ever."""
    async with edge(tmp_path, HASTY) as e:
        both(e, "nothing")
        assert {(await ask(e.app, chat("ok"))).status for _ in range(2)} <= {502, 503, 504}
        both(e, "ok")
        assert (await ask(e.app, chat("ok"))).body == ANSWER


async def test_when_all_breakers_are_open_requests_still_go_to_the_least_bad(tmp_path: Path) -> None:
    """s3-orchestrator#270: all open, nothing half-opens, deadlock."""
    async with edge(tmp_path) as e:
        both(e, "500")
        for _ in range(6):
            await ask(e.app, chat("ok"))
        assert {node.breaker.state(monotonic()) for node in e.fleet.nodes} == {"open"}
        both(e, "ok")
        assert (await ask(e.app, chat("ok"))).body == ANSWER


async def malformed_event(x: fake_exchange.Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, b"data: {not json\n\n", DONE)
    await x.end()


async def empty_stream(x: fake_exchange.Exchange) -> None:
    await x.head(200, SSE)
    await x.end()


@pytest.mark.parametrize("fault", [malformed_event, empty_stream])
async def test_a_malformed_or_empty_stream_fails_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Behaviour
) -> None:
    """litellm#40404: the fallback was never tried when a stream was cut, stalled or malformed."""
    shows(monkeypatch, fault)
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "well", fake_behaviours.ok)
    async with edge(tmp_path) as e:
        e.far.overrides["ok"] = "well"
        reply = await ask(e.app, chat("ok", stream=True))
        assert (reply.status, reply.body) == (200, STREAM)


async def test_failover_stays_among_the_nodes_of_the_model(tmp_path: Path) -> None:
    """litellm#35578: a fallback in the wrong group."""
    async with edge(tmp_path) as e:
        e.near.overrides["near-only"] = "500"
        assert (await ask(e.app, chat("near-only"))).status == 502
        assert e.far.chats == []


async def test_nodes_that_tell_alike_are_shared_out(tmp_path: Path) -> None:
    """vllm-project/router#198: all loads read as 0, so all went to worker 0."""
    async with edge(tmp_path) as e:
        first, second = e.fleet.nodes
        twin = Node(second.config, first.region, second.pool, second.headers)
        twin.up(0.0)
        e.fleet.replace([first, twin])
        await asyncio.gather(*(ask(e.app, chat("ok")) for _ in range(40)))
        assert min(len(e.near.chats), len(e.far.chats)) >= 8


async def test_a_node_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    """production-stack#749: one dead backend hangs everything."""
    async with edge(tmp_path, GatewayLimits(first_byte_s=60.0)) as e:
        hanging = [begin(e.app, chat("nothing")) for _ in range(20)]
        await e.near.until(lambda: len(e.near.chats) + len(e.far.chats) == 20)
        assert (await ask(e.app, chat("ok"))).body == ANSWER
        for exchange in hanging:
            exchange.leave()
            await exchange.done()
        assert e.in_flight == 0


async def coded_json(x: fake_exchange.Exchange) -> None:
    await x.whole(200, gzip.compress(ANSWER), [*fake_exchange.JSON, (b"content-encoding", b"gzip")])


async def test_a_coded_answer_keeps_the_length_of_its_coded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """litellm#25624: decoded, with the Content-Length of before."""
    shows(monkeypatch, coded_json)
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"))
        assert reply.header(b"content-length") == b"%d" % len(reply.body)
        assert reply.header(b"content-encoding") == b"gzip"
        assert gzip.decompress(reply.body) == ANSWER


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
TOOLS = [
    chunk({"role": "assistant", "content": None}),
    chunk({"tool_calls": [{"index": 0, **CALL}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
    chunk({"tool_calls": [{"index": 1, **CALL, "id": "call_2"}]}),
    chunk({}, "tool_calls"),
    DONE,
]


async def tool_calls(x: fake_exchange.Exchange) -> None:
    await x.head(200, SSE)
    await x.events(*TOOLS)
    await x.end()


async def test_tool_calls_pass_with_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AstrBot#6661, agno#8879, maka#1976: `index` missing, reused or counted from 1."""
    shows(monkeypatch, tool_calls)
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok", stream=True))
        assert reply.body == b"".join(TOOLS)


async def test_a_tool_without_parameters_reaches_the_node(tmp_path: Path) -> None:
    """vllm-project/router#275: strict parsing refused it with 422. What a field may hold is the node's to say."""
    async with edge(tmp_path) as e:
        body = orjson.dumps(chat("ok", tools=[{"type": "function", "function": {"name": "now"}}], unknown={"a": [1]}))
        assert (await ask(e.app, body)).status == 200
        assert e.near.chats[0].body == body


async def test_a_keep_alive_is_no_empty_event(tmp_path: Path) -> None:
    """llmgateway#2334, openai-python#2722: a comment with a blank line after it was read as an empty event."""
    async with edge(tmp_path, GatewayLimits(hold_headers_s=0.02)) as e:
        exchange = begin(e.app, chat("slow", stream=True))
        await exchange.until(lambda seen: b"keep-alive" in seen.body)
        e.near.gate.set()
        await exchange.done()
        comment, _, rest = exchange.body.partition(b"\n")
        assert comment == b": keep-alive"
        assert rest == STREAM


async def test_comments_of_a_node_stay_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mnfst/llm-gateway#2053: re-emitted as data."""

    async def commenting(x: fake_exchange.Exchange) -> None:
        await x.head(200, SSE)
        await x.events(b": PROCESSING\n\n", ROLE, *fake_exchange.WORDS, b": ping\n", fake_exchange.FINISH, DONE)
        await x.end()

    shows(monkeypatch, commenting)
    async with edge(tmp_path) as e:
        events = (await ask(e.app, chat("ok", stream=True))).events()
        assert events[-1] == "[DONE]"
        assert all("choices" in event for event in events[:-1])


async def test_streamed_tokens_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLMKube#1852: streamed usage charged as 0."""
    async with edge(tmp_path) as e:
        shows(monkeypatch, Native(e.near, 1))
        await ask(e.app, chat("ok", stream=True, stream_options={"include_usage": True}))
        assert (e.lines.requests[0]["prompt_tokens"], e.lines.requests[0]["completion_tokens"]) == (7, 11)


@pytest.mark.parametrize("kind", ["native", "vllm", "sglang", "llamacpp", "openai"])
async def test_probes_cost_no_tokens(kind: str) -> None:
    """litellm#13668, #9584, ml-intern#70: health checks through the model, thousands of dollars an hour."""
    async with FakeNode() as fake:
        config = NodeConfig("a", kind, fake.url, ("m",))  # type: ignore[arg-type]  # a literal, out of a list
        node = Node(config, "near", Pool(Origin("http", "127.0.0.1", fake.port), name="a"))
        prober = Prober(Fleet([node]), rng=Random(1))
        for _ in range(3):
            assert await prober.probe(node)
        node.pool.close()
        assert fake.requests
        assert fake.chats == []


async def test_models_of_all_nodes_are_listed_once(tmp_path: Path) -> None:
    """vllm-project/router#81, production-stack#490, #453: not merged, several names ignored, a 500."""
    async with edge(tmp_path) as e:
        names = [model["id"] for model in (await ask(e.app, method="GET", path="/v1/models")).json["data"]]
        assert len(names) == len(set(names))
        assert {"ok", "near-only"} <= set(names)


async def test_a_thousand_at_once_are_all_answered_and_the_next_one_too(tmp_path: Path) -> None:
    """production-stack#448, #706: crashed at a thousand concurrent requests, or silently sent nothing on any more."""
    async with edge(tmp_path) as e:
        e.near.overrides["near-only"] = "slow"
        crowd = []
        for count in range(100, 1001, 100):
            crowd += [begin(e.app, chat("near-only")) for _ in range(100)]
            await e.near.until(lambda count=count: len(e.near.chats) == count)  # type: ignore[misc]
        e.near.gate.set()
        await asyncio.gather(*(exchange.task for exchange in crowd))
        assert {exchange.status for exchange in crowd} == {200}
        assert (await ask(e.app, chat("ok"))).body == ANSWER
        assert e.in_flight == 0
