"""The next try goes to another region; a tenant sees and reaches only its own; a client may wish within them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.config import Address, Config, Listen, NodeConfig, RegionConfig, Tls
from edgeproxy.gateway.admit import ChatRequest
from edgeproxy.gateway.controls import Controls
from edgeproxy.gateway.plan import Plan
from edgeproxy.gateway.route import Router
from edgeproxy.observe.fleet import PATTERN_MODEL
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.upstream.h1 import PoolLimits
from edgeproxy.upstream.node import Fleet
from tests.gateway.drive import ask, chat, edge

PROMPT = Random(5).randbytes(4096)


def fleet(nodes: int = 2) -> Fleet:
    regions = tuple(
        RegionConfig(
            region,
            tuple(NodeConfig(f"{region}-{i}", "openai", "http://127.0.0.1:1", ("m", "p-*")) for i in range(nodes)),
        )
        for region in ("a", "b", "c")
    )
    found = Fleet.from_config(
        Config(Path("regions.yaml"), Listen(Address("127.0.0.1", 1), None, None), Tls(None, None), regions), token="t"
    )
    for node in found.nodes:
        node.up(0.0)
    return found


def plan(router: Router, tenant: Tenant = ANONYMOUS, model: str = "m", **wishes: object) -> Plan:
    request = ChatRequest(b"{}", model, True, prompt=PROMPT)
    return router.plan(request, tenant, Controls(**wishes))  # type: ignore[arg-type]


async def test_each_region_is_tried_once_before_any_twice() -> None:
    order = [node.region for node in plan(Router(fleet(), Random(1))).in_turn(0.0)]
    assert order[:3] == ["a", "b", "c"]
    assert sorted(order) == ["a", "a", "b", "b", "c", "c"]


async def test_unfit_nodes_come_last() -> None:
    nodes = fleet()
    nodes.nodes[0].down("test")
    nodes.nodes[2].down("test")
    nodes.nodes[3].down("test")
    names = [node.name for node in plan(Router(nodes, Random(1))).in_turn(0.0)]
    assert names[0] == "a-1"
    assert set(names[-3:]) == {"a-0", "b-0", "b-1"}


@pytest.mark.parametrize(
    ("full", "order"),
    [({"a-0"}, ["a-1", "b", "c", "b", "c", "a-0"]), ({"a-0", "a-1"}, ["b", "c", "b", "c", "a", "a"])],
    ids=["one", "all of the region"],
)
async def test_where_all_connections_are_taken_nobody_stands_in_line_while_others_have_some(
    full: set[str], order: list[str]
) -> None:
    nodes = fleet(3)
    for node in nodes.nodes:
        if node.name.endswith("2"):
            node.down("unfit nodes stay last")
        if node.name in full:
            node.pool._limits = PoolLimits(connections=0)
    found = [node.name for node in plan(Router(nodes, Random(1))).in_turn(0.0)]
    assert [name[: len(wanted)] for name, wanted in zip(found, order, strict=False)] == order
    assert {name[-1] for name in found[len(order) :]} == {"2"}


async def test_a_node_that_died_and_came_back_during_the_request_is_tried_again() -> None:
    nodes = fleet()
    turns = plan(Router(nodes, Random(1))).in_turn(10.0)
    tried = [next(turns) for _ in nodes.nodes]
    tried[0].down("test")
    tried[0].up(12.0)
    tried[1].down("test")
    assert list(turns) == [tried[0]]


async def test_tenant_is_served_in_its_regions_only() -> None:
    router = Router(fleet(), Random(1))
    found = plan(router, Tenant("acme", regions=frozenset({"b"})))
    assert {node.region for node in found.in_turn(0.0)} == {"b"}
    with pytest.raises(ApiError) as caught:
        plan(router, Tenant("acme", regions=frozenset({"nowhere"})))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def test_names_of_the_configuration_are_labels_and_others_are_not() -> None:
    router = Router(fleet(), Random(1))
    assert plan(router).label == "m"
    assert plan(router, model="p-anything").label == PATTERN_MODEL
    with pytest.raises(ApiError):
        plan(router, model="q")


async def test_wished_regions_are_served_in_their_order_whatever_the_forecast_and_no_other() -> None:
    nodes = fleet()
    for node in nodes.nodes:
        node.rtt.probe({"a": 0.001, "b": 0.1, "c": 0.5}[node.region], 0.0)
    router = Router(nodes, Random(1))
    order = [node.region for node in plan(router, regions=("c", "a")).in_turn(0.0)]
    assert order[:2] == ["c", "a"]
    assert sorted(order) == ["a", "a", "c", "c"]
    for node in nodes.nodes:
        if node.region == "c":
            node.down("test")
    assert next(plan(router, regions=("c", "a")).in_turn(0.0)).region == "a"


async def test_a_pin_is_not_served_past_a_drain() -> None:
    nodes = fleet(nodes=1)
    nodes.nodes[2].draining = True
    assert list(plan(Router(nodes, Random(1)), regions=("c",)).in_turn(0.0)) == []


async def test_a_session_goes_where_it_was_served_while_that_costs_little() -> None:
    nodes = fleet()
    for node in nodes.nodes:
        node.rtt.probe(0.020, 0.0)
    router = Router(nodes, Random(1))
    first = plan(router, session=b"s")
    router.sessions.served(first.session or 0, nodes.nodes[5].slot)
    assert all(next(plan(router, session=b"s").in_turn(0.0)) is nodes.nodes[5] for _ in range(20))
    assert {next(plan(router, session=b"t").in_turn(0.0)).name for _ in range(50)} == {"a-0", "a-1"}
    other = plan(router, Tenant("other"), session=b"s")
    assert other.session != first.session


async def test_a_prompt_goes_where_it_is_cached_and_another_tenants_does_not_follow() -> None:
    nodes = fleet(nodes=1)
    for node in nodes.nodes:
        node.rtt.probe({"a": 0.001, "b": 0.005, "c": 0.010}[node.region], 0.0)
        node.outlook.pace.per_token = 0.001
    router = Router(nodes, Random(1))
    found = plan(router)
    with router.visit(found, nodes.nodes[2], 0.0) as visit:
        slots = 1 << nodes.nodes[2].slot
        assert plan(router).wanted.levels == [(slots, 1024.0)]  # at once: siblings may be right behind
        visit.node.outlook.load.began(visit.sent, None)
    assert next(plan(router).in_turn(0.0)) is nodes.nodes[2]
    assert next(plan(router, Tenant("other")).in_turn(0.0)) is nodes.nodes[0]


async def test_a_request_that_failed_leaves_no_belief_and_a_restart_takes_it_away() -> None:
    nodes = fleet(nodes=1)
    router, node = Router(nodes, Random(1)), nodes.nodes[0]
    with router.visit(plan(router), node, 0.0):
        pass
    assert not plan(router).wanted.levels
    with router.visit(plan(router), node, 0.0) as visit:
        node.outlook.load.began(visit.sent, None)
    assert plan(router).wanted.levels
    node.down("test")
    node.up(1.0)
    with router.visit(plan(router), node, 1.0):
        pass
    assert not plan(router).wanted.levels


async def test_retry_does_not_leave_the_tenants_regions(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}', regions: [near]}}\n")
    async with edge(tmp_path, keys=Keys(path)) as e:
        e.far.overrides["500"] = "ok"
        reply = await ask(e.app, chat("500"), headers={"authorization": f"Bearer {key}"})
        assert reply.status == 502
        assert e.far.requests == []
