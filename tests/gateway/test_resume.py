"""A native node's stream outlives the node: whatever happens to it, the client gets one unbroken answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from edgeproxy.config import GatewayLimits
from edgeproxy.explain import render
from edgeproxy.gateway.resume import may_leave
from tests import fake_behaviours, fake_exchange
from tests.fake_native import End, Native, complete, cut, give_up, resumed_by_gate, stall, text_of
from tests.gateway.drive import Edge, Exchange, ask, begin, chat, edge

SEED_NEAR, SEED_FAR = 11, 22
NOTES = b":e "
EVENTS = 26
"""Of an unbroken answer, at least: role, notes, texts, finish, usage, done."""


@dataclass
class Pair:
    edge: Edge
    near: Native
    far: Native


@asynccontextmanager
async def pair(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limits: GatewayLimits | None = None, *, far: str = "n"
) -> AsyncIterator[Pair]:
    """Two native nodes, whose numerics the proxy knows."""
    async with edge(folder, limits) as e:
        found = Pair(e, Native(e.near, SEED_NEAR), Native(e.far, SEED_FAR))
        e.far.numerics = far

        async def answer(x: fake_exchange.Exchange) -> None:
            await (found.near if x.node is e.near else found.far)(x)

        monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", answer)
        for node in e.fleet.nodes:
            response = await node.pool.request(b"GET", b"/readyz")
            node.observe(response.headers, 0.0)
            while await response.read():
                pass
        yield found


def asked(**more: Any) -> dict[str, Any]:
    return chat("ok", stream=True, stream_options={"include_usage": True}, **more)


def unbroken(reply: Exchange, p: Pair) -> None:
    """One answer of the near node, from its role to its end."""
    assert reply.status == 200
    assert NOTES not in reply.body
    *chunks, done = reply.events()
    assert done == "[DONE]"
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {(f"chatcmpl-{p.near.node.port}", p.near.node.port)}
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text_of(SEED_NEAR)
    assert [choice["delta"]["role"] for choice in choices if "role" in choice["delta"]] == ["assistant"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [11]
    assert p.edge.in_flight == 0


async def test_notes_stay_with_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        unbroken(await ask(p.edge.app, asked()), p)
        assert not p.far.resumes
        assert p.edge.lines.requests[0]["resumes"] == 0


@pytest.mark.parametrize("more", [0, 1, 9, 60])
async def test_cut_after_any_event_or_within_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        for after in range(EVENTS + 1):
            p.edge.fleet.nodes[0].breaker.succeeded(0.0)
            p.edge.near.seen.clear()
            p.near.ends = [cut(after, more)]
            reply = await ask(p.edge.app, asked())
            if reply.events()[0]["id"].endswith(str(p.far.node.port)):
                assert after < 3, "only before content does another node begin anew"
                continue
            unbroken(reply, p)
        assert len(p.far.resumes) > 15
        assert sum(request["resumes"] for request in p.edge.lines.requests) == len(p.far.resumes)


async def test_a_stalled_stream_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch, GatewayLimits(resume_after_s=0.1)) as p:
        p.near.ends = [stall(9)]
        unbroken(await ask(p.edge.app, asked()), p)
        await p.edge.near.until(lambda: p.edge.near.abandoned == ["ok"])
        assert p.edge.lines.requests[0]["failures"] == ["near-1: stalled_late"]


@pytest.mark.parametrize(("well", "waiting", "moves"), [(True, 1, False), (True, 0, True), (False, 1, True)])
async def test_a_slow_node_is_left_only_for_one_where_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, well: bool, waiting: int, moves: bool
) -> None:
    """Overload is not answered by moving everybody round; a node that answers no probe either is no slow one."""
    async with pair(tmp_path, monkeypatch, GatewayLimits(resume_after_s=0.05)) as p:
        near, far = p.edge.fleet.nodes
        assert far.report is not None
        far.report = far.report._replace(waiting=waiting)
        silences = 0
        decided = asyncio.Event()

        def told(*arguments: Any) -> bool:
            nonlocal silences
            silences += 1
            decided.set()
            return may_leave(*arguments)

        monkeypatch.setattr("edgeproxy.gateway.relay.may_leave", told)
        p.near.ends = [resumed_by_gate(9)]
        exchange = begin(p.edge.app, asked())
        await exchange.until(lambda seen: seen.body.count(b"data: ") >= 3)
        if not well:
            near.down("no answer to a probe")
        async with asyncio.timeout(10):
            await decided.wait()
        p.edge.near.gate.set()
        unbroken(await exchange.done(), p)
        assert bool(p.far.resumes) is moves


async def test_a_client_that_does_not_read_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch, GatewayLimits(resume_after_s=0.05)) as p:
        exchange = begin(p.edge.app, asked())
        exchange.reading.clear()
        await exchange.until(lambda seen: seen.waits)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await exchange.until(lambda seen: seen.ended)
        exchange.reading.set()
        unbroken(await exchange.done(), p)
        assert not p.far.resumes


async def test_a_node_that_tells_of_its_own_failure_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = [give_up(9)]
        unbroken(await ask(p.edge.app, asked()), p)
        assert p.edge.lines.requests[0]["failures"] == ["near-1: error_late"]


async def test_a_resume_can_be_resumed_and_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = [cut(6), cut(4), complete]
        p.far.ends = [cut(4), cut(4)]
        unbroken(await ask(p.edge.app, asked()), p)
        assert p.edge.lines.requests[0]["resumes"] == 4
        p.near.ends = [cut(6), *[cut(1)] * 40]
        p.far.ends = [cut(1)] * 40
        for node in p.edge.fleet.nodes:
            node.breaker.succeeded(0.0)
        before = len(p.near.resumes) + len(p.far.resumes)
        monkeypatch.setattr("edgeproxy.gateway.resume.SEARCH_S", 0.0)
        broken(await ask(p.edge.app, asked()))
        assert len(p.near.resumes) + len(p.far.resumes) - before <= 8


def broken(reply: Exchange) -> None:
    """Told in band, and not to be taken for a whole answer."""
    last = reply.events()[-1]
    assert last["error"]["code"] == "upstream_failed"
    assert b"[DONE]" not in reply.body
    assert NOTES not in reply.body


async def test_other_numerics_never_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch, far="other") as p:
        p.near.ends = [cut(9)]
        broken(await ask(p.edge.app, asked()))
        assert not p.far.resumes
        assert (
            b'edgeproxy_resumes_total{outcome="failed"} 1.0'
            in (await ask(p.edge.admin, method="GET", path="/metrics", headers={"host": "127.0.0.1:9080"})).body
        )


async def test_a_model_that_a_reload_took_away_is_gone_on_with_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, monkeypatch) as p:

        async def cut_by_gate(x: fake_exchange.Exchange, events: list[bytes]) -> None:
            await x.events(*events[:9])
            await x.node.gate.wait()

        p.near.ends = [cut_by_gate]
        exchange = begin(p.edge.app, asked())
        await exchange.until(lambda seen: seen.body.count(b"data: ") >= 3)
        p.edge.fleet.replace([])
        p.edge.near.gate.set()
        broken(await exchange.done())
        assert not p.far.resumes


async def test_a_node_that_refuses_soundly_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        asks = 0

        async def refusing(x: fake_exchange.Exchange) -> None:
            nonlocal asks
            if x.node is p.edge.near:
                await p.near(x)
                return
            asks += 1
            await x.whole(409, fake_exchange.error_body("cannot be resumed", "invalid_request_error"))

        monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", refusing)
        p.near.ends = [cut(9)]
        broken(await ask(p.edge.app, asked()))
        assert asks == 1


async def test_busy_nodes_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(x: fake_exchange.Exchange, events: list[bytes]) -> None:
        raise AssertionError("never begun")

    async with pair(tmp_path, monkeypatch) as p:
        calls = 0

        async def first_busy(x: fake_exchange.Exchange) -> None:
            nonlocal calls
            calls += x.node is p.edge.far
            if x.node is p.edge.far and calls < 3:
                again = [*fake_exchange.JSON, (b"retry-after-ms", b"1")]
                await x.whole(429, fake_exchange.error_body("busy", "rate_limit_error"), again)
            else:
                await (p.near if x.node is p.edge.near else p.far)(x)

        monkeypatch.setattr("edgeproxy.gateway.resume.PAUSE_S", 0.01)
        monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", first_busy)
        p.near.ends = [cut(9)]
        unbroken(await ask(p.edge.app, asked()), p)
        assert calls == 3


async def test_a_client_that_leaves_while_a_node_is_sought_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, monkeypatch) as p:

        async def silent(x: fake_exchange.Exchange) -> None:
            await (p.near(x) if x.node is p.edge.near else x.forever())

        monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", silent)
        p.near.ends = [cut(9)]
        exchange = begin(p.edge.app, asked())
        await p.edge.far.until(lambda: len(p.edge.far.chats) == 1)
        exchange.leave()
        await exchange.done()
        await p.edge.far.until(lambda: p.edge.far.abandoned == ["ok"])
        assert p.edge.in_flight == 0


async def test_a_client_cannot_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        reply = await ask(p.edge.app, asked(resume={"ids": []}))
        assert (reply.status, reply.error["param"]) == (400, "resume")
        unbroken(await ask(p.edge.app, asked(resume=None)), p)
        p.near.ends = [cut(9)]
        unbroken(await ask(p.edge.app, asked(resume=None)), p)


async def test_what_the_nodes_are_told_is_what_the_client_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = [cut(11)]
        exchange = await ask(p.edge.app, asked(seed=3))
        (resume,) = p.far.resumes
        assert resume["seed"] == SEED_NEAR
        sent = orjson.loads(p.edge.far.chats[0].body)
        assert {name: value for name, value in sent.items() if name != "resume"} == asked(seed=3)
        unbroken(exchange, p)


async def test_a_first_token_belongs_to_the_node_that_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = [cut(9)]
        unbroken(await ask(p.edge.app, asked(), headers={"x-request-id": "r-1"}), p)
        found = (await ask(p.edge.admin, method="GET", path="/admin/decisions/r-1")).json
        metrics = (await ask(p.edge.admin, method="GET", path="/metrics")).body.decode()
        (request,) = p.edge.lines.requests
    assert (request["node"], request["region"], request["resumed_on"]) == ("near-1", "near", ["far-1"])
    assert 'edgeproxy_first_token_seconds_count{region="near"} 1.0' in metrics
    assert 'edgeproxy_first_token_seconds_count{region="far"} 0.0' in metrics
    text = render(found)
    assert "came: near-1" in text and "answered by near-1 in near, attempt 1, status 200\n" in text
    assert text.index("answered by") < text.index("broke off: near-1: cut_late") < text.index("resumed on far-1")
    assert "no node answered well" not in text


@pytest.mark.parametrize("ends", [[], [cut(9)]])
async def test_tokens_that_no_usage_tells_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[End]
) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = ends
        reply = await ask(p.edge.app, chat("ok", stream=True))
        assert not any(chunk.get("usage") for chunk in reply.events()[:-1])
        metrics = (await ask(p.edge.admin, method="GET", path="/metrics")).body.decode()
        assert p.edge.lines.requests[0]["completion_tokens"] == 11
    assert 'edgeproxy_tokens_total{kind="output",model="ok"} 11.0' in metrics


async def test_tokens_are_counted_of_a_client_that_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair(tmp_path, monkeypatch) as p:
        p.near.ends = [stall(9)]
        exchange = begin(p.edge.app, asked(), headers={"x-request-id": "r-1"})
        await exchange.until(lambda seen: seen.body.count(b"data: ") >= 4)
        exchange.leave()
        await exchange.done()
        found = (await ask(p.edge.admin, method="GET", path="/admin/decisions/r-1")).json
        (request,) = p.edge.lines.requests
    assert request["client_gone"] and 0 < request["completion_tokens"] < 11
    assert "the client left before the end of its answer" in render(found)
