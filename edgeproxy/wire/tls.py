"""Server TLS contexts, and a development certificate that the proxy makes itself."""

from __future__ import annotations

import base64
import datetime
import fcntl
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = datetime.timedelta(days=13)
"""Browsers accept a pinned certificate of at most 14 days (WebTransport `serverCertificateHashes`)."""
_RENEW_BEFORE_END = datetime.timedelta(days=3)
_CLOCK_SKEW = datetime.timedelta(hours=1)
_NAMES = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)
_TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Forward secrecy and AEAD only, which is also what HTTP/2 allows (RFC 9113 section 9.2.2)."""


_DER, _PEM = serialization.Encoding.DER, serialization.Encoding.PEM


class TlsError(ValueError):
    """A certificate or key that cannot be used; the message names file, cause and remedy."""


@dataclass(frozen=True, slots=True)
class DevCertificate:
    certificate: Path
    """PEM chain."""
    key: Path
    ca: Path
    """PEM; what a client is to trust."""
    spki_sha256_b64: str
    """For Chromium's `--ignore-certificate-errors-spki-list`."""
    not_after: datetime.datetime


def server_context(certificate: Path, key: Path, alpn: Sequence[str]) -> ssl.SSLContext:
    """TLS 1.2 and 1.3, with the given ALPN protocols, best first. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_TLS12_CIPHERS)
    context.set_alpn_protocols(list(alpn))
    try:
        load_chain(context, certificate, key)
    except OSError as error:  # ssl.SSLError is one
        cause = error.strerror or getattr(error, "reason", None) or error
        raise TlsError(
            f"cannot use certificate {certificate} with key {key}: {cause}; give a PEM chain and its private key"
        ) from error
    return context


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """The files that a context is to show. Raises OSError, and TlsError for an encrypted key: OpenSSL would ask for its
    password at the terminal, and wait."""
    file = key or certificate

    def unknown() -> str:
        raise TlsError(
            f"the key in {file} is encrypted, and nobody is there to give its password; put a decrypted one in its "
            f"place, which only this user may read: (umask 077; openssl pkey -in {file} -out NEW.key)"
        )

    context.load_cert_chain(certificate, key, password=unknown)


def make_dev_certificate(folder: Path, now: datetime.datetime | None = None) -> DevCertificate:
    """The certificate in `folder`, made anew if there is none or its end is near. Processes may share a folder.

    The CA's key is never written, so whoever trusts `ca` trusts this one certificate. A renewal therefore makes a new
    CA in the same file. (Name constraints would say the same, but BoringSSL refuses those on addresses.)
    """
    now = now or datetime.datetime.now(datetime.UTC)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _load(folder)
        if found is None or found.not_after - now < _RENEW_BEFORE_END:
            _make(folder, now)
            found = _load(folder)
    assert found is not None
    return found


def _load(folder: Path) -> DevCertificate | None:
    certificate, key, ca = _paths(folder)
    try:
        leaf = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        issuer = x509.load_pem_x509_certificate(ca.read_bytes())
        leaf.verify_directly_issued_by(issuer)
    except (OSError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return None
    spki = leaf.public_key().public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if spki != private.public_key().public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo):
        return None
    fingerprint = base64.b64encode(hashlib.sha256(spki).digest()).decode()
    return DevCertificate(certificate, key, ca, fingerprint, leaf.not_valid_after_utc)


def _make(folder: Path, now: datetime.datetime) -> None:
    ca_key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, ca_id = _name("edgeproxy development CA"), x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _builder(issuer, issuer, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    leaf = (
        _builder(_name("localhost"), issuer, leaf_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(leaf_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate, key, ca_file = _paths(folder)
    _write(
        key,
        leaf_key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        mode=0o600,
    )
    _write(certificate, leaf.public_bytes(_PEM), mode=0o644)
    _write(ca_file, ca.public_bytes(_PEM), mode=0o644)


def _paths(folder: Path) -> tuple[Path, Path, Path]:
    return folder / "localhost.pem", folder / "localhost.key", folder / "ca.pem"


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Whole or not at all, and never readable by others for a moment."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)
