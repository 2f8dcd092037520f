"""What a proxy tells a native node of a request, beside its body: header fields that no client can set through it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from edgeproxy.protocol.openai.errors import ApiError, invalid

SALT_HEADER = b"x-node-salt"
"""Hex. Only requests of one salt share KV; a function of a secret and the tenant."""
PRIORITY_HEADER = b"x-node-priority"
"""Lower runs earlier, as in vLLM's `priority`."""
BUDGET_HEADER = b"x-latency-budget-ms"
"""Milliseconds in which the first token is of use, from the node's receipt of the request."""
POLICY_HEADER = b"x-latency-policy"
"""`refuse`: answer 429 `latency_budget_exceeded` at once where the budget cannot be met; else it only ranks nodes."""

MAX_SALT_BYTES = 64
MAX_PRIORITY = 1000
MAX_BUDGET_MS = 3_600_000

_HEX = re.compile(rb"(?:[0-9a-f]{2}){1,%d}" % MAX_SALT_BYTES)
_SIGNED = re.compile(rb"-?[0-9]{1,9}")
_DIGITS = re.compile(rb"[0-9]{1,9}")


class Terms(NamedTuple):
    """On which terms a node serves a request."""

    salt: bytes = b""
    """Also stands for the tenant, whom it does not name."""
    priority: int = 0
    budget_ms: int | None = None
    strict: bool = False
    """The request is to be refused where the budget cannot be met."""

    @property
    def within_s(self) -> float | None:
        """The budget of a request that is to be refused beyond it."""
        return self.budget_ms / 1000 if self.strict and self.budget_ms is not None else None

    def encode(self) -> list[tuple[bytes, bytes]]:
        fields = []
        if self.salt:
            fields.append((SALT_HEADER, self.salt.hex().encode()))
        if self.priority:
            fields.append((PRIORITY_HEADER, b"%d" % self.priority))
        if self.budget_ms is not None:
            fields.append((BUDGET_HEADER, b"%d" % self.budget_ms))
        if self.strict:
            fields.append((POLICY_HEADER, b"refuse"))
        return fields


def budget_ms(value: bytes | None) -> int | None:
    """A client's `x-latency-budget-ms`; None where it sends none. Raises ApiError 400, also for an empty one."""
    if value is None:
        return None
    if not _DIGITS.fullmatch(value) or not 0 < int(value) <= MAX_BUDGET_MS:
        name = BUDGET_HEADER.decode()
        raise invalid(f"{name} must be a whole number of milliseconds in [1, {MAX_BUDGET_MS}]", name, "invalid_value")
    return int(value)


def strict(value: bytes | None) -> bool:
    """A client's `x-latency-policy`; None where it sends none. Raises ApiError 400, also for an empty one."""
    if value not in (None, b"refuse"):
        name = POLICY_HEADER.decode()
        raise invalid(f"{name} must be `refuse` or absent", name, "invalid_value")
    return value is not None


def decode(header: Callable[[bytes], bytes | None]) -> Terms:
    """`header`: the value of a field, None where it is absent. Raises ApiError 400 for what cannot be read."""
    salt, priority, budget = header(SALT_HEADER), header(PRIORITY_HEADER), header(BUDGET_HEADER)
    policy = header(POLICY_HEADER)
    if salt is None and priority is None and budget is None and policy is None:
        return _NONE
    if salt is not None and not _HEX.fullmatch(salt):
        raise _malformed(SALT_HEADER, f"hexadecimal, at most {MAX_SALT_BYTES} bytes")
    if priority is not None and not (_SIGNED.fullmatch(priority) and abs(int(priority)) <= MAX_PRIORITY):
        raise _malformed(PRIORITY_HEADER, f"a whole number in [-{MAX_PRIORITY}, {MAX_PRIORITY}]")
    return Terms(bytes.fromhex((salt or b"").decode()), int(priority or b"0"), budget_ms(budget), strict(policy))


_NONE = Terms()


def _malformed(field: bytes, wanted: str) -> ApiError:
    return invalid(f"{field.decode()} must be {wanted}.", field.decode(), "invalid_value")
