"""The first steps of an engine.

Until they have produced a token, nothing proves that the node can; and the first user would wait for pages, threads and
caches that they touch for the first time.
"""

from __future__ import annotations

import asyncio

from engine.loop import EngineLoop
from engine.sequence import GenerationRequest
from engine.step import Sampling

PROMPT = 8
"""Tokens; as many rows as prefill's kernels take at once."""
TOKENS = 2
"""One from prefill and one from decode."""


class WarmupError(RuntimeError):
    """The engine ran, but no token came out."""


async def warm_up(engine: EngineLoop) -> None:
    """One greedy and one sampled sequence side by side, of ids: the tokenizer need not be there yet.

    Raises WarmupError, ApiError.
    """
    for sampled in await asyncio.gather(_run(engine, 0.0), _run(engine, 1.0)):
        if sampled != TOKENS:
            raise WarmupError(f"the warm-up asked for {TOKENS} tokens and got {sampled}")


async def _run(engine: EngineLoop, temperature: float) -> int:
    most = max(1, min(PROMPT, engine.limits.context - TOKENS))
    prompt = tuple(token % engine.limits.vocab for token in range(most))
    sampling = Sampling(temperature=temperature, top_p=0.95)
    generation = engine.generate(GenerationRequest(f"warm-up-{temperature}", prompt, sampling, TOKENS))
    sampled = 0
    while True:
        delta = await generation.next()
        sampled += len(delta.tokens)
        if delta.finish is not None:
            return sampled
