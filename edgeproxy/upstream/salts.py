"""What keeps tenants apart in a native node's KV cache."""

from __future__ import annotations

import hmac
from functools import lru_cache

TENANTS = 4096
"""Whose salts are remembered."""
_PURPOSE = b"kv-salt:"


class Salts:
    """HMAC-SHA256 of the tenant under a secret (RFC 2104): two tenants never have the same, and without the secret
    nobody can name another's. It is stable as long as the secret is, so that a tenant finds its prefixes through every
    proxy that shares it, and after a restart.
    """

    def __init__(self, secret: bytes) -> None:
        """secret: the node token. Nodes know it, and are trusted with every tenant's prompts anyway."""
        self.of = lru_cache(TENANTS)(lambda tenant: hmac.digest(secret, _PURPOSE + tenant.encode(), "sha256"))
