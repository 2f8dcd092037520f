"""TLS to nodes: the proxy shows its certificate, and takes no node of another name or another authority."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from edgeproxy.config import NodeTls
from edgeproxy.upstream.h1 import Pool, UpstreamError
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.tls import node_context
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate
from tests.upstream.certificate import make_certificate
from tests.upstream.raw import always, raw_server

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
def node(tmp_path: Path) -> DevCertificate:
    return make_dev_certificate(tmp_path / "node")


def asking_for_certificates(node: DevCertificate, client: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(client))
    context.load_cert_chain(node.certificate, node.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def ask(port: int, tls: NodeTls) -> int:
    pool = Pool(Origin("https", "127.0.0.1", port), ssl_context=node_context(tls), server_name=tls.name)
    try:
        response = await pool.request(b"GET", b"/")
        return response.status
    finally:
        pool.close()


async def test_a_node_that_asks_is_shown_our_certificate(node: DevCertificate, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    async with raw_server(always(OK), ssl_context=asking_for_certificates(node, certificate)) as server:
        assert await ask(server.port, NodeTls(node.ca, certificate, key)) == 200
        with pytest.raises(UpstreamError):
            await ask(server.port, NodeTls(node.ca))


@pytest.mark.parametrize(("name", "found"), [(None, True), ("localhost", True), ("node-7.internal", False)])
async def test_a_node_must_have_the_name_that_is_pinned(
    name: str | None, found: bool, node: DevCertificate, tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(node.certificate, node.key)
    async with raw_server(always(OK), ssl_context=context) as server:
        if found:
            assert await ask(server.port, NodeTls(node.ca, name=name)) == 200
        else:
            with pytest.raises(UpstreamError, match="certificate"):
                await ask(server.port, NodeTls(node.ca, name=name))


async def test_a_node_of_another_authority_is_refused(node: DevCertificate, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(node.certificate, node.key)
    other = make_dev_certificate(tmp_path / "other")
    async with raw_server(always(OK), ssl_context=context) as server:
        with pytest.raises(UpstreamError, match="certificate"):
            await ask(server.port, NodeTls(other.ca))


async def test_old_tls_is_not_spoken(node: DevCertificate) -> None:
    assert node_context(NodeTls(node.ca)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(node: DevCertificate, tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path)
    with pytest.raises(ValueError, match=str(node.key)):
        node_context(NodeTls(node.ca, certificate, node.key))
