"""A client that leaves frees its sequence on the node within two steps, whatever the protocol and the phase."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pycurl
import pytest

from tests.e2e.deployment import MODEL, Deployment, wait_until

pytestmark = pytest.mark.xdist_group("e2e")
LONG = "word " * 6000


def body(*, stream: bool, long_prompt: bool) -> bytes:
    question = {"role": "user", "content": LONG if long_prompt else "Count to a thousand."}
    request = {"model": MODEL, "messages": [question], "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    return json.dumps(request).encode()


@contextmanager
def http1(deployment: Deployment, content: bytes) -> Iterator[threading.Event]:
    """A plain socket that leaves by closing. The event is set once bytes of the answer have come."""
    arrived = threading.Event()
    with socket.create_connection(("127.0.0.1", deployment.http), timeout=60) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += "x-edge-region: near\r\n"
        sock.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

        def wait() -> None:
            if sock.recv(12) == b"HTTP/1.1 200":
                arrived.set()

        reader = threading.Thread(target=wait)
        reader.start()
        try:
            yield arrived
        finally:
            sock.shutdown(socket.SHUT_RDWR)
            reader.join()


@contextmanager
def http3(deployment: Deployment, content: bytes) -> Iterator[threading.Event]:
    """libcurl over QUIC, which leaves by giving up its transfer. The event is set once bytes have come."""
    arrived, leave = threading.Event(), threading.Event()

    def receive(data: bytes) -> int:
        arrived.set()
        return -1 if leave.is_set() else len(data)

    def perform() -> None:
        handle = pycurl.Curl()
        handle.setopt(pycurl.URL, f"{deployment.tls_url}/chat/completions")
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_3ONLY)
        handle.setopt(pycurl.CAINFO, str(deployment.ca))
        handle.setopt(pycurl.HTTPHEADER, ["content-type: application/json", "x-edge-region: near"])
        handle.setopt(pycurl.POSTFIELDS, content)
        handle.setopt(pycurl.WRITEFUNCTION, receive)
        handle.setopt(pycurl.NOPROGRESS, False)
        handle.setopt(pycurl.XFERINFOFUNCTION, lambda *_: int(leave.is_set()))
        with pytest.raises(pycurl.error):
            handle.perform()
        handle.close()

    transfer = threading.Thread(target=perform)
    transfer.start()
    try:
        yield arrived
    finally:
        leave.set()
        transfer.join()


CLIENTS = {"h1": http1, "h3": http3}


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_leaving_frees_the_sequence(deployment: Deployment, protocol: str, stream: bool, phase: str) -> None:
    def status() -> dict[str, Any]:
        return deployment.node_status(deployment.near)

    before = status()

    def under_way() -> bool:
        found = status()
        steps: int = found["step_counter"] - before["step_counter"]
        return found["running"] == 1 and steps > (0 if phase == "prefill" else 20)

    with CLIENTS[protocol](deployment, body(stream=stream, long_prompt=phase == "prefill")) as arrived:
        wait_until(under_way, 30, deployment)
        if stream and phase == "decode":
            assert arrived.wait(30)
        else:
            assert not arrived.is_set()
    wait_until(lambda: status()["aborts"] > before["aborts"], 10, deployment)
    after = status()
    assert after["running"] == 0
    assert after["abort_steps_max"] <= 2
