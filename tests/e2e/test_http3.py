"""Two HTTP/3 stacks that share no code with ours: BoringSSL with ngtcp2 (curl_cffi), OpenSSL with ngtcp2 (pycurl)."""

from __future__ import annotations

import io
import json
from typing import Any

import pycurl
import pytest
from curl_cffi import CurlHttpVersion, requests

from tests.e2e.deployment import MODEL, Deployment

pytestmark = pytest.mark.xdist_group("e2e")
ANSWER = "The capital of France is Paris."
HTTP_3 = 30  # libcurl's CURL_HTTP_VERSION_3, as it reports what was used


def body(*, stream: bool) -> dict[str, Any]:
    question = {"role": "user", "content": "What is the capital of France?"}
    return {"model": MODEL, "messages": [question], "temperature": 0, "stream": stream}


def text_of(events: bytes) -> str:
    found = [line[6:] for line in events.split(b"\n") if line.startswith(b"data: {")]
    assert events.endswith(b"data: [DONE]\n\n")
    return "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in found)


def test_curl_cffi_takes_an_answer_and_a_stream_over_one_connection(deployment: Deployment) -> None:
    with requests.Session(**deployment.http3()) as session:
        whole = session.post(f"{deployment.tls_url}/chat/completions", json=body(stream=False))
        stream = session.post(f"{deployment.tls_url}/chat/completions", json=body(stream=True))
    assert (whole.http_version, stream.http_version) == (HTTP_3, HTTP_3)
    assert whole.json()["choices"][0]["message"]["content"] == ANSWER
    assert text_of(stream.content) == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_pycurl_takes_an_answer_and_a_stream(deployment: Deployment, stream: bool) -> None:
    received = io.BytesIO()
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"{deployment.tls_url}/chat/completions")
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_3ONLY)
    handle.setopt(pycurl.CAINFO, str(deployment.ca))
    handle.setopt(pycurl.HTTPHEADER, ["content-type: application/json"])
    handle.setopt(pycurl.POSTFIELDS, json.dumps(body(stream=stream)))
    handle.setopt(pycurl.WRITEFUNCTION, received.write)
    handle.setopt(pycurl.TIMEOUT, 60)
    handle.perform()
    assert handle.getinfo(pycurl.RESPONSE_CODE) == 200
    assert handle.getinfo(pycurl.INFO_HTTP_VERSION) == HTTP_3
    handle.close()
    if stream:
        assert text_of(received.getvalue()) == ANSWER
    else:
        assert json.loads(received.getvalue())["choices"][0]["message"]["content"] == ANSWER


def test_the_tls_listener_offers_http3_to_http1_clients(deployment: Deployment) -> None:
    trust: dict[str, Any] = {"verify": str(deployment.ca)}
    answer = requests.get(f"{deployment.tls_url}/models", http_version=CurlHttpVersion.V1_1, **trust)
    assert f'h3=":{deployment.https}"' in (answer.headers["alt-svc"] or "")
