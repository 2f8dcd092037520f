"""The wider warm-up: dummy requests through tokenizer, scheduler, executor and detokenizer. On the CPU once a node is
ready, on a GPU before.

A round has a short prompt, a long one and several side by side; rounds go on until the next takes about as long as
the last: pages, caches and the interpreter's own have settled, and the prefill rate is known before the first user
asks. Any real request ends a round at once; it is taken up again when the engine has rested. What a rehearsal computes
is never found by anybody, and nothing counts it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import room
from engine.loop import EngineLoop
from engine.sequence import GenerationRequest
from engine.startup import Text
from engine.step import Finish, Sampling
from engine.text.detokenize import Detokenizer

REST_S = 0.25
"""Without a request, before a round begins."""
ROUNDS = 4
SETTLED = 0.1
"""Between two rounds, as a part of the first."""
WORDS = 80
TOKENS = 6
SIDE_BY_SIDE = 4


class Interrupted(Exception):
    """A real request came."""


class Rehearsal:
    """Belongs to the event loop."""

    def __init__(self, engine: EngineLoop, text: Text) -> None:
        self._engine = engine
        self._text = text
        self.rounds: list[float] = []
        """Seconds that each whole round took."""

    async def keep_warm(self) -> None:
        """At the start, unless it has run by then, and again after each sleep; ends only when it is cancelled."""
        if not self.rounds:
            await self.run()
        while True:
            await self._engine.woke.wait()
            self._engine.woke.clear()
            await self.run()

    async def run(self, *, alone: bool = False) -> None:
        """Returns when the engine is warm, or asleep. alone: nobody can ask yet, so that nothing is given way to."""
        self.rounds.clear()
        self._engine.starting = alone
        while not self._settled() and self._engine.failure is None and not self._engine.sleeping:
            if not alone:
                await self._rest()
            await asyncio.to_thread(self._text.prepare)
            try:
                self.rounds.append(await self._round())
            except* Interrupted:
                pass
        self._engine.starting = False

    def _settled(self) -> bool:
        if len(self.rounds) >= ROUNDS:
            return True
        return len(self.rounds) > 1 and abs(self.rounds[-1] - self.rounds[-2]) <= SETTLED * self.rounds[-2]

    async def _rest(self) -> None:
        """Until no request is there, and none has come for a while."""
        seen = -1
        while self._engine.live or seen != self._engine.requests:
            seen = self._engine.requests
            await asyncio.sleep(REST_S)

    async def _round(self) -> float:
        began = self._engine.now()
        for requests in self._requests():
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(self._one(request))
        return self._engine.now() - began

    def _requests(self) -> Iterator[list[GenerationRequest]]:
        """Each time those that run side by side; of these only what this node can hold."""
        yield [self._request("Hello!")]
        yield [self._request("Tell me " + "more " * WORDS)]
        yield [self._request(f"{number} and") for number in range(min(SIDE_BY_SIDE, self._engine.limits.slots))]

    def _request(self, content: str) -> GenerationRequest:
        prompt = self._text.tokenizer.encode(
            self._text.template.render([{"role": "user", "content": content}], add_generation_prompt=True)
        )
        return GenerationRequest(
            f"rehearsal-{secrets.token_hex(8)}",
            tuple(prompt[: max(1, room(self._engine.limits) - TOKENS)]),
            Sampling(temperature=0.7, top_p=0.95, seed=1),
            TOKENS,
            rehearsal=True,
        )

    async def _one(self, request: GenerationRequest) -> None:
        """Raises Interrupted."""
        detokenizer = Detokenizer(self._text.tokenizer)
        finish = None
        generation = None
        try:
            generation = self._engine.generate(request)
            while finish is None:
                delta = await generation.next()
                detokenizer.push(delta.tokens)
                finish = delta.finish
        except ApiError as refusal:  # the queue is full of real ones, or the engine has stopped
            raise Interrupted from refusal
        finally:
            if generation is not None:
                generation.abort()
        if finish is Finish.ABORT:
            raise Interrupted
