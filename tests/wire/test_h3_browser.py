"""A browser that nobody told about our code: Chromium loads a page and streams over HTTP/3."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, read_body, reply, serving
from tests.e2e.browser import PROGRAM, browser

pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
PAGE = b"<!doctype html><title>edge</title><p>hello"
EVENTS = b"".join(b"data: %d\n\n" % number for number in range(50))
ASK = """
fetch('/events', {method: 'POST', body: 'x'.repeat(100000)}).then(async (answer) => {
  const text = await answer.text();
  const entries = performance.getEntriesByType('navigation').concat(performance.getEntriesByName(answer.url));
  return {status: answer.status, text, protocols: entries.map((entry) => entry.nextHopProtocol)};
})
"""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive)
    if scope["path"] != "/events":
        await reply(send, PAGE, 200, (b"content-type", b"text/html"))
        return
    assert len(body) == 100_000
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for start in range(0, len(EVENTS), 10):
        await send({"type": "http.response.body", "body": EVENTS[start : start + 10], "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


def browse(edge: Edge, certificate: DevCertificate, folder: Path) -> Any:
    trust = f"--ignore-certificate-errors-spki-list={certificate.spki_sha256_b64}"
    quic = f"--origin-to-force-quic-on=127.0.0.1:{edge.port}"
    with browser(folder, "--enable-quic", quic, trust) as page:
        page.open(f"{edge.url}/")
        while page.ask("document.readyState") != "complete" or page.ask("location.protocol") != "https:":
            pass
        return page.ask(ASK)


async def test_chromium_speaks_http3_with_us(certificate: DevCertificate, tmp_path: Path) -> None:
    async with serving(app, certificate) as edge:
        found = await asyncio.to_thread(browse, edge, certificate, tmp_path)
    assert found == {"status": 200, "text": EVENTS.decode(), "protocols": ["h3", "h3"]}
