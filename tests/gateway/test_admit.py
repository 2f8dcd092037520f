"""What is wrong with a request is told in OpenAI's form, and what must not reach a node does not."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import orjson
import pytest

from edgeproxy.access.keys import Keys, generate_key
from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.admit import may_see_details, request_id
from edgeproxy.wire.ingress import HeadNote
from tests.fake_exchange import ANSWER
from tests.gateway.drive import ask, chat, edge


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'{"model": "ok", "messages": [\xff]}', None),
        (b"[1, 2]", None),
        (b"[" * 100_000, None),
        (b'{"messages": []}', "model"),
        (b'{"model": 7}', "model"),
        (b'{"model": ""}', "model"),
        (b'{"model": "ok", "stream": "yes"}', "stream"),
        (b'{"model": "ok", "stream": 1}', "stream"),
        (b'{"model": "ok", "cache_salt": "other-tenant"}', "cache_salt"),
        (b'{"model": "ok", "kv_transfer_params": {}}', "kv_transfer_params"),
        (b'{"model": "ok", "priority": "high"}', "priority"),
        (b'{"model": "ok", "priority": true}', "priority"),
        (b'{"model": "ok", "priority": -1001}', "priority"),
        (b'{"model": "ok", "resume": {"ids": [1]}}', "resume"),
    ],
)
async def test_bad_body_is_400_and_reaches_no_node(tmp_path: Path, body: bytes, param: str | None) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, body)
        assert (reply.status, reply.error["param"]) == (400, param)
        assert reply.error["type"] == "invalid_request_error"
        assert e.near.requests == []


async def test_null_means_absent(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, {"model": "ok", "stream": None, "cache_salt": None})
        assert reply.status == 200


@pytest.mark.parametrize("model", ["gpt-4", "near", "ok ", "x" * 10_000])
async def test_unknown_model_is_404_and_not_repeated(tmp_path: Path, model: str) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat(model))
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
        assert model not in e.lines.text.decode() or model == "near"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_only_json_is_accepted(tmp_path: Path, kind: str) -> None:
    """A web page can send the others to any address without asking first."""
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), headers={"content-type": kind})
        assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")


async def test_json_with_parameters_is_json(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), headers={"content-type": "Application/JSON; charset=utf-8"})
        assert reply.status == 200


async def test_compressed_body_is_refused_by_name(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, b"\x1f\x8b", headers={"content-encoding": "gzip"})).status == 415


@pytest.mark.parametrize("announced", [True, False])
async def test_body_over_the_limit_is_413(tmp_path: Path, announced: bool) -> None:
    async with edge(tmp_path, GatewayLimits(body_bytes=1000)) as e:
        pieces = [b"x" * 400] * 3
        headers = {"content-length": "1200"} if announced else {}
        reply = await ask(e.app, pieces=pieces, headers=headers)
        assert (reply.status, reply.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "ten"])
async def test_odd_content_length_is_no_fault(tmp_path: Path, length: str) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, chat("ok"), headers={"content-length": length})).status in (200, 413)


async def test_body_in_pieces_is_one_body(tmp_path: Path) -> None:
    raw = orjson.dumps(chat("ok"))
    async with edge(tmp_path) as e:
        reply = await ask(e.app, pieces=[raw[:1], raw[1:20], b"", raw[20:]])
        assert reply.body == ANSWER
        assert e.near.chats[0].body == raw


@pytest.mark.parametrize("given_id", ["a", "req-1_B", "x" * 64])
async def test_harmless_request_id_is_kept(tmp_path: Path, given_id: str) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("ok"), headers={"x-request-id": given_id})
        assert reply.header(b"x-request-id") == given_id.encode()
        assert e.near.chats[0].header(b"x-request-id") == given_id.encode()
        assert e.lines.requests[0]["request_id"] == given_id


@pytest.mark.parametrize("given_id", [b"", b"x" * 65, b"a b", b"a\r\nx: y", b"\xc3\xa9", b"a\n", b"../x"])
def test_other_request_ids_are_replaced(given_id: bytes) -> None:
    made = request_id({b"x-request-id": given_id}, Random(1))
    assert made != given_id
    assert re.fullmatch(rb"[A-Za-z0-9_-]{1,64}", made)


def test_new_request_ids_differ() -> None:
    rng = Random(1)
    assert len({request_id({}, rng) for _ in range(1000)}) == 1000


async def test_key_decides_before_the_body_is_read(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - tenant: acme\n    sha256: '{hashed}'\n")
    async with edge(tmp_path, keys=Keys(path)) as e:
        for headers in ({}, {"authorization": "Bearer ek_wrong"}, {"authorization": f"Basic {key}"}):
            reply = await ask(e.app, b"not even JSON", headers=headers)
            assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
            assert reply.error["type"] == "authentication_error"
            assert reply.header(b"www-authenticate") == b"Bearer"
        reply = await ask(e.app, chat("ok"), headers={"authorization": f"Bearer {key}"})
        assert reply.status == 200
        assert e.lines.requests[-1]["tenant"] == "acme"
        assert key.encode() not in e.lines.text


async def test_who_sent_a_head_before_is_known_until_the_keys_are_read_again(tmp_path: Path) -> None:
    key, hashed = generate_key()
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  - tenant: acme\n    sha256: '{hashed}'\n")
    keys, note, headers = Keys(path), HeadNote(), {"authorization": f"Bearer {key}"}
    async with edge(tmp_path, keys=keys) as e:
        replies = [await ask(e.app, chat("ok"), headers=headers, note=note) for _ in range(2)]
        assert [reply.status for reply in replies] == [200, 200]
        assert [line["tenant"] for line in e.lines.requests] == ["acme", "acme"]
        assert replies[0].header(b"x-request-id") != replies[1].header(b"x-request-id")
        assert note.found is not None
        assert key not in repr(note.found)
        path.write_text(f"keys:\n  - tenant: other\n    sha256: '{hashed}'\n")
        keys.reload()
        assert (await ask(e.app, chat("ok"), headers=headers, note=note)).status == 200
        assert e.lines.requests[-1]["tenant"] == "other"
        path.write_text(f"keys:\n  - tenant: acme\n    sha256: '{generate_key()[1]}'\n")
        keys.reload()
        assert (await ask(e.app, chat("ok"), headers=headers, note=note)).status == 401


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("x-edge-region", "nowhere", 400),
        ("content-type", "text/plain", 415),
        ("content-encoding", "gzip", 415),
        ("host", "evil.example", 421),
        ("x-request-id", "mine", 200),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 200),
    ],
)
async def test_what_a_head_asks_for_is_heeded_each_time(tmp_path: Path, name: str, value: str, status: int) -> None:
    note = HeadNote()
    async with edge(tmp_path) as e:
        for _ in range(2):
            reply = await ask(e.app, chat("ok"), headers={name: value}, note=note)
            assert reply.status == status
            assert note.found is None
            if name == "x-request-id":
                assert reply.header(b"x-request-id") == b"mine"
            if name == "traceparent":
                assert dict(e.near.requests[-1].headers)[b"traceparent"] == value.encode()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8080", ""])
async def test_foreign_host_is_421(tmp_path: Path, host: str) -> None:
    async with edge(tmp_path, hosts=("api.example",)) as e:
        for path, method in (("/v1/chat/completions", "POST"), ("/v1/models", "GET"), ("/healthz", "GET")):
            reply = await ask(e.app, chat("ok"), path=path, method=method, headers={"host": host})
            assert (reply.status, reply.error["code"]) == (421, "misdirected_request")
        assert (await ask(e.app, chat("ok"), headers={"host": "api.example:443"})).status == 200


LOCAL = {"client": ("127.0.0.1", 1)}
REMOTE = {"client": ("192.0.2.1", 1)}


def test_details_are_for_loopback_and_tenants_so_configured() -> None:
    assert may_see_details(LOCAL, {}, ANONYMOUS)
    assert may_see_details({"client": ("::1", 1)}, {}, ANONYMOUS)
    assert may_see_details(REMOTE, {}, Tenant("acme", disclose=True))
    assert not may_see_details(REMOTE, {}, ANONYMOUS)
    assert not may_see_details({}, {}, ANONYMOUS)
    assert not may_see_details(LOCAL, {b"x-forwarded-for": b"192.0.2.1"}, ANONYMOUS), "it came from elsewhere"
    assert not may_see_details({"client": ("1270.example", 1)}, {}, ANONYMOUS)
