"""How much an engine has to do. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """A snapshot for reports."""

    running: int
    waiting: int
    waiting_prefill_tokens: int
    """Prompt tokens that no plan names yet, of running and waiting sequences."""
    blocks_free: int
    """Blocks without content that are promised to nobody."""
    blocks_evictable: int
    """Blocks with content that nobody holds and nobody will need, as far as is known."""
    step: int

    @property
    def blocks_spare(self) -> int:
        """What a new request can have."""
        return self.blocks_free + self.blocks_evictable
