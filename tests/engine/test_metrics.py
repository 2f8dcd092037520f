from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from edgeproxy.protocol.node.report import NodeReport, NodeState
from engine.gauges import Gauges
from engine.gpu.device import Link, Memory
from engine.gpu.view import GpuView
from engine.metrics import exposition
from engine.orca import load_metrics
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, Call, chat_call, says, serving

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def report(**changes: int) -> NodeReport:
    fields = {
        "running": 2,
        "waiting": 1,
        "waiting_prefill_tokens": 40,
        "kv_blocks_total": 10,
        "kv_blocks_free": 3,
        "kv_blocks_evictable": 2,
        "block_tokens": 16,
        "step_counter": 7,
        **changes,
    }
    return NodeReport(
        state=NodeState.READY,
        model="m",
        numerics="bits",
        prefill_tokens_per_s=0.0,
        step_ms=1.0,
        handling_s=0.0,
        **fields,
    )


def measured() -> Gauges:
    gauges = Gauges()
    gauges.utilisation.sample((0.0, 0.0), 100, 0)
    gauges.utilisation.busy_s = 2.0
    gauges.utilisation.sample((2.0, 1.0), 110, 1000)
    gauges.gap.observe(3e-6)
    return gauges


def samples(accept: str = "", gauges: Gauges | None = None, gpu: GpuView | None = None) -> dict[str, float]:
    return read(exposition(report(), gauges or measured(), accept, gpu, cpu_use=0.25)[0], accept)


