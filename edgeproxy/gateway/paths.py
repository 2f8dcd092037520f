"""What nodes answer."""

from __future__ import annotations

from typing import Final

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS: Final = frozenset({CHAT_PATH.encode(), b"/v1/completions"})
"""Whose answers have choices."""
ROUTED: Final = frozenset({CHAT_PATH, "/v1/completions", "/tokenize", "/detokenize"})
