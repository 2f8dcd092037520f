"""Failover is invisible before content and told in band after it; what a node said reaches the client untouched."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import orjson
import pytest

from edgeproxy.config import GatewayLimits
from edgeproxy.upstream.h1 import UpstreamError
from tests.fake_exchange import ANSWER, STREAM
from tests.gateway.drive import Edge, Exchange, ask, begin, chat, edge

RETRIED = [
    "500",
    "503-text",
    "garbage",
    "garbage-body",
    "close-at-once",
    "cut-before-content",
    "cut-json",
    "unframed-cut-json",
    "error-event",
    "429",
]


def healthy_far(e: Edge, model: str) -> None:
    """What fails on the near node is answered by the far one."""
    e.far.overrides[model] = "ok"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", RETRIED)
async def test_failure_before_content_is_invisible(tmp_path: Path, model: str, stream: bool) -> None:
    async with edge(tmp_path) as e:
        healthy_far(e, model)
        reply = await ask(e.app, chat(model, stream=stream))
        assert (reply.status, reply.body) == (200, STREAM if stream else ANSWER)
        assert reply.header(b"x-edge-region") == b"far"
        assert reply.header(b"x-edge-attempts") == b"2"
        assert e.near.seen == {model: 1}
        assert e.in_flight == 0


async def test_unreachable_node_is_invisible_and_probed_at_once(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await e.near.stop()
        reply = await ask(e.app, chat("ok"))
        assert (reply.status, reply.body) == (200, ANSWER)
        assert e.fleet.nodes[0].alarm.is_set()


async def test_silence_before_content_fails_over(tmp_path: Path) -> None:
    """A node that only comments is as silent as one that says nothing; comments end no wait."""
    async with edge(tmp_path, GatewayLimits(first_byte_s=0.1, stall_s=0.1)) as e:
        for model in ("nothing", "headers-then-nothing", "comments-only"):
            healthy_far(e, model)
            reply = await ask(e.app, chat(model, stream=True))
            assert (reply.status, reply.body) == (200, STREAM), model
            await e.near.until(lambda model=model: model in e.near.abandoned)  # type: ignore[misc]


@pytest.mark.parametrize("stream", [False, True])
async def test_when_every_node_fails_the_error_says_so_but_not_which(tmp_path: Path, stream: bool) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("500", stream=stream))
        assert (reply.status, reply.error["code"]) == (502, "upstream_failed")
        assert b"10.0.0.7" not in reply.body
        assert len(e.near.chats) == len(e.far.chats) == 1
        assert e.lines.requests[0]["failures"] == ["near-1: status_5xx", "far-1: status_5xx"]


async def test_attempts_are_bounded(tmp_path: Path) -> None:
    async with edge(tmp_path, GatewayLimits(attempts=1)) as e:
        reply = await ask(e.app, chat("500"))
        assert reply.status == 502
        assert (len(e.near.chats), len(e.far.chats)) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_4xx_is_passed_on_and_neither_retried_nor_counted(tmp_path: Path, stream: bool) -> None:
    async with edge(tmp_path) as e:
        for _ in range(20):
            reply = await ask(e.app, chat("400", stream=stream))
            assert (reply.status, reply.error["message"]) == (400, "temperature must not be negative")
        assert (len(e.near.chats), len(e.far.chats)) == (20, 0)
        assert e.fleet.nodes[0].breaker.state(asyncio.get_running_loop().time()) == "closed"


async def test_client_error_told_in_an_event_gets_its_true_status(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("bad-request-event", stream=True))
        assert (reply.status, reply.error["message"]) == (400, "prompt too long")
        assert e.far.chats == []


async def test_429_is_tried_elsewhere_then_passed_on_with_retry_after(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("429", stream=True))
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert reply.header(b"retry-after") == b"7"
        assert reply.header(b"retry-after-ms") == b"6500"
        assert reply.header(b"x-ratelimit-remaining-requests") == b"0"
        assert len(e.near.chats) == len(e.far.chats) == 1


async def test_429_is_the_better_error_whoever_spoke_first(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "429"
        e.far.overrides["429"] = "500"
        assert (await ask(e.app, chat("500"))).status == 429
    async with edge(tmp_path) as e:
        e.far.overrides["429"] = "500"
        assert (await ask(e.app, chat("429"))).status == 429


async def test_node_that_said_429_is_left_alone_but_not_ejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        healthy_far(e, "429")
        assert (await ask(e.app, chat("429"))).status == 200
        assert (await ask(e.app, chat("ok"))).header(b"x-edge-region") == b"far"
        assert len(e.near.chats) == 1
        breaker = e.fleet.nodes[0].breaker
        for _ in range(12):
            breaker.not_before = 0.0
            assert (await ask(e.app, chat("429"))).status == 200
        assert len(e.near.chats) == 13
        assert breaker.state(0) == "closed"


async def test_failing_node_opens_its_breaker(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        healthy_far(e, "500")
        for _ in range(8):
            assert (await ask(e.app, chat("500"))).status == 200
        assert len(e.near.chats) < 8


@pytest.mark.parametrize("model", ["cut-after-3", "cut-mid-event", "cut-mid-utf8", "unframed-cut-stream"])
async def test_death_after_content_is_an_event_without_done(tmp_path: Path, model: str) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat(model, stream=True))
        assert reply.status == 200
        assert reply.ended, "the client must see a clean end"
        *said, last = reply.events()  # decodes strictly: no half character or half event came through
        assert last["error"]["code"] == "upstream_failed"
        assert all("choices" in event for event in said)
        assert len(said) >= 2
        assert e.far.chats == [], "nothing may be sent twice"
        assert e.lines.requests[0]["code"] == "upstream_failed"


async def test_error_that_a_node_tells_itself_is_passed_on_once(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("late-error-event", stream=True))
        errors = [event for event in reply.events() if "error" in event]
        assert [error["error"]["message"] for error in errors] == ["out of luck"]


async def test_stall_after_content_is_an_event(tmp_path: Path) -> None:
    async with edge(tmp_path, GatewayLimits(stall_s=0.1)) as e:
        reply = await ask(e.app, chat("stall-after-3", stream=True))
        assert reply.events()[-1]["error"]["code"] == "upstream_failed"
        await e.near.until(lambda: e.near.abandoned == ["stall-after-3"])


async def test_stream_that_ends_at_its_finish_reason_is_whole(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("no-done", stream=True))
        assert reply.events()[-1]["choices"][0]["finish_reason"] == "stop"


async def test_bytes_pass_untouched(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, chat("trickle-bytes", stream=True))).body == STREAM
        reply = await ask(e.app, chat("crlf-and-comments", stream=True))
        assert reply.body == b": hello\n\n" + STREAM.replace(b"\n", b"\r\n")


async def test_body_reaches_the_node_byte_for_byte(tmp_path: Path) -> None:
    raw = b'{ "model" : "ok",\n "x_unknown": 1e400000, "messages":[],"stream":false, "temperature": 1.000 }'
    async with edge(tmp_path) as e:
        sent = raw.replace(b"1e400000", b"1.50e1")
        assert (await ask(e.app, sent)).status == 200
        assert e.near.chats[0].body == sent


async def test_slow_client_pauses_the_node(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("endless", stream=True))
        await exchange.until(lambda x: x.body != b"")
        exchange.reading.clear()
        last = -1
        async with asyncio.timeout(20):
            while last != (last := e.near.seen["endless-bytes"]):
                await e.near.blocked.wait()
                await asyncio.sleep(0.05)
        assert last < 64 * 2**20, "the proxy took everything that the client did not"
        exchange.leave()
        exchange.reading.set()
        await exchange.done()
        await e.near.until(lambda: "endless" in e.near.abandoned)


async def test_only_listed_fields_pass_in_both_directions(tmp_path: Path) -> None:
    secrets = {
        "authorization": "Bearer client-key",
        "cookie": "session=1",
        "x-edge-stream": "forged",
        "x-node-token": "forged",
        "proxy-authorization": "Basic abc",
        "x-forwarded-for": "10.1.2.3",
        "accept-encoding": "gzip, br",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "tracestate": "vendor=1",
    }
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("hop-by-hop"), headers=secrets)
        names = {name for name, _ in reply.headers}
        assert names == {b"content-type", b"content-length", b"x-request-id"}
        assert reply.header(b"x-request-id") != b"from-the-node"
        received = e.near.chats[0]
        assert received.header(b"traceparent") == secrets["traceparent"].encode()
        assert received.header(b"tracestate") == b"vendor=1"
        assert received.header(b"accept-encoding") == b"identity"
        assert received.header(b"x-node-token") == b"node-token-secret"
        assert received.header(b"x-edge-stream") == b"1"
        assert received.header(b"x-request-id") == reply.header(b"x-request-id")
        for name in ("authorization", "cookie", "proxy-authorization", "x-forwarded-for"):
            assert received.header(name.encode()) is None


async def test_stream_headers_keep_buffers_away(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply: Exchange = await ask(e.app, chat("ok", stream=True))
        assert reply.header(b"content-type") == b"text/event-stream; charset=utf-8"
        assert reply.header(b"cache-control") == b"no-cache, no-transform"
        assert reply.header(b"x-accel-buffering") == b"no"
        assert reply.header(b"content-length") is None


async def test_tokens_and_finish_are_accounted(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("ok"))
        await ask(e.app, chat("ok", stream=True))
        plain, streamed = e.lines.requests
        assert (plain["prompt_tokens"], plain["completion_tokens"], plain["finish"]) == (7, 3, "stop")
        assert streamed["finish"] == "stop"
        assert orjson.loads(ANSWER)["usage"]["prompt_tokens"] == 7


async def test_coded_stream_passes_unread(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("coded-stream", stream=True))
        assert reply.header(b"content-encoding") == b"gzip"
        assert gzip.decompress(reply.body) == STREAM


async def test_coded_stream_that_dies_is_cut_and_never_ended(tmp_path: Path) -> None:
    """An event among bytes that we do not read would be garbage; a clean end would be a lie."""
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("coded-cut", stream=True))
        with pytest.raises(UpstreamError):
            await exchange.done()
        assert exchange.status == 200
        assert not exchange.ended
        assert e.in_flight == 0


async def test_answer_too_large_to_hold_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("huge-json"))
        assert (reply.status, len(reply.body)) == (200, 17 * 2**20 + len(ANSWER))
        assert reply.body.endswith(ANSWER)


async def test_what_a_node_says_after_done_is_not_passed_on(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("chatter-after-done", stream=True))
        assert reply.body == STREAM


async def test_a_node_that_does_not_know_the_proxy_is_no_fault_of_the_clients_key(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("401"))
        assert (reply.status, reply.error["code"]) == (502, "upstream_unauthorized")
        assert reply.error["type"] != "authentication_error"
        assert len(e.near.chats) == len(e.far.chats) == 1  # the other may know it
