"""The key with which commands ask an admin listener on another machine. It is never told: not in a message, not in a
process's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = "EDGEPROXY_ADMIN_KEY"
REMEDY = f"put a key with `admin: true` into {ENVIRONMENT}, or name its file with --admin-key-file"
_MAX_BYTES = 512
_KEY = re.compile(r"[!-~]+")


class AdminKeyError(RuntimeError):
    """There is no key where one was named; the message names the place and the remedy."""


def admin_key(path: Path | None, environment: Mapping[str, str]) -> str | None:
    """Of the file, else of the environment; None where neither is named. Raises AdminKeyError."""
    if path is None:
        found, where = environment.get(ENVIRONMENT, "").strip(), ENVIRONMENT
        if not found:
            return None
    else:
        where = str(path)
        try:
            with path.open("rb") as file:
                found = file.read(_MAX_BYTES + 2).decode("latin-1").strip()
        except OSError as error:
            raise AdminKeyError(f"{path}: cannot be read ({error.strerror}); it is to hold the key alone") from None
    if len(found) > _MAX_BYTES or not _KEY.fullmatch(found):
        raise AdminKeyError(f"{where}: holds no key; it is to be one line, as `edgeproxy keys --admin` shows it")
    return found


def authorization(key: str | None) -> dict[str, str]:
    """Header fields."""
    return {} if key is None else {"authorization": f"Bearer {key}"}


def refused(admin: str, status: int, key: str | None) -> str | None:
    """What to tell of a listener that wants a key, or another one; None where the status says nothing of that."""
    if status not in (401, 403):
        return None
    if key is None:
        return f"{admin} answers {status}: from another machine it wants a key; {REMEDY}"
    return f"{admin} answers {status}: it does not take this key; {REMEDY}"
