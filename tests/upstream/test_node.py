from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.config import Config, ConfigError, GatewayLimits, Listen, NodeConfig, RegionConfig, Tls
from edgeproxy.protocol.node.report import REPORT_HEADER, NodeReport, NodeState
from edgeproxy.upstream.node import STUCK_S, Fleet, Node
from edgeproxy.upstream.origin import Origin

REPORT = NodeReport(NodeState.READY, "m", "n", 1, 0, 0, 128, 100, 0, 16, 900.0, 8.0, step_counter=7, handling_s=0.001)


def config(*regions: RegionConfig) -> Config:
    return Config(Path("regions.yaml"), Listen(None, None, None), Tls(None, None), regions, limits=GatewayLimits())


def node(name: str, *models: str, kind: str = "native", key: str | None = None) -> NodeConfig:
    return NodeConfig(name, kind, "http://127.0.0.1:8101", models, api_key_env=key)  # type: ignore[arg-type]


def one() -> Node:
    return Fleet.from_config(config(RegionConfig("near", (node("a", "m"),))), token="secret").nodes[0]


def report(**changes: object) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"x"), (REPORT_HEADER, REPORT._replace(**changes).encode())]  # type: ignore[arg-type]


async def test_a_model_is_served_by_those_that_name_it_and_those_whose_pattern_matches() -> None:
    near = RegionConfig("near", (node("a", "m", "gpt-4o"), node("b", "gpt-*")))
    fleet = Fleet.from_config(config(near, RegionConfig("far", (node("c", "m", "*"),))), token="t")

    def serving(model: str) -> list[str]:
        return [found.name for found in fleet.serving(model)]

    assert serving("m") == ["a", "c"]
    assert serving("gpt-4o") == ["a", "b", "c"]
    assert serving("gpt-5") == ["b", "c"]
    assert serving("other") == ["c"]
    assert fleet.models == ("m", "gpt-4o")
    assert fleet.regions == ("near", "far")


async def test_a_model_that_nobody_serves_has_no_node() -> None:
    assert Fleet.from_config(config(RegionConfig("r", (node("a", "m"),))), token="t").serving("x") == ()


async def test_the_token_goes_to_native_nodes_and_a_key_to_its_own_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_KEY", "sk-1")
    nodes = (node("a", "m"), node("b", "m", kind="openai", key="VENDOR_KEY"), node("c", "m", kind="vllm"))
    fleet = Fleet.from_config(config(RegionConfig("r", nodes)), token="secret")
    assert [found.headers for found in fleet.nodes] == [
        ((b"x-node-token", b"secret"),),
        ((b"authorization", b"Bearer sk-1"),),
        (),
    ]


@pytest.mark.parametrize("value", [None, "", "  ", "a\nb", "schlüssel"])
async def test_a_key_that_is_none_is_an_error_with_its_remedy(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VENDOR_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("VENDOR_KEY", value)
    with pytest.raises(ConfigError, match=r"regions\.yaml: node b: .*VENDOR_KEY.*export VENDOR_KEY") as caught:
        Fleet.from_config(config(RegionConfig("r", (node("b", "m", key="VENDOR_KEY"),))), token="t")
    assert value is None or not value.strip() or value not in str(caught.value)


async def test_a_relay_takes_the_place_of_the_url() -> None:
    relay = Origin("http", "127.0.0.1", 9)
    nodes = (node("a", "m"), node("b", "m"))
    fleet = Fleet.from_config(config(RegionConfig("r", nodes)), token="t", origins={"b": relay})
    assert [str(found.pool.origin) for found in fleet.nodes] == ["http://127.0.0.1:8101", "http://127.0.0.1:9"]


async def test_the_report_is_taken_from_an_answers_headers_and_a_broken_one_is_not() -> None:
    found = one()
    found.observe([(b"content-type", b"x")], 0)
    assert found.report is None
    found.observe(report(), 0)
    assert found.report == REPORT
    found.observe([(REPORT_HEADER, b"{}")], 1)
    assert found.report == REPORT


async def test_a_node_that_runs_sequences_without_a_step_is_stuck() -> None:
    found = one()
    assert not found.stuck(1e9)
    found.observe(report(), 0)
    found.observe(report(), STUCK_S)
    assert not found.stuck(STUCK_S)
    assert found.stuck(STUCK_S + 0.1)
    found.observe(report(step_counter=8), STUCK_S + 0.2)
    assert not found.stuck(STUCK_S + 0.3)


async def test_an_idle_node_makes_no_step_and_is_not_stuck() -> None:
    found = one()
    found.observe(report(running=0), 0)
    assert not found.stuck(1000)
    found.observe(report(running=0), 1000)
    found.observe(report(running=1), 1001)  # the same step: it has only just begun
    assert not found.stuck(1001 + STUCK_S - 1)


async def test_a_well_node_that_fails_is_probed_at_once_and_a_sick_one_is_left_to_its_pace() -> None:
    found = one()
    found.down("refused")
    assert not found.alarm.is_set()
    found.up(0.0)
    assert (found.ready, found.trouble) == (True, "")
    found.down("refused")
    assert found.alarm.is_set()
    assert (found.ready, found.trouble) == (False, "refused")


async def test_home_is_the_region_of_the_nearest_node() -> None:
    near = RegionConfig("near", (node("a", "m"), node("b", "m")))
    fleet = Fleet.from_config(config(RegionConfig("far", (node("c", "m"),)), near), token="t")
    for found, rtt in zip(fleet.nodes, (0.040, 0.090, 0.001), strict=True):
        found.rtt.probe(rtt, 0)
        fleet.measured(0)
    assert fleet.home.region == "near"
    assert fleet.home.ranks == {"near": 0, "far": 1}
