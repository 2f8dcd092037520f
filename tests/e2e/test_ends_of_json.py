"""Texts and JSON at their ends, through the proxy and at the node: both answer alike, and never with a failure."""

from __future__ import annotations

import httpx
import orjson
import pytest

from tests.e2e.deployment import MODEL, NODE_TOKEN, Deployment

pytestmark = pytest.mark.xdist_group("e2e")
HEADERS = {"content-type": "application/json", "x-node-token": NODE_TOKEN}


def chat(content: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"%s","max_tokens":2,"messages":[{"role":"user","content":%s}]%s}' % (
        MODEL.encode(),
        content,
        more,
    )


def schema(text: bytes) -> bytes:
    return b',"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%s}}' % text


CASES = {
    "scripts": (chat(orjson.dumps("Grüße 👩‍👩‍👧 \u202eעברית عربى\u202c 𝔘 e\u0301 \x00\x7f")), 200),  # noqa: RUF001
    "pair": (chat(b'"\\ud83d\\udca1"'), 200),
    "half-a-pair": (chat(b'"\\ud83d"'), 400),
    "no-utf8": (chat(b'"\xff"'), 400),
    "100-kB": (chat(orjson.dumps("a " * 50_000)), 400),
    "twice": (chat(b'"a"', b',"seed":1,"seed":2'), 200),
    "nan": (chat(b'"a"', b',"temperature":NaN'), 400),
    "inf": (chat(b'"a"', b',"temperature":1e999'), 400),
    "huge": (chat(b'"a"', b',"seed":' + b"9" * 400), 400),
    "deep-array": (chat(b'"a"', b',"unheard_of":' + b"[" * 100_000), 400),
    "deep-object": (chat(b'"a"', b',"metadata":' + b'{"a":' * 300 + b"1" + b"}" * 300), 400),
    "deep-schema": (chat(b'"a"', schema(b'{"items":' * 400 + b"{}" + b"}" * 400)), 400),
}


@pytest.mark.parametrize("name", CASES)
def test_the_ends_of_json(deployment: Deployment, name: str) -> None:
    body, status = CASES[name]
    for port in (deployment.http, deployment.near):
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        answer = httpx.post(url, content=body, headers=HEADERS, timeout=60)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert {"message", "type", "param", "code"} <= set(answer.json()["error"])
