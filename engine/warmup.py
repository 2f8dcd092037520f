"""The first requests of an engine: real ones, through the whole path from messages to text.

Until they have produced a token, nothing proves that the node can; and the first user would wait for pages, threads and
caches that they touch for the first time.
"""

from __future__ import annotations

import asyncio

from edgeproxy.protocol.openai.schema import ChatRequest, Message
from engine.chat import Chat, answer_id

TOKENS = 2
"""One from prefill and one from decode."""


class WarmupError(RuntimeError):
    """The engine ran, but no token came out."""


async def warm_up(chat: Chat, model: str) -> None:
    """One greedy and one sampled request side by side. Raises WarmupError, ApiError."""
    for usage in await asyncio.gather(_run(chat, model, 0.0), _run(chat, model, 1.0)):
        if usage != TOKENS:
            raise WarmupError(f"the warm-up asked for {TOKENS} tokens and got {usage}")


async def _run(chat: Chat, model: str, temperature: float) -> int:
    request = ChatRequest(
        model=model,
        messages=(Message("user", "Hello"),),
        stream=False,
        include_usage=False,
        max_tokens=TOKENS,
        stop=(),
        seed=0,
        temperature=temperature,
        top_p=0.95,
        top_k=0,
        ignore_eos=True,
        ignored=(),
    )
    answer = await chat.open(request, answer_id())
    while (await answer.next()).finish is None:
        pass
    return answer.usage().completion
