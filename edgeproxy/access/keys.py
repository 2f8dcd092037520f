"""Bearer keys: a file of hashes, read once and on reload.

A key holds 256 random bits, so that a plain SHA-256 of it can be neither inverted nor guessed; a slow hash would only
slow down every request. The file holds no key, only hashes:

    keys:
      - tenant: acme
        sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
        disclose: true          # may see timings and regions (default: false)
        admin: false            # may read the admin listener from afar (default: false)
        regions: [near, far]    # may be served there only (default: everywhere)
        priority: 0             # the best that its requests may ask for, -1000 to 1000; lower runs earlier (default: 0)
        budget_ms: 300          # for first tokens, where a request names no other (default: as regions.yaml says)
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.protocol.bearer import bearer_token
from edgeproxy.protocol.node.request import MAX_BUDGET_MS, MAX_PRIORITY
from edgeproxy.protocol.openai.errors import ApiError

PREFIX = "ek_"
MAX_FILE_BYTES = 4 * 2**20
MAX_KEY_BYTES = 512
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_KNOWN = ("tenant", "sha256", "disclose", "admin", "regions", "priority", "budget_ms")


class KeysError(ValueError):
    """A key file that cannot be used; the message names file, entry and remedy."""


def generate_key() -> tuple[str, str]:
    """A new key, to be shown once, and its SHA-256 in hex, for the file."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, digest(key.encode()).hex()


def add_key(path: Path, tenant: str, *, disclose: bool, admin: bool, regions: Sequence[str]) -> str:
    """Makes a key, appends its hash to the file (made if need be, for its owner's eyes only) and returns the key.

    Raises KeysError, and then has written nothing.
    """
    key, hashed = generate_key()
    entry: dict[str, Any] = {"tenant": tenant, "sha256": hashed}
    entry |= {name: True for name, wanted in (("disclose", disclose), ("admin", admin)) if wanted}
    if regions:
        entry["regions"] = list(regions)
    _entry(entry, f"{path}: the new key")
    if path.exists():
        load(path)
    line = "  - " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
            file.write(line if file.tell() else f"keys:\n{line}")
    except OSError as error:
        raise KeysError(f"{path}: cannot be written ({error.strerror}); name another file with --file") from error
    return key


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Keys:
    """Finds the tenant of a request by its `Authorization` field. Without a file everybody is ANONYMOUS."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises KeysError."""
        self._path = path
        self._tenants: Mapping[bytes, Tenant] | None = None
        self.generation = 0
        """Another one with every reload: what was found before it holds no more."""
        self.reload()

    @property
    def required(self) -> bool:
        return self._tenants is not None

    @property
    def budgets(self) -> list[float]:
        """Those that tenants have for their first tokens, each once, in seconds."""
        found = dict.fromkeys(tenant.budget_s for tenant in (self._tenants or {}).values())
        return [budget for budget in found if budget is not None]

    def reload(self) -> None:
        """Reads the file again. Raises KeysError and keeps the keys in force if it cannot be used."""
        if self._path is not None:
            self._tenants = load(self._path)
            self.generation += 1

    def tenant(self, authorization: bytes | None) -> Tenant:
        """Raises ApiError 401. `authorization` is the field's value, `Bearer KEY` (RFC 6750 section 2.1)."""
        if self._tenants is None:
            return ANONYMOUS
        if authorization is None:
            raise _unauthorized("the request carries no API key; send `Authorization: Bearer KEY`")
        key = bearer_token(authorization)
        if not key or len(key) > MAX_KEY_BYTES:
            raise _unauthorized("the Authorization field is not `Bearer KEY`")
        # Looked up by hash: how long that takes tells of the hash at most, and no key can be found from it.
        found = self._tenants.get(hashlib.sha256(key).digest())
        if found is None:
            raise _unauthorized("the API key is not known here; ask the operator for a valid one")
        return found


def load(path: Path) -> dict[bytes, Tenant]:
    """SHA-256 of a key -> its tenant. Raises KeysError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise KeysError(f"{path}: cannot be read ({error.strerror}); make one with `edgeproxy keys`") from error
    if len(raw) > MAX_FILE_BYTES:
        raise KeysError(f"{path}: larger than {MAX_FILE_BYTES} bytes; this is no key file")
    try:
        tree = yaml.safe_load(raw)
    except (yaml.YAMLError, RecursionError) as error:
        # The parser's message would quote the file, and somebody may have put a key itself into it.
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise KeysError(f"{path}: not valid YAML{line}; write a list below `keys:`") from None
    entries = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(entries, list) or not entries:
        raise KeysError(f"{path}: has no list `keys`; add one entry per key with `tenant` and `sha256`")
    tenants: dict[bytes, Tenant] = {}
    for index, entry in enumerate(entries):
        hashed, tenant = _entry(entry, f"{path}: keys[{index}]")
        if hashed in tenants:
            raise KeysError(f"{path}: keys[{index}]: the same key stands in the file twice; remove one")
        tenants[hashed] = tenant
    return tenants


def _entry(entry: Any, where: str) -> tuple[bytes, Tenant]:
    if not isinstance(entry, dict):
        raise KeysError(f"{where}: is not a mapping; give `tenant` and `sha256`")
    for name in entry:
        if name not in _KNOWN:
            raise KeysError(f"{where}: holds an unknown field; known are {', '.join(_KNOWN)}")
    tenant, hashed = entry.get("tenant"), entry.get("sha256")
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise KeysError(f"{where}: `tenant` is no name; use lower-case letters, digits, '.', '_' and '-'")
    if not isinstance(hashed, str) or not _DIGEST.fullmatch(hashed):
        raise KeysError(f"{where}: `sha256` is not 64 lower-case hex digits in quotes; it is the hash, not the key")
    return bytes.fromhex(hashed), Tenant(
        name=tenant,
        disclose=_flag(entry, "disclose", where),
        admin=_flag(entry, "admin", where),
        regions=_regions(entry, where),
        priority=_priority(entry, where),
        budget_s=_budget_s(entry, where),
    )


def _flag(entry: dict[str, Any], name: str, where: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise KeysError(f"{where}: `{name}` is neither true nor false")
    return value


def _priority(entry: dict[str, Any], where: str) -> int:
    value = entry.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:
        raise KeysError(f"{where}: `priority` is no whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return value


def _budget_s(entry: dict[str, Any], where: str) -> float | None:
    value = entry.get("budget_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_BUDGET_MS:
        raise KeysError(f"{where}: `budget_ms` is no number of milliseconds from 1 to {MAX_BUDGET_MS}")
    return value / 1e3


def _regions(entry: dict[str, Any], where: str) -> frozenset[str] | None:
    value = entry.get("regions")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise KeysError(f"{where}: `regions` is not a list of names; leave it out to allow all")
    return frozenset(value)


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", headers=((b"www-authenticate", b"Bearer"),))
