"""What an Authorization field carries. Pure."""

from __future__ import annotations


def bearer_token(authorization: bytes) -> bytes:
    """The token of `Bearer TOKEN` (RFC 6750, section 2.1); empty where it is of another scheme, or has none.

    The scheme's name may be written in any case (RFC 9110, section 11.1).
    """
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
