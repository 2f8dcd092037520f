"""The certificate of the public listeners: read and checked as a whole, then in force for new handshakes."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from edgeproxy.wire.dispatch import PROTOCOLS
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import TlsError, server_context


class Certificates:
    """TCP and QUIC listeners take what is in force here; connections that exist keep what they began with."""

    def __init__(self, certificate: Path, key: Path, *, renew: Callable[[], object] | None = None) -> None:
        """`renew` is called before each reload; it may write the files anew.

        Raises TlsError for a certificate or key that cannot be used. One that has expired can: an edge that clients
        may still accept is better than none.
        """
        self.files = (certificate, key)
        self._renew = renew
        self.context = server_context(certificate, key, tuple(PROTOCOLS))
        self._leaf = _leaf(certificate)
        self._tcp: TcpListener | None = None
        self._quic: QuicListener | None = None

    @property
    def not_after(self) -> float:
        """Unix seconds at which the certificate in force expires."""
        return self._leaf.not_valid_after_utc.timestamp()

    def serve(self, tcp: TcpListener, quic: QuicListener) -> None:
        """These listeners were made with the present certificate, and follow from now on."""
        self._tcp, self._quic = tcp, quic

    def reload(self, now: datetime.datetime) -> list[str]:
        """What has changed, for people. Raises TlsError, also for a certificate that is not valid at `now`, and leaves
        all as it was then."""
        if self._renew is not None:
            self._renew()
        certificate, key = self.files
        context, leaf = server_context(certificate, key, tuple(PROTOCOLS)), _leaf(certificate)
        out_of_date = _out_of_date(leaf, certificate, now)
        if out_of_date is not None:
            raise TlsError(out_of_date)
        same = _fingerprint(leaf) == _fingerprint(self._leaf)
        if self._quic is not None:
            self._quic.use(certificate, key)
        if self._tcp is not None:
            self._tcp.use(context)
        self.context, self._leaf = context, leaf
        return [] if same else [f"certificate (until {leaf.not_valid_after_utc:%Y-%m-%d})"]


def out_of_date(certificate: Path, now: datetime.datetime) -> str | None:
    """Why clients will refuse it at `now`, for people; None where its dates are no reason. Raises TlsError."""
    return _out_of_date(_leaf(certificate), certificate, now)


def _out_of_date(leaf: x509.Certificate, certificate: Path, now: datetime.datetime) -> str | None:
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if begin > now:
        return f"{certificate} is valid from {begin:%Y-%m-%d %H:%M} UTC only; put it in place after that"
    if end <= now:
        return f"{certificate} expired on {end:%Y-%m-%d %H:%M} UTC; put a valid one in its place"
    return None


def _leaf(certificate: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except (OSError, ValueError) as error:
        raise TlsError(f"cannot read certificate {certificate}: {error}; give a PEM chain, the leaf first") from error


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return hashlib.sha256(certificate.tbs_certificate_bytes).digest()