def read(body: bytes, accept: str) -> dict[str, float]:
    """By names, with the values of their labels behind them."""
    parse = openmetrics if accept else prometheus
    return {
        sample.name + "".join(sorted(sample.labels.values())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def test_every_name_stands_in_the_table_and_no_other_does() -> None:
    documented = set(re.findall(r"^\| `(engine_\w+)` \|", DOCS.read_text(), re.MULTILINE))
    body, _ = exposition(report(), measured(), "")
    told = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert told == documented


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_what_is_told_is_what_is_known(accept: str) -> None:
    found = samples(accept)
    assert (found["engine_running"], found["engine_waiting"], found["engine_steps_total"]) == (2, 1, 7)
    assert [found[f"engine_kv_blocks{state}"] for state in ("used", "evictable", "free")] == [5, 2, 3]
    assert [found[f"engine_state{state}"] for state in ("ready", "draining")] == [1, 0]
    assert (found["engine_worker_busy_ratio"], found["engine_page_faults_per_token"]) == (0.75, 0.01)
    assert found["engine_cpu_use_ratio"] == 0.25
    assert found["engine_susi_ratio"] == pytest.approx(1 - 0.25 / 0.75)
    assert (found["engine_step_gap_seconds_count"], found["engine_step_gap_seconds_sum"]) == (1, 3e-6)
    assert (found["engine_step_gap_seconds_bucket2e-06"], found["engine_step_gap_seconds_bucket4e-06"]) == (0, 1)


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=new", "text/plain; version=1.x", ";", "a=b;="]
)
def test_who_asks_for_a_format_that_nobody_knows_gets_plain_text(accept: str) -> None:
    body, media_type = exposition(report(), measured(), accept)
    assert media_type.startswith("text/plain")
    assert b"engine_running 2.0" in body


def test_what_was_not_measured_is_not_told() -> None:
    assert not {"engine_susi_ratio", "engine_worker_busy_ratio"} & samples(gauges=Gauges()).keys()


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_of_a_gpu_what_is_known_is_told_and_susi_is_its_own(accept: str) -> None:
    view = GpuView(
        watch="watched",
        sampling="sampled",
        name="H100",
        uuid="GPU-1",
        memory=Memory(100, 60, 40),
        link=Link(4, 8),
        best_link=Link(5, 16),
        sm_busy=0.9,
        susi=0.8,
        memory_busy=0.7,
        events={"xid": 2},
        fault="GPU 0: Xid 79",
    )
    found = samples(accept, gpu=view)
    assert found["engine_gpu_infoGPU-1H100sampledwatched"] == 1
    assert [found[f"engine_gpu_memory_bytes{state}"] for state in ("used", "free")] == [40, 60]
    assert [found[f"engine_gpu_pcie_lanes{state}"] for state in ("seen", "possible")] == [8, 16]
    assert [found[f"engine_gpu_pcie_generation{state}"] for state in ("seen", "possible")] == [4, 5]
    assert (found["engine_gpu_sm_busy_ratio"], found["engine_gpu_memory_busy_ratio"]) == (0.9, 0.7)
    assert (found["engine_gpu_events_totalxid"], found["engine_gpu_events_totalecc"]) == (2, 0)
    assert (found["engine_susi_ratio"], found["engine_gpu_fault"]) == (0.8, 1)


def test_of_a_gpu_what_is_not_known_is_not_told() -> None:
    found = samples(gpu=GpuView(watch="no_library", sampling="no_library"))
    assert found["engine_gpu_fault"] == 0
    assert not {"engine_susi_ratio", "engine_gpu_sm_busy_ratio", "engine_gpu_memory_bytesused"} & found.keys()


async def test_a_scrape_needs_the_token_where_there_is_one(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fake = FakeExecutor(script=says(tokenizer, "Yes."), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template, token=b"secret") as served:
        await chat_call(served.app, headers=[(b"x-node-token", b"secret")]).done()
        statuses = [
            (await Call(served.app, "GET", "/metrics", headers=headers).done()).status
            for headers in ([], [(b"authorization", b"Bearer wrong")], [(b"x-node-token", b"secret")])
        ]
        bearer = [(b"authorization", b"Bearer secret"), (b"accept", OPENMETRICS.encode())]
        scrape = await Call(served.app, "GET", "/metrics", headers=bearer).done()
    assert statuses == [401, 401, 200]
    assert scrape.headers[b"content-type"].startswith(b"application/openmetrics-text")
    told = read(scrape.body, OPENMETRICS)
    assert told["engine_steps_total"] > 0 < told["engine_generated_tokens_total"]


async def test_load_comes_with_an_answer_to_whoever_asks(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fake = FakeExecutor(script=says(tokenizer, "Yes."), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template) as served:
        told = []
        for wanted in (b"TEXT", b"json", b"BIN", b""):
            call = await chat_call(served.app, headers=[(b"endpoint-load-metrics-format", wanted)]).done()
            told.append(call.headers.get(b"endpoint-load-metrics", b""))
    assert told[0].startswith(b"TEXT named_metrics.kv_cache_usage_perc=0.")
    assert orjson.loads(told[1].removeprefix(b"JSON "))["named_metrics"]["num_requests_waiting"] == 0
    assert told[2:] == [b"", b""]


async def test_a_balancer_hears_of_an_idle_node_that_it_is_idle(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    asked = [(b"endpoint-load-metrics-format", b"TEXT")]
    async with serving(FakeExecutor(built_for=LIMITS), tokenizer, chat_template) as served:
        use, told = served.engine.gauges.utilisation, []
        use.shares = (0.4,)
        for ago_s in (0.0, 600.0):
            use.worked(60.0, until=served.engine.now() - ago_s)
            call = await Call(served.app, "GET", "/healthz", headers=asked).done()
            told.append(call.headers[b"endpoint-load-metrics"])
            status = (await Call(served.app, "GET", "/node/v1/status").done()).json()
            assert status["worker_busy"] == 0.4, "of busy time, whenever that was"
    busy, idle = (float(value.split(b"cpu_utilization=")[1].split(b",")[0]) for value in told)
    assert 0 < busy <= 0.4
    assert idle == 0


def test_load_is_of_blocks_that_are_held() -> None:
    text = load_metrics(b"TEXT", report(), 0.5)
    assert text == (
        b"TEXT cpu_utilization=0.5, named_metrics.kv_cache_usage_perc=0.5, "
        b"named_metrics.num_requests_running=2, named_metrics.num_requests_waiting=1"
    )
    json = load_metrics(b"JSON", report(kv_blocks_total=0, kv_blocks_free=0, kv_blocks_evictable=0), None) or b""
    assert orjson.loads(json.removeprefix(b"JSON ")) == {
        "named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_running": 2, "num_requests_waiting": 1}
    }
