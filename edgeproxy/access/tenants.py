"""Who a request is for, and what it may see and use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    """Appears in logs and metrics; chosen by the operator, never by a client."""
    disclose: bool = False
    """May see timings, region names and node details of its own requests."""
    admin: bool = False
    """May read the admin listener from elsewhere than loopback."""
    regions: frozenset[str] | None = None
    """Regions that may serve it; None: all."""
    priority: int = 0
    """The best that its requests may ask for; lower runs earlier. Unasked they have 0, or this where it is more."""
    budget_s: float | None = None
    """For the first tokens of its requests, where they name no other; None: the model's."""


ANONYMOUS = Tenant("anonymous")
"""Everybody, where no key file is configured; such a proxy listens on loopback only."""
