"""A node that is full says how long a newcomer would wait, and lets in who waits no longer than it allows."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from functools import partial

from engine.gauges import ANSWERS
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, PATIENCE_S, chat_call, says, serving


async def until(condition: Callable[[], bool], gate: threading.Semaphore) -> None:
    """Lets one step after another end."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            gate.release()
            await asyncio.sleep(0.001)


async def test_who_would_wait_too_long_is_told_so_in_openai_shape(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    seconds, gate = itertools.count(), threading.Semaphore(0)
    fake = FakeExecutor(says(tokenizer, "word " * 80), LIMITS, gate, clock=lambda: float(next(seconds)))
    async with serving(fake, tokenizer, chat_template, max_wait_s=4.0) as served:
        for number in range(ANSWERS):
            known = chat_call(served.app, content=f"{number}", max_tokens=20)
            await until(partial(getattr, known, "ended"), gate)
            assert known.status == 200
        running = [chat_call(served.app, content=f"run {number}", max_tokens=20) for number in range(LIMITS.slots)]
        await until(lambda: served.engine.load().running == LIMITS.slots, gate)
        call = chat_call(served.app, content="more", max_tokens=20)
        await until(lambda: call.ended, gate)
        error = call.json()["error"]
        assert (call.status, error["code"], error["type"]) == (429, "wait_predicted", "rate_limit_error")
        assert error["recovery"]["expected_ms"] > 4000
        assert int(call.headers[b"retry-after-ms"]) == error["recovery"]["retry_after_ms"]
        await until(lambda: all(other.ended for other in running), gate)
        assert [other.status for other in running] == [200] * LIMITS.slots
        again = chat_call(served.app, content="more", max_tokens=20)
        await until(lambda: again.ended, gate)
        assert again.status == 200
