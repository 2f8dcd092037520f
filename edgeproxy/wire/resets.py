"""Stateless resets (RFC 9000 section 10.3): who has a connection that this process knows nothing of is told at once.

A process that was killed says goodbye to nobody. Its successor gets the datagrams of its connections, cannot read them,
and says so with a token that only the proxy behind this very socket can know. The client then comes anew, instead of
waiting for its own timeout.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from pathlib import Path
from typing import Any

from edgeproxy.wire.allowance import Allowance
from edgeproxy.wire.limits import Limits

_log = logging.getLogger(__name__)

SECRET_BYTES = 32
TOKEN_BYTES = 16
SHORTEST = 21
"""Octets of a reset that passes for a packet with a short header."""
PLAIN = 42
"""From here on it looks like any other (section 10.3), and each is as long as chance will have it, up to LONGEST."""
LONGEST = 80
_PURPOSE = b"edgeproxy: QUIC stateless reset, 1: "


class Resets:
    """Of one UDP socket.

    The key is made of a secret and the socket's address, so that proxies which share a secret do not share tokens: who
    could have a datagram answered by one of them must not learn how to end the connections of another (section 21.11).
    """

    def __init__(self, secret: bytes, sockname: tuple[Any, ...], limits: Limits, now: float) -> None:
        self._key = hmac.digest(secret, _PURPOSE + repr(sockname[:2]).encode(), "sha256")
        self._allowance = Allowance(limits.stateless_resets_burst, limits.stateless_resets_per_s, now)

    def token(self, cid: bytes) -> bytes:
        """What a client is given with a connection id, and finds at the end of a reset."""
        return hmac.digest(self._key, cid, "sha256")[:TOKEN_BYTES]

    def answer(self, data: bytes, cid_bytes: int, now: float) -> bytes | None:
        """To a datagram for no connection. None where none is due: it has a long header, is no QUIC, is so short that
        it may be a reset itself, or too many were sent. Always shorter than `data`, so that two endpoints which answer
        each other fall silent. `cid_bytes`: of the connection ids that we give out."""
        if data[0] & 0xC0 != 0x40 or len(data) <= SHORTEST:
            return None
        if not self._allowance.take(now):
            self._allowance.take(now, -1)  # who comes too often uses up what there is, and no more
            return None
        size = len(data) - 1
        if size > PLAIN:
            size = PLAIN + secrets.randbelow(min(size, LONGEST) - PLAIN + 1)
        noise = bytearray(os.urandom(size - TOKEN_BYTES))
        noise[0] = noise[0] & 0x3F | 0x40
        return bytes(noise) + self.token(data[1 : 1 + cid_bytes])


def kept_secret(file: Path) -> bytes:
    """From the file, which is made where there is none; its owner alone can read it. Processes that start at the same
    time get the same. Where it cannot be had, one for this process: connections then outlive a crash until they time
    out."""
    try:
        if not file.exists():
            _make(file)
        secret = file.read_bytes()
        if len(secret) == SECRET_BYTES:
            return secret
        trouble = f"it has {len(secret)} bytes instead of {SECRET_BYTES}; remove it"
    except OSError as error:
        trouble = f"{error.strerror or error}; make it readable, or give another folder with --state"
    _log.warning("cannot use %s: %s. Until then clients of HTTP/3 learn late that a proxy has crashed.", file, trouble)
    return secrets.token_bytes(SECRET_BYTES)


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(secrets.token_bytes(SECRET_BYTES))
    try:
        os.link(fresh, file)
    except FileExistsError:
        pass  # another process was first
    finally:
        fresh.unlink()
