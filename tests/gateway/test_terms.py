"""What native nodes are told of a request beside its body, and what a client cannot tell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.protocol.node.request import Terms, decode
from edgeproxy.upstream.salts import Salts
from tests.fake_exchange import Received
from tests.gateway.drive import Edge, ask, chat, edge

NODE_FIELDS = {"x-node-salt": "aa" * 32, "x-node-priority": "-9", "x-node-token": "guessed", "x-node-prefix": "aa"}


def told(request: Received) -> Terms:
    fields = dict(request.headers)
    return decode(fields.get)


async def send(e: Edge, key: str = "", headers: dict[str, str] | None = None, **more: Any) -> Received:
    authorization = {"authorization": f"Bearer {key}"} if key else {}
    reply = await ask(e.app, chat("ok", **more), headers={**authorization, **(headers or {})})
    assert reply.status == 200
    return e.near.requests[-1]


@pytest.fixture
def tenants(tmp_path: Path) -> tuple[Keys, str, str, str]:
    """Keys of two tenants: two of the first, and one of a tenant of low priority."""
    keys = [generate_key() for _ in range(3)]
    entries = [
        {"tenant": "acme", "sha256": keys[0][1], "priority": -2},
        {"tenant": "acme", "sha256": keys[1][1], "priority": -2},
        {"tenant": "batch", "sha256": keys[2][1], "priority": 5},
    ]
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": entries}))
    return Keys(path), keys[0][0], keys[1][0], keys[2][0]


async def test_a_tenant_has_one_salt_whatever_its_key_and_no_other_has_it(
    tmp_path: Path, tenants: tuple[Keys, str, str, str]
) -> None:
    keys, first, second, other = tenants
    async with edge(tmp_path, keys=keys) as e:
        salts = [told(await send(e, key)).salt for key in (first, second, other)]
    assert len(salts[0]) == 32
    assert salts[0] == salts[1] != salts[2]


def test_a_salt_is_a_function_of_secret_and_tenant() -> None:
    assert Salts(b"one").of("acme") == Salts(b"one").of("acme")
    assert len({Salts(b"one").of("acme"), Salts(b"two").of("acme"), Salts(b"one").of("acm")}) == 3


async def test_fields_for_nodes_are_the_proxys_alone(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        plain, forged = await send(e), await send(e, headers=NODE_FIELDS)
        fields = dict(forged.headers)
    assert told(forged) == told(plain)
    assert fields[b"x-node-token"] == b"node-token-secret"
    assert b"x-node-prefix" not in fields


@pytest.mark.parametrize(("asked", "given"), [(None, 0), (-1, -1), (-2, -2), (-3, -2), (7, 7), (0, 0)])
async def test_priority_is_clamped_to_the_tenants_best(
    tmp_path: Path, tenants: tuple[Keys, str, str, str], asked: int | None, given: int
) -> None:
    keys, key, _, _ = tenants
    async with edge(tmp_path, keys=keys) as e:
        request = await send(e, key, priority=asked, seed=2**62 + 1)
    body = orjson.loads(request.body)
    assert told(request).priority == given
    assert "priority" not in body
    assert body == chat("ok", seed=2**62 + 1)


async def test_a_tenant_of_low_priority_has_it_without_asking(
    tmp_path: Path, tenants: tuple[Keys, str, str, str]
) -> None:
    keys, _, _, batch = tenants
    async with edge(tmp_path, keys=keys) as e:
        assert told(await send(e, batch)).priority == 5
        assert told(await send(e, batch, priority=-5)).priority == 5


async def test_a_latency_budget_is_passed_on_and_a_wrong_one_refused(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert told(await send(e, headers={"x-latency-budget-ms": "150"})).budget_ms == 150
        strict = {"x-latency-budget-ms": "150", "x-latency-policy": "refuse"}
        assert told(await send(e, headers=strict)).within_s == 0.15
        for field in strict:
            refused = await ask(e.app, chat("ok"), headers={field: "soon"})
            assert (refused.status, refused.error["param"]) == (400, field)


async def test_a_body_without_priority_is_passed_on_as_it_came(tmp_path: Path) -> None:
    raw = b'{ "model": "ok","messages":[{"role":"user","content":"hi"}],  "x": 1.50 }'
    async with edge(tmp_path) as e:
        assert (await ask(e.app, raw)).status == 200
        assert e.near.requests[-1].body == raw
