from __future__ import annotations

from dataclasses import replace

import pytest

from engine.loop import Generation
from engine.sequence import GenerationRequest
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.warmup import WarmupError, warm_up
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, serving


async def test_a_token_comes_out_greedy_and_sampled(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    executor = FakeExecutor(script=lambda history: 5, built_for=LIMITS)
    async with serving(executor, tokenizer, chat_template) as served:
        await warm_up(served.engine)
    opened = [row.opens.temperature for plan in executor.plans for row in plan.rows if row.opens]
    assert sorted(opened) == [0.0, 1.0]


async def test_an_engine_that_fails_is_not_warm(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(FakeExecutor(built_for=LIMITS, fails_at=1), tokenizer, chat_template) as served:
        with pytest.raises(WarmupError, match="asked for 2 tokens and got 0"):
            await warm_up(served.engine)


async def test_too_few_tokens_are_not_warm(
    tokenizer: Tokenizer, chat_template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeExecutor(script=lambda history: 5, built_for=LIMITS)
    async with serving(executor, tokenizer, chat_template) as served:
        generate = served.engine.generate

        def shortened(request: GenerationRequest) -> Generation:
            return generate(replace(request, max_tokens=1))

        monkeypatch.setattr(served.engine, "generate", shortened)
        with pytest.raises(WarmupError, match="asked for 2 tokens and got 1"):
            await warm_up(served.engine)
