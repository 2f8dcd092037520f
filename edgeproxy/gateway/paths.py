"""What nodes answer."""

from __future__ import annotations

import re
from typing import Final

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS: Final = frozenset({CHAT_PATH.encode(), b"/v1/completions"})
"""Whose answers have choices."""
ROUTED: Final = frozenset({CHAT_PATH, "/v1/completions", "/tokenize", "/detokenize"})

_SLASHES = re.compile("/{2,}")


def plain(path: str) -> str:
    """As clients mean it that join a base URL and a path carelessly (`//v1/models`, `/v1/chat/completions/`): answered
    as what it stands for, since a redirect would cost a round trip, and turns some clients' POST into a GET."""
    if "//" not in path and not path.endswith("/"):
        return path
    return _SLASHES.sub("/", path).rstrip("/") or "/"
