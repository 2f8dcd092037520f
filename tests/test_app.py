"""What is not the hot path: models, health, the operator's listener; every error in OpenAI's form."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.gateway.paths import ROUTED
from edgeproxy.observe.live import MAX_CLIENTS
from tests.fake_behaviours import BEHAVIOURS
from tests.gateway.drive import ask, chat, edge


def key_file(folder: Path, extra: str = "") -> tuple[Keys, dict[str, str]]:
    key, hashed = generate_key()
    path = folder / "keys.yaml"
    path.write_text(f"keys:\n  - {{tenant: acme, sha256: '{hashed}'{extra}}}\n")
    return Keys(path), {"authorization": f"Bearer {key}"}


async def test_models_of_all_regions_are_listed_once(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, method="GET", path="/v1/models")
        assert reply.json["object"] == "list"
        ids = [model["id"] for model in reply.json["data"]]
        assert sorted(ids) == sorted({*BEHAVIOURS, "near-only"})
        assert all(
            set(model) == {"id", "object", "created", "owned_by"} and model["object"] == "model"
            for model in reply.json["data"]
        )
        assert "near-1" not in reply.body.decode(), "models tell nothing of the nodes"


async def test_one_model(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, method="GET", path="/v1/models/ok")).json["id"] == "ok"
        reply = await ask(e.app, method="GET", path="/v1/models/org/none")
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_tenant_is_shown_what_its_regions_serve(tmp_path: Path) -> None:
    keys, headers = key_file(tmp_path, ", regions: [far]")
    async with edge(tmp_path, keys=keys) as e:
        reply = await ask(e.app, method="GET", path="/v1/models", headers=headers)
        ids = {model["id"] for model in reply.json["data"]}
        assert "ok" in ids
        assert "near-only" not in ids
        assert (await ask(e.app, method="GET", path="/v1/models/near-only", headers=headers)).status == 404


async def test_models_need_a_key_and_health_does_not(tmp_path: Path) -> None:
    keys, headers = key_file(tmp_path)
    async with edge(tmp_path, keys=keys) as e:
        for path in ("/v1/models", "/v1/models/ok"):
            reply = await ask(e.app, method="GET", path=path)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert (await ask(e.app, method="GET", path=path, headers=headers)).status == 200
        for path in ("/healthz", "/readyz"):
            assert (await ask(e.app, method="GET", path=path)).status == 200


async def test_ready_is_when_a_node_is(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, method="GET", path="/readyz")).status == 200
        for node in e.fleet.nodes:
            node.down("test")
        reply = await ask(e.app, method="GET", path="/readyz")
        assert (reply.status, reply.error["code"]) == (503, "not_ready")
        assert reply.header(b"retry-after") == b"1"
        assert (await ask(e.app, method="GET", path="/healthz")).status == 200, "alive, if of no use"


async def test_the_document_of_what_is_answered(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, method="GET", path="/openapi.json")
        assert reply.status == 200
        assert set(reply.json["paths"]) >= ROUTED


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions/more", 404, "not_found"),
        ("GET", "/healthz/more", 404, "not_found"),
        ("GET", "/metrics", 404, "not_found"),
        ("GET", "/admin/status", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
        ("TRACE", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PROPFIND", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_told_in_form(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, method=method, path=path)
        assert (reply.status, reply.error["code"]) == (status, code)
        assert reply.error["type"] == "invalid_request_error"
        assert reply.header(b"x-request-id")
        assert reply.header(b"access-control-allow-origin") is None
        if status == 405:
            allowed = (reply.header(b"allow") or b"").split(b", ")
            assert method.encode() not in allowed
            assert (b"POST" in allowed) == path.endswith("completions")


async def test_fault_of_the_proxy_is_told_in_form_and_logged_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("prompt-that-must-not-be-logged")

    async with edge(tmp_path) as e:
        monkeypatch.setattr(type(e.fleet), "serving", fault)
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models/x"), ("GET", "/v1/models")):
            monkeypatch.setattr(type(e.fleet), "models", property(fault), raising=False)
            reply = await ask(e.app, chat("ok"), method=method, path=path)
            assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert b"RuntimeError" in e.lines.text
        assert b"prompt-that-must" not in e.lines.text


async def test_admin_pages_carry_their_policy(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for path in ("/", "/dashboard", "/dashboard/chat", "/assets/dashboard.js", "/assets/uplot-1.6.32.js"):
            reply = await ask(e.admin, method="GET", path=path)
            assert reply.status == 200
            assert b"default-src 'none'" in (reply.header(b"content-security-policy") or b"")
            assert reply.header(b"x-content-type-options") == b"nosniff"
        assert (await ask(e.admin, method="GET", path="/assets/__init__.py")).status == 404
        assert (await ask(e.admin, method="POST", path="/v1/chat/completions")).status == 404


async def test_a_request_is_found_by_its_id_however_many_came_after_it(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for number in range(110):
            await ask(e.app, chat("ok"), headers={"x-request-id": f"r-{number}"})
        found = (await ask(e.admin, method="GET", path="/admin/requests/r-0")).json
        assert (found["request_id"], found["runner_up"]["node"]) == ("r-0", "far-1")
        assert (await ask(e.admin, method="GET", path="/admin/requests/r-x")).status == 404


async def test_a_page_is_found_with_a_slash_behind_its_name(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for path, place in (("/dashboard/", b"/dashboard"), ("/dashboard/chat/", b"/dashboard/chat")):
            reply = await ask(e.admin, method="GET", path=path)
            assert (reply.status, reply.header(b"location")) == (308, place)
        assert (await ask(e.admin, method="GET", path="/dashboard/nothing/")).status == 404


async def test_status_tells_nodes_and_recent_requests(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.fleet.nodes[0].rtt.probe(0.040, 1.0)
        e.fleet.nodes[1].down("no answer")
        await ask(e.app, chat("ok", stream=True))
        status = (await ask(e.admin, method="GET", path="/admin/status")).json
        near, far = status["nodes"]
        assert (near["name"], near["ready"], near["rtt_s"], near["in_flight"]) == ("near-1", True, 0.040, 0)
        assert (far["name"], far["ready"], far["trouble"]) == ("far-1", False, "no answer")
        (request,) = status["recent"]
        assert request["first_token_s"] > 0
        assert status["budget_ms"] == 150.0


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_a_dashboard_that_was_closed_takes_no_place_and_is_no_failure(tmp_path: Path) -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("nobody asked for a body")

    async def send(message: MutableMapping[str, Any]) -> None:
        if len(sent) == 2:
            raise OSError("the client is gone")
        sent.append(message)

    async with edge(tmp_path) as e:
        for _ in range(MAX_CLIENTS + 1):
            sent.clear()
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.4"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": "/admin/events",
                "query_string": b"",
                "headers": [(b"host", b"127.0.0.1")],
                "client": ("127.0.0.1", 50000),
                "server": ("127.0.0.1", 9080),
            }
            await e.admin(scope, receive, send)
            assert sent[0]["status"] == 200


async def test_budgets_of_tenants_are_edges_of_what_users_wait(tmp_path: Path) -> None:
    keys, headers = key_file(tmp_path, ", budget_ms: 77")
    async with edge(tmp_path, keys=keys) as e:
        assert (await ask(e.app, chat("ok"), headers=headers)).status == 200
        metrics = (await ask(e.admin, method="GET", path="/metrics")).body
    assert b'edgeproxy_first_token_seconds_bucket{le="0.077",region="near"} ' in metrics


async def test_a_limit_of_decisions_is_a_number_as_ascii_writes_it(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for limit, status in ((b"2", 200), ("²".encode(), 400), ("٣".encode(), 400), (b"-1", 400), (b"", 400)):
            reply = await ask(e.admin, method="GET", path="/admin/decisions", query=b"limit=" + limit)
            assert reply.status == status


async def test_admin_is_for_loopback_or_an_admin_key(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.admin, method="GET", path="/metrics", client="192.0.2.1")
        assert (reply.status, reply.error["code"]) == (403, "forbidden")
        reply = await ask(e.admin, method="GET", path="/metrics", headers={"host": "evil.example"})
        assert reply.status == 421, "a page on this machine's browser must not read it"
    for extra, status in (("", 403), (", admin: true", 200)):
        keys, headers = key_file(tmp_path, extra)
        async with edge(tmp_path, keys=keys) as e:
            for path in ("/metrics", "/admin/status", "/"):
                ask_from_afar = ask(e.admin, method="GET", path=path, client="192.0.2.1", headers=headers)
                assert (await ask_from_afar).status == status
            without = await ask(e.admin, method="GET", path="/dashboard", client="192.0.2.1")
            assert without.status == 401 and "ssh" in without.error["message"], "what a person at a browser can do"
