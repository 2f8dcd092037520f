from __future__ import annotations

import datetime
import ssl
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from edgeproxy.config import NodeTls
from edgeproxy.upstream.tls import node_context
from edgeproxy.wire.tls import DevCertificate, TlsError, make_dev_certificate, server_context

DAY = datetime.timedelta(days=1)


def handshake(certificate: DevCertificate, name: str, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake in memory."""
    server = server_context(certificate.certificate, certificate.key, ["h2", "http/1.1"])
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=name)
    far = server.wrap_bio(up, down, server_side=True)
    while True:
        for end in (near, far):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        if near.version() is not None and near.getpeercert():
            return near


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_whoever_trusts_the_ca_trusts_the_certificate_for_this_machine(tmp_path: Path, name: str) -> None:
    certificate = make_dev_certificate(tmp_path)
    client = ssl.create_default_context(cafile=str(certificate.ca))
    handshake(certificate, name, client)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificate, "example.com", client)


def test_private_files_are_private_and_the_cas_key_is_nowhere(tmp_path: Path) -> None:
    certificate = make_dev_certificate(tmp_path / "new" / "folder")
    assert stat.S_IMODE(certificate.key.stat().st_mode) == 0o600
    keys = [path for path in certificate.key.parent.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert keys == [certificate.key]


def test_a_certificate_is_kept_until_its_end_is_near_and_never_lives_longer_than_browsers_allow(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    first = make_dev_certificate(tmp_path, now)
    assert 10 * DAY < first.not_after - now <= 14 * DAY
    assert make_dev_certificate(tmp_path, now + 5 * DAY) == first
    later = first.not_after - DAY
    second = make_dev_certificate(tmp_path, later)
    assert second.not_after > later + 10 * DAY
    assert second.spki_sha256_b64 != first.spki_sha256_b64


@pytest.mark.parametrize("broken", ["localhost.pem", "localhost.key", "ca.pem"])
@pytest.mark.parametrize("how", ["missing", "rubbish", "foreign"])
def test_files_that_do_not_fit_together_are_made_anew(tmp_path: Path, broken: str, how: str) -> None:
    make_dev_certificate(tmp_path / "a")
    make_dev_certificate(tmp_path / "b")
    victim = tmp_path / "a" / broken
    if how == "missing":
        victim.unlink()
    else:
        victim.write_bytes(b"rubbish" if how == "rubbish" else (tmp_path / "b" / broken).read_bytes())
    certificate = make_dev_certificate(tmp_path / "a")
    handshake(certificate, "localhost", ssl.create_default_context(cafile=str(certificate.ca)))


def test_the_certificate_says_what_it_is_for(tmp_path: Path) -> None:
    made = make_dev_certificate(tmp_path)
    leaf = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    made = make_dev_certificate(tmp_path / "a")
    other = make_dev_certificate(tmp_path / "b")
    with pytest.raises(TlsError, match=r"absent\.pem"):
        server_context(tmp_path / "absent.pem", made.key, ["http/1.1"])
    with pytest.raises(TlsError, match=str(other.key)):
        server_context(made.certificate, other.key, ["http/1.1"])


def test_an_encrypted_key_is_said_to_be_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    made = make_dev_certificate(tmp_path / "a")
    key = serialization.load_pem_private_key(made.key.read_bytes(), password=None)
    secret = serialization.BestAvailableEncryption(b"secret")
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(TlsError, match=r"encrypted\.key is encrypted.*openssl pkey -in"):
        server_context(made.certificate, encrypted, ["http/1.1"])
    both = tmp_path / "both.pem"
    both.write_bytes(made.certificate.read_bytes() + encrypted.read_bytes())
    with pytest.raises(TlsError, match=r"both\.pem is encrypted"):
        node_context(NodeTls(ca=made.ca, certificate=both, key=None))


def test_tls_1_2_is_the_oldest_and_always_forward_secret(tmp_path: Path) -> None:
    made = make_dev_certificate(tmp_path)
    context = server_context(made.certificate, made.key, ["http/1.1"])
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    older = [cipher for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert older
    assert all(cipher["kea"] == "kx-ecdhe" and cipher["aead"] for cipher in older)
