"""What a request cost is told to those who may know, and nobody's prompt or key to anybody."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep

import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.config import GatewayLimits
from edgeproxy.gateway import account as account_module
from edgeproxy.gateway import attempt
from edgeproxy.gateway.account import Account, Call, ending_of, ending_of_stream
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.outcomes import Outcomes
from edgeproxy.protocol.openai.sse import SseParser, has_content
from edgeproxy.routing.budget import Ledger
from tests.fake_behaviours import BEHAVIOURS
from tests.gateway.drive import Exchange, ask, chat, edge

ENDLESS = {
    "slow",
    "stall-after-3",
    "role-then-stall",
    "headers-then-nothing",
    "nothing",
    "comments-only",
    "endless",
    "coded-cut",
    "wait-then-500",
}


def timing(reply: Exchange) -> dict[str, float]:
    """`Server-Timing`, in milliseconds."""
    terms = [term.split(";dur=") for term in (reply.header(b"server-timing") or b"").decode().split(", ")]
    return {name: float(duration) for name, duration in terms}


async def test_local_client_sees_the_budget(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.fleet.nodes[0].rtt.probe(0.040, 1.0)
        terms = timing(await ask(e.app, chat("ok", stream=True), client_rtt_s=0.025))
        assert list(terms) == ["client", "rtt", "edge", "queue", "prefill", "first", "unexplained", "total"]
        assert [terms[name] for name in ("client", "queue", "prefill", "first")] == [25.0, 1.5, 12.25, 20.0]
        assert terms["edge"] <= terms["total"]


async def test_how_long_a_client_takes_to_send_what_it_asks_is_charged_to_no_term(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        terms = timing(await ask(e.app, chat("ok", stream=True), client_rtt_s=0.025, upload_s=1000.0))
        assert terms["edge"] <= terms["total"] < 500_000.0
        assert e.lines.requests[0]["wait_s"] < 500.0


@pytest.mark.parametrize("model", ["trickle-bytes", "no-done", "coded-stream", "500"])
async def test_all_terms_but_the_clients_add_up_to_what_the_proxy_saw_and_with_it_to_what_the_user_waits(
    tmp_path: Path, model: str
) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "trickle-bytes"
        for node in e.fleet.nodes:
            node.rtt.probe(0.0001, 1.0)
        assert (await ask(e.app, chat(model, stream=True), client_rtt_s=0.025)).status == 200
        (record,) = e.lines.requests
        terms = [name for name in Ledger._fields if name not in ("client", "total")]
        assert record["relay_s"] > 0
        assert sum(record[f"{name}_s"] or 0.0 for name in terms) == pytest.approx(record["first_token_s"])
        assert record["wait_s"] == pytest.approx(record["first_token_s"] + record["client_s"])
        assert record["client_s"] == 0.025
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        for term in ("client", "relay"):
            assert f'edgeproxy_term_seconds_count{{term="{term}"}} 1.0' in text


async def test_the_budget_counts_the_way_to_the_client(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("ok", stream=True), client_rtt_s=30.0)
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert 'edgeproxy_budget_total{outcome="over"} 1.0' in text
        assert 'edgeproxy_first_token_seconds_bucket{le="10.0",region="near"} 0.0' in text
        assert 'gen_ai_server_time_to_first_token_seconds_bucket{gen_ai_request_model="ok",le="10.0"} 1.0' in text


async def test_what_reading_the_first_content_takes_is_the_proxys_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = 0.02

    def slow(value: object) -> bool:
        sleep(took)
        return has_content(value)

    monkeypatch.setattr(attempt, "has_content", slow)
    async with edge(tmp_path) as e:
        assert (await ask(e.app, chat("ok", stream=True))).status == 200
        (record,) = e.lines.requests
        assert record["relay_s"] >= took


async def test_an_answer_that_is_not_streamed_has_no_relay(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("ok"))
        (record,) = e.lines.requests
        assert record["first_token_s"] is not None
        assert record["relay_s"] is None


async def test_time_lost_at_a_node_that_failed_is_not_charged_to_the_edge(tmp_path: Path) -> None:
    async with edge(tmp_path, GatewayLimits(first_byte_s=0.2, stall_s=0.2)) as e:
        e.far.overrides["nothing"] = "ok"
        reply = await ask(e.app, chat("nothing"))
        assert reply.header(b"x-edge-attempts") == b"2"
        terms = timing(reply)
        assert terms["failover"] >= 200
        assert terms["edge"] < terms["failover"]


async def test_others_see_no_timings_and_no_topology(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for model in ("ok", "500", "429", "400"):
            reply = await ask(e.app, chat(model), client="192.0.2.7")
            names = {name for name, _ in reply.headers}
            assert not names & {b"server-timing", b"x-edge-region", b"x-edge-attempts", b"x-node-report", b"server"}
            assert b"near" not in reply.body


async def test_tenant_with_disclose_sees_them_from_afar(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}', disclose: true}}\n")
    async with edge(tmp_path, keys=Keys(path)) as e:
        reply = await ask(e.app, chat("ok"), client="192.0.2.7", headers={"authorization": f"Bearer {key}"})
        assert reply.header(b"x-edge-region") == b"near"


@pytest.mark.parametrize("stream", [False, True])
async def test_no_prompt_answer_or_key_in_log_metrics_or_status(tmp_path: Path, stream: bool) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}'}}\n")
    secrets = [key.encode(), hashed.encode(), b"prompt-that-must", b"rld", b"node-token-secret", b"cookie-secret"]
    headers = {"authorization": f"Bearer {key}", "cookie": "cookie-secret"}
    async with edge(tmp_path, keys=Keys(path)) as e:
        for model in sorted(set(BEHAVIOURS) - ENDLESS):
            await ask(e.app, chat(model, stream=stream), headers=headers)
        await ask(e.app, b'{"prompt-that-must": ', headers=headers)
        await ask(e.app, chat("prompt-that-must"), headers=headers)
        await ask(e.app, chat("ok"), headers=headers | {"authorization": "Bearer prompt-that-must"})
        told = [e.lines.text]
        for page in ("/metrics", "/admin/status"):
            told.append((await ask(e.admin, method="GET", path=page)).body)
        assert len(e.lines.requests) == len(set(BEHAVIOURS) - ENDLESS) + 3
        for text in told:
            assert len(text) > 100
            assert not [secret for secret in secrets if secret in text]


async def test_every_request_is_one_line_with_its_terms(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok", stream=True), headers={"x-request-id": "r1"})
        (record,) = e.lines.requests
        assert (record["request_id"], record["status"], record["model"]) == ("r1", 200, "ok")
        assert (record["region"], record["node"], record["attempts"]) == ("near", "near-1", 1)
        assert 0 < record["edge_s"] <= record["first_token_s"] <= record["total_s"]
        assert reply.status == 200


async def test_metrics_count_requests_failures_and_first_tokens(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "ok"
        await ask(e.app, chat("500", stream=True))
        await ask(e.app, chat("nobody-serves-this"))
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert 'edgeproxy_requests_total{model="500",region="far",status="200"} 1.0' in text
        assert 'edgeproxy_requests_total{model="unknown",region="none",status="404"} 1.0' in text
        assert 'edgeproxy_node_failures_total{node="near-1",reason="status_5xx"} 1.0' in text
        assert 'edgeproxy_first_token_seconds_count{region="far"} 1.0' in text


async def test_model_that_only_a_pattern_matches_makes_no_label(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.near.overrides["near-zzz"] = "ok"
        assert (await ask(e.app, chat("near-zzz"))).status == 200
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert "zzz" not in text
        assert 'model="(pattern)"' in text


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        7,
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [3]},
        {"choices": [{}]},
        {"usage": 3},
        {"choices": 3},
    ],
)
def test_odd_answers_are_no_ending_and_no_fault(value: object) -> None:
    assert not ending_of(value).finished


def test_ending_is_found_among_the_last_events() -> None:
    raw = (
        b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":5}}\n\ndata: broken\n\ndata: [DONE]\n\n'
    )
    found = ending_of_stream(SseParser().feed(raw))
    assert (found.finished, found.finish, found.usage) == (True, "length", (5, None, None))
    assert not ending_of_stream([]).finished


@pytest.mark.parametrize(
    ("model", "stream", "status", "code"),
    [
        ("429", False, 429, "rate_limit_exceeded"),
        ("429", True, 429, "rate_limit_exceeded"),
        ("500", False, 502, "upstream_failed"),
        ("400", False, 400, "node_400"),
        ("400", True, 400, "node_400"),
        ("late-error-event", True, 200, "node_500"),
    ],
)
async def test_whatever_was_refused_or_failed_has_a_code_in_log_and_metrics(
    tmp_path: Path, model: str, stream: bool, status: int, code: str
) -> None:
    """Whoever refused it, and however late."""
    async with edge(tmp_path) as e:
        await ask(e.app, chat(model, stream=stream))
        (record,) = e.lines.requests
        assert (record["status"], record["code"]) == (status, code)
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert f'edgeproxy_errors_total{{code="{code}"}} 1.0' in text
        (decision,) = (await ask(e.admin, method="GET", path="/admin/decisions")).json["decisions"]
        assert decision["code"] == code


@pytest.mark.parametrize("name", ["x-latency-budget-ms", "x-latency-policy", "x-edge-region", "x-edge-timings"])
async def test_a_request_refused_for_a_header_is_logged_with_the_model_that_it_names(tmp_path: Path, name: str) -> None:
    async with edge(tmp_path) as e:
        for value in ("nonsense", ""):
            assert (await ask(e.app, chat("ok", stream=True), headers={name: value})).status == 400
        assert (await ask(e.app, chat("made-up"), headers={name: "nonsense"})).status in (400, 404)
        assert [record["model"] for record in e.lines.requests] == ["ok", "ok", "unknown"]
        assert [record["stream"] for record in e.lines.requests] == [True, True, False]


async def test_tokens_are_counted_when_they_were_written_however_seldom_a_request_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(os.open(os.devnull, os.O_WRONLY))
    account = Account(log, Metrics("1", tuple), Outcomes(Burn(0.95)))
    for ended, tokens in ((10_000.0, 3), (10_000.5, 4), (20_000.0, 5)):
        monkeypatch.setattr(account_module, "time", lambda ended=ended: ended)
        call = Call(b"r", 0.0, "h1", None)
        call.model, call.region, call.written = "m", "near", tokens
        account.close(call, 1.0)
        log.flush()
    assert account.metrics.produced.window(20_000.0).tokens == {("m", "near"): 5}
    assert [one["completion_tokens"] for one in account.outcomes.newest()["recent"]] == [3, 4, 5]
