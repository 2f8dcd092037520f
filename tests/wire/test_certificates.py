"""A new certificate comes into force for new handshakes over TCP and QUIC alike, and nobody is disconnected."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from edgeproxy.config import Address
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import DevCertificate, TlsError, make_dev_certificate
from tests.client.h3_edge import Edge
from tests.client.h3_peer import get
from tests.wire.apps import echo
from tests.wire.raw import RawClient

NOW = datetime.datetime.now(datetime.UTC)


@dataclass
class Served:
    certificates: Certificates
    files: DevCertificate
    tcp: TcpListener
    quic: Edge

    def put(self, other: DevCertificate) -> None:
        for new, old in ((other.certificate, self.files.certificate), (other.key, self.files.key)):
            shutil.copy(new, old)

    async def seen_over_tcp(self) -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.tcp.port, ssl=context)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.transport.abort()
        return found

    async def accepted_over_quic(self, ca: Path) -> bool:
        self.quic.ca = ca
        try:
            await self.quic.peer()
        except ConnectionError:
            return False
        return True


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    files = make_dev_certificate(folder)
    certificates = Certificates(files.certificate, files.key)
    state: dict[str, Any] = {}
    tcp = TcpListener(echo, Limits(), ssl=certificates.context, alt_svc=lambda: None, state=state)
    await tcp.start(Address("127.0.0.1", 0))
    quic = QuicListener(echo, Limits(), certificate=files.certificate, key=files.key, state=state)
    await quic.start(Address("127.0.0.1", 0))
    certificates.serve(tcp, quic)
    edge = Edge(quic, files)
    try:
        yield Served(certificates, files, tcp, edge)
    finally:
        await edge.close()
        await tcp.drain(0)


def der(certificate: Path) -> bytes:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).public_bytes(ssl_der())


def ssl_der() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.DER


async def test_new_handshakes_see_the_new_certificate_and_old_connections_go_on(tmp_path: Path) -> None:
    async with served(tmp_path / "old") as edge:
        context = ssl.create_default_context(cafile=str(edge.files.ca))
        over_tcp = await RawClient.connect(edge.tcp.port, context)
        over_quic = await edge.quic.peer()
        new = make_dev_certificate(tmp_path / "new")
        edge.put(new)
        assert edge.certificates.reload(NOW) == [f"certificate (until {new.not_after:%Y-%m-%d})"]
        assert edge.certificates.not_after == new.not_after.timestamp()
        assert await edge.seen_over_tcp() == der(new.certificate)
        assert await edge.accepted_over_quic(new.ca)
        over_tcp.write(b"GET /tcp HTTP/1.1\r\nhost: h\r\n\r\n")
        assert (await over_tcp.answer()).body == b"GET /tcp "
        assert (await over_quic.reply(over_quic.request(get("/quic")))).body == b"GET /quic "
        await over_tcp.close()


def damage(edge: Served, tmp_path: Path, how: str) -> None:
    other = make_dev_certificate(tmp_path / "new")
    if how == "another key":
        shutil.copy(other.key, edge.files.key)
    elif how == "another certificate":
        shutil.copy(other.certificate, edge.files.certificate)
    elif how == "no certificate":
        edge.files.certificate.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n")
    elif how == "gone":
        edge.files.key.unlink()
    else:
        away = datetime.timedelta(days=30 if how == "of the future" else -30)
        edge.put(make_dev_certificate(tmp_path / "other days", NOW + away))


@pytest.mark.parametrize(
    "how", ["another key", "another certificate", "no certificate", "gone", "expired", "of the future"]
)
async def test_what_cannot_be_used_changes_nothing(how: str, tmp_path: Path) -> None:
    async with served(tmp_path / "old") as edge:
        before, until = await edge.seen_over_tcp(), edge.certificates.not_after
        damage(edge, tmp_path, how)
        with pytest.raises(TlsError):
            edge.certificates.reload(NOW)
        assert await edge.seen_over_tcp() == before
        assert await edge.accepted_over_quic(edge.files.ca)
        assert edge.certificates.not_after == until


async def test_files_that_say_the_same_are_no_news(tmp_path: Path) -> None:
    async with served(tmp_path) as edge:
        assert edge.certificates.reload(NOW) == []


def test_a_certificate_that_renews_itself_is_asked_first(tmp_path: Path) -> None:
    files = make_dev_certificate(tmp_path)
    certificates = Certificates(files.certificate, files.key, renew=lambda: make_dev_certificate(tmp_path, later))
    later = NOW + datetime.timedelta(days=12)
    assert certificates.reload(later) == [f"certificate (until {later + datetime.timedelta(days=13):%Y-%m-%d})"]
