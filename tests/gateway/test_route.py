"""The next try goes to another region; a tenant sees and reaches only its own."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.config import Address, Config, Listen, NodeConfig, RegionConfig, Tls
from edgeproxy.gateway.route import PATTERN_MODEL, Router, in_turn
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.upstream.node import Fleet
from tests.gateway.drive import ask, chat, edge


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


async def test_each_region_is_tried_once_before_any_twice() -> None:
    _, decision = Router(fleet(), Random(1)).route("m", ANONYMOUS, 0.0)
    order = [node.region for node in in_turn(decision, 0.0)]
    assert order[:3] == ["a", "b", "c"]
    assert sorted(order) == ["a", "a", "b", "b", "c", "c"]


async def test_unfit_nodes_come_last() -> None:
    nodes = fleet()
    nodes.nodes[0].down("test")
    nodes.nodes[2].down("test")
    nodes.nodes[3].down("test")
    _, decision = Router(nodes, Random(1)).route("m", ANONYMOUS, 0.0)
    names = [node.name for node in in_turn(decision, 0.0)]
    assert names[0] == "a-1"
    assert set(names[-3:]) == {"a-0", "b-0", "b-1"}


async def test_a_node_that_died_and_came_back_during_the_request_is_tried_again() -> None:
    nodes = fleet()
    _, decision = Router(nodes, Random(1)).route("m", ANONYMOUS, 10.0)
    turns = in_turn(decision, 10.0)
    tried = [next(turns) for _ in nodes.nodes]
    tried[0].down("test")
    tried[0].up(12.0)
    tried[1].down("test")
    assert list(turns) == [tried[0]]


async def test_tenant_is_served_in_its_regions_only() -> None:
    router = Router(fleet(), Random(1))
    _, decision = router.route("m", Tenant("acme", regions=frozenset({"b"})), 0.0)
    assert {node.region for node in in_turn(decision, 0.0)} == {"b"}
    with pytest.raises(ApiError) as caught:
        router.route("m", Tenant("acme", regions=frozenset({"nowhere"})), 0.0)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def test_names_of_the_configuration_are_labels_and_others_are_not() -> None:
    router = Router(fleet(), Random(1))
    assert router.route("m", ANONYMOUS, 0.0)[0] == "m"
    assert router.route("p-anything", ANONYMOUS, 0.0)[0] == PATTERN_MODEL
    with pytest.raises(ApiError):
        router.route("q", ANONYMOUS, 0.0)


async def test_retry_does_not_leave_the_tenants_regions(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}', regions: [near]}}\n")
    async with edge(tmp_path, keys=Keys(path)) as e:
        e.far.overrides["500"] = "ok"
        reply = await ask(e.app, chat("500"), headers={"authorization": f"Bearer {key}"})
        assert reply.status == 502
        assert e.far.requests == []
