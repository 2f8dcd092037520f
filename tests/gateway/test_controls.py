"""What a client may wish for is honoured or refused, never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.gateway.controls import Controls, controls
from edgeproxy.protocol.openai.errors import ApiError
from tests.gateway.drive import ask, chat, edge

REGIONS = ("near", "far")


def test_every_wish_is_read() -> None:
    fields = {
        b"x-edge-region": b"far, near,far",
        b"x-latency-budget-ms": b"80",
        b"x-session-id": b"s-1",
        b"x-edge-degrade": b"Allow",
    }
    assert controls(fields, REGIONS) == Controls(("far", "near"), 0.080, b"s-1", True)
    assert controls({b"host": b"x"}, REGIONS) == Controls()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-edge-region", b""),
        (b"x-edge-region", b"near,"),
        (b"x-edge-region", b"elsewhere"),
        (b"x-edge-region", b"near,elsewhere"),
        (b"x-edge-region", b"\xff\xfe"),
        (b"x-edge-region", b",".join([b"near"] * 17)),
        (b"x-latency-budget-ms", b"0"),
        (b"x-latency-budget-ms", b""),
        (b"x-latency-budget-ms", b"soon"),
        (b"x-latency-budget-ms", b"99999999"),
        (b"x-session-id", b""),
        (b"x-session-id", b"s" * 257),
        (b"x-edge-degrade", b"yes"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: bytes, value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        controls({name: value}, REGIONS)
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")
    assert caught.value.param == name.decode()


async def test_a_pinned_request_is_served_there_or_nowhere(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, chat("ok"))).header(b"x-edge-region") == b"near"
        reply = await ask(e.app, chat("ok"), headers={"x-edge-region": "far"})
        assert (reply.status, reply.header(b"x-edge-region")) == (200, b"far")
        before = len(e.near.chats)
        reply = await ask(e.app, chat("500"), headers={"x-edge-region": "far"})
        assert (reply.status, reply.header(b"x-edge-attempts")) == (502, b"1")
        assert len(e.near.chats) == before


async def test_a_tenant_cannot_wish_for_regions_that_are_not_its_own(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}', regions: [near]}}\n")
    async with edge(tmp_path, keys=Keys(path)) as e:
        reply = await ask(e.app, chat("ok"), headers={"x-edge-region": "far", "authorization": f"Bearer {key}"})
        assert (reply.status, reply.error["param"]) == (400, "x-edge-region")
        assert e.far.chats == []


async def test_a_draining_region_is_not_reached_by_a_pin(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.fleet.nodes[1].draining = True
        reply = await ask(e.app, chat("ok"), headers={"x-edge-region": "far"})
        assert (reply.status, reply.error["code"]) == (503, "no_node")
        assert e.far.chats == []


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("x-latency-budget-ms", "80", "800"),
        ("x-latency-budget-ms", "80", "80"),
        ("x-latency-policy", "refuse", ""),
        ("x-session-id", "a", "b"),
        ("x-edge-degrade", "allow", "allow"),
        ("x-edge-timings", "usage", "usage"),
        ("authorization", "Bearer a", "Bearer b"),
        ("content-type", "application/json", "text/plain"),
        ("content-encoding", "identity", "gzip"),
    ],
)
async def test_a_field_that_is_there_twice_is_refused_by_name(
    tmp_path: Path, name: str, first: str, second: str
) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), headers={name: first}, again=[(name.encode(), second.encode())])
        assert (reply.status, reply.error["param"]) == (400, name)
        assert e.near.chats == e.far.chats == []


async def test_regions_may_come_in_several_lines(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["ok"] = "500"
        reply = await ask(e.app, chat("ok"), headers={"x-edge-region": "far"}, again=[(b"x-edge-region", b"near")])
        assert (reply.status, reply.header(b"x-edge-region"), reply.header(b"x-edge-attempts")) == (200, b"near", b"2")


async def test_fields_that_mean_nothing_to_us_may_come_twice(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), again=[(b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"via", b"1.1 a")])
        assert reply.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_no_field_is_told_twice(tmp_path: Path, stream: bool) -> None:
    """Neither to the node nor to the client."""
    wishes = {"x-edge-region": "near", "x-latency-budget-ms": "80", "x-session-id": "s", "x-request-id": "r"}
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok", stream=stream, priority=1), headers=wishes)
        for fields in (reply.headers, e.near.chats[0].headers):
            names = [name for name, _ in fields]
            assert len(names) == len(set(names)), names
        assert e.near.chats[0].header(b"x-latency-budget-ms") == b"80"
        assert e.near.chats[0].header(b"x-edge-region") is None


@pytest.mark.parametrize(
    ("asked", "tenants", "models", "given"),
    [
        (None, None, {}, 0.150),
        (None, None, {"ok": 400.0}, 0.400),
        (None, 300, {"ok": 400.0}, 0.300),
        (80, 300, {"ok": 400.0}, 0.300),
        (3_600_000, None, {}, 0.150),
    ],
)
async def test_the_objective_goes_by_the_tenants_budget_before_the_models_and_never_by_the_clients_own(
    tmp_path: Path, asked: int | None, tenants: int | None, models: dict[str, float], given: float
) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}', budget_ms: {tenants or 'null'}}}\n")
    headers = {"authorization": f"Bearer {key}"} | ({} if asked is None else {"x-latency-budget-ms": str(asked)})
    async with edge(tmp_path, keys=Keys(path), budgets=models) as e:
        assert (await ask(e.app, chat("ok"), headers=headers)).status == 200
        (record,) = e.lines.requests
        assert (record["budget_s"], record["own_budget_s"]) == (given, None if asked is None else asked / 1e3)
