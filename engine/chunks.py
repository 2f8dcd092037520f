"""How much of prompts one step takes. Pure.

What a step takes, everybody waits for: a stream for its next token, a newcomer for the step that runs. So beside
streams a step takes one quantum of prefill. Where nobody streams it takes more: small steps are slower for each token.
"""

from __future__ import annotations

from engine.step import BLOCK_TOKENS

QUANTUM_S = 0.010
"""About how long the prefill of one step may take: nobody who decodes waits longer for others' prompts."""
LEAST_CHUNK = 12
"""Tokens of prefill a step, however slow they are: a tile of the kernels' tokens. Fewer take as long."""
LONE_CHUNK = 3 * BLOCK_TOKENS
"""The same where nobody decodes: nearly the rate of a whole step."""


def prefill_budget(step_tokens: int, decoding: int, tokens_per_s: float, quantum_s: float, *, alone: bool) -> int:
    """Tokens of prompts in a step that has `decoding` decode rows.

    tokens_per_s: as measured, 0 while nothing is known. alone: no stream waits meanwhile.
    """
    left = step_tokens - decoding
    if not tokens_per_s:
        return left
    return min(left, max(LONE_CHUNK if alone else LEAST_CHUNK, int(tokens_per_s * quantum_s)))
