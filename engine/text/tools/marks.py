"""How models mark calls in their answers."""

from __future__ import annotations

from typing import Final

HERMES_OPEN: Final = "<tool_call>"
HERMES_CLOSE: Final = "</tool_call>"
LLAMA_TAG: Final = "<|python_tag|>"
MISTRAL_MARK: Final = "[TOOL_CALLS]"
