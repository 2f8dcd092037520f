"""Whatever comes in whatever order (requests, cancels, sleep, the end): each request ends once, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.sse import SseParser
from engine.admission import Mode
from engine.executor.base import Limits
from engine.feed import Reader
from engine.generation import Generation
from engine.loop import EngineLoop
from engine.sequence import GenerationRequest
from engine.step import Finish, Logprobs, Sampling
from engine.store import BlockStore
from tests.engine.fake_executor import FakeExecutor, expected, logprobs
from tests.engine.forms import Form
from tests.engine.serving import until

LIMITS = Limits(slots=3, blocks=10, step_tokens=12, context=160, vocab=1000)
QUEUE = 16
GROWING = 3
"""The first requests, which nobody leaves: together they outgrow the pool."""
STEPS = 120
SLEEP_S = 0.002
PATIENCE_S = 120


@dataclass
class Client:
    """One request, and what came of it."""

    request: GenerationRequest
    generation: Generation
    form: Form | None
    left: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish: Finish | None = None
    refused: ApiError | None = None

    async def listen(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.finish is None:
                    delta = await self.generation.next()
                    self.tokens += delta.tokens
                    self.logprobs += delta.logprobs
                    self.finish = delta.finish
        except ApiError as error:
            self.refused = error

    def check(self, *, stopped: bool) -> None:
        """stopped: the engine was told to end while it may still have run."""
        prompt, sampling = self.request.prompt, self.request.sampling
        whole = expected(prompt, self.request.max_tokens, constraint=self.form and self.form.anew())
        assert self.tokens == whole[: len(self.tokens)]
        if sampling.logprobs is not None:
            assert self.logprobs == [told for token in self.tokens for told in logprobs(token, sampling.logprobs, 1000)]
        if self.refused is not None:
            assert (self.refused.status, self.tokens) == (429, [])
        elif self.finish is Finish.ABORT:
            assert self.left or stopped
        else:
            assert self.finish in (Finish.STOP, Finish.LENGTH)
            assert self.tokens == whole


def request_of(rng: random.Random, name: str) -> tuple[GenerationRequest, Form | None]:
    form = rng.choice([None, None, Form(2), Form(9), Form(5, ends=7)])
    family = rng.randrange(3)
    shared = [(family * 7 + i) % 1000 for i in range(rng.choice([0, 15, 16, 48, 80]))]
    prompt = (*shared, *(rng.randrange(3) for _ in range(rng.randrange(1, 30))))
    sampling = Sampling(
        first=len(prompt),
        presence=rng.choice([0.0, 0.5]),
        constrained=form is not None,
        logprobs=rng.choice([None, None, 0, 2]),
    )
    constraint = form.anew() if form is not None else None
    salt = rng.choice([b"", b"tenant"])
    request = GenerationRequest(
        name, prompt, sampling, rng.randrange(1, 50), salt, rng.randrange(-1, 2), constraint=constraint
    )
    return request, form


def growing(number: int) -> tuple[GenerationRequest, Form | None]:
    """Constrained, or with log-probabilities, or neither."""
    form = Form(9) if number == 1 else None
    sampling = Sampling(first=20, constrained=form is not None, logprobs=2 if number == 2 else None)
    prompt = tuple(range(number, number + 20))
    return GenerationRequest(f"growing {number}", prompt, sampling, 100, constraint=form and form.anew()), form


async def follow(reader: Reader, held: dict[str, str]) -> None:
    """A proxy's view of the blocks that a node holds."""
    seq = -1
    while (event := await reader.next()) is not None:
        for parsed in SseParser().feed(event):
            told = orjson.loads(parsed.data)
            if told["kind"] == "snapshot":
                held |= dict(told["blocks"])
            else:
                assert told["seq"] == seq + 1, "a gap"
                for sign, key, parent in told["changes"]:
                    if sign == "+":
                        held[key] = parent
                    else:
                        del held[key]
            seq = told["seq"]


async def asleep(loop: EngineLoop, gate: threading.Semaphore) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not loop.sleeping:
            gate.release(100)  # what waits takes hundreds of steps
            await asyncio.sleep(0.001)


def told(loop: EngineLoop) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in loop.feed.snapshot():
        for parsed in SseParser().feed(part):
            found |= dict(orjson.loads(parsed.data)["blocks"])
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tier", [False, True], ids=["memory", "second tier"])
@pytest.mark.parametrize("mode", Mode)
async def test_each_request_ends_once_with_its_own_tokens(mode: Mode, tier: bool, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    gate = threading.Semaphore(0)
    executor = FakeExecutor(built_for=LIMITS, gate=gate)
    store = None
    if tier:
        size = 4096 + 8 * (executor.block_bytes + 64)
        store = BlockStore(tmp_path / "kv", size, numerics="fp_fake", block_bytes=executor.block_bytes)
    loop = EngineLoop(executor, queue_length=QUEUE, mode=mode, store=store, sleep_s=SLEEP_S)
    loop.start()
    clients: list[Client] = []
    listening: list[asyncio.Task[None]] = []
    held: dict[str, str] = {}
    following = asyncio.create_task(follow(loop.feed.reader(), held))
    done: Counter[str] = Counter()

    def come(request: GenerationRequest, form: Form | None) -> None:
        clients.append(Client(request, loop.generate(request), form))
        listening.append(asyncio.create_task(clients[-1].listen()))

    for number in range(GROWING):
        come(*growing(number))
    for step in range(STEPS):
        what = rng.choice(["come", "come", "leave", "steps", "steps", "look", "sleep"])
        done[what] += 1
        if what == "come":
            come(*request_of(rng, f"{step}"))
        elif what == "leave" and clients[GROWING:]:
            client = rng.choice(clients[GROWING:])
            client.left = True
            client.generation.abort()
        elif what == "steps":
            gate.release(rng.randrange(1, 30))
        elif what == "look":
            await asyncio.sleep(0)
            load = loop.load()
            assert 0 <= load.blocks_spare <= LIMITS.blocks
            assert load.running <= LIMITS.slots
        elif what == "sleep" and rng.random() < 0.3:
            await asleep(loop, gate)
            assert loop.load().blocks_free == LIMITS.blocks
    stopped = rng.random() < 0.5
    gate.release(3 if stopped else 100_000)
    if not stopped:
        await asyncio.gather(*listening)
        await until(lambda: loop.sleeping and not told(loop) and not held)
        assert loop.load().blocks_free == LIMITS.blocks
        assert (loop.gauges.preemptions > 0) is (mode is Mode.OPTIMISTIC)
    gate.release(100_000)
    await asyncio.to_thread(loop.stop)
    await asyncio.gather(*listening)
    loop.feed.close()
    with suppress(asyncio.CancelledError):
        await following
    assert loop.failure is None
    assert loop.live == 0
    assert loop.gauges.abort_steps_max <= 2
    assert executor.closed
    assert min(done.values()) > 0
    for client in clients:
        client.check(stopped=stopped)
