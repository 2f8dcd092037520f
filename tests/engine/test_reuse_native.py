"""On the native executor a hit gives what a miss gives, bit for bit, and a preempted sequence loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.admission import Mode
from engine.executor.base import Executor, Limits
from engine.gauges import Gauges
from engine.scheduler import Scheduler
from engine.sequence import GenerationRequest
from engine.step import Sampling
from engine.store import BlockStore
from engine.tables import Tier
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.tier import StoreTier

pytest.importorskip("engine._native", reason="the native executor is not built")

from tests.engine.executor.native_models import make_native

SYSTEM = "You are a patient teacher who answers in whole sentences and gives an example wherever one would help. " * 2
GREEDY = Sampling(temperature=0.0)
WARM = Sampling(temperature=0.9, top_p=0.95, seed=7)


@dataclass
class Engine:
    """A scheduler with an empty index over an executor that may hold anything; at most `blocks` of its pool."""

    executor: Executor
    blocks: int = 10**9
    mode: Mode = Mode.GUARANTEE
    gauges: Gauges = field(default_factory=Gauges)
    quantum_s: float = 1e6
    tier: Tier | None = None

    def __post_init__(self) -> None:
        limits = self.executor.limits
        blocks = min(self.blocks, limits.blocks)
        bounded = Limits(limits.slots, blocks, limits.step_tokens, limits.context, limits.vocab)
        self.scheduler = Scheduler(
            bounded, self.gauges, queue=64, mode=self.mode, quantum_s=self.quantum_s, tier=self.tier
        )
        self.cached: dict[str, int] = {}

    def run(self, *requests: GenerationRequest) -> list[tuple[int, ...]]:
        tokens: dict[str, tuple[int, ...]] = {request.request_id: () for request in requests}
        for request in requests:
            self.scheduler.add(request, 0.0)
        while not self.scheduler.idle:
            while self.scheduler.in_flight < self.executor.depth and (plan := self.scheduler.plan()):
                self.executor.submit(plan)
            for name, delta in self.scheduler.complete(self.executor.collect(), 0.0):
                tokens[name] += delta.tokens
                if delta.timing:
                    self.cached[name] = delta.cached
        self.scheduler.check()
        return list(tokens.values())


def request(name: str, prompt: tuple[int, ...], sampling: Sampling, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(name, prompt, sampling, max_tokens)


@pytest.fixture(scope="module")
def real(model_path: Path) -> Iterator[Executor]:
    executor = make_native(model_path, slots=3, blocks=64, context=512, step_tokens=64)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer, chat_template: ChatTemplate) -> tuple[int, ...]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Why is the sky blue?"}]
    return tuple(tokenizer.encode(chat_template.render(messages, add_generation_prompt=True)))


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_hit_is_a_miss_bit_for_bit(real: Executor, prompt: tuple[int, ...], sampling: Sampling) -> None:
    engine = Engine(real)
    found = []
    for name in ("miss", "hit"):
        tokens = engine.run(request(name, prompt, sampling, 20))
        found.append((tokens, real.logits(0).tobytes()))
    assert engine.cached == {"miss": 0, "hit": (len(prompt) - 1) // 16 * 16}
    assert found[0] == found[1]


def test_the_next_turn_after_a_hit_on_the_answer_is_the_same(real: Executor, prompt: tuple[int, ...]) -> None:
    warm = Engine(real)
    (answer,) = warm.run(request("first", prompt, GREEDY, 24))
    turn = (*prompt, *answer, *prompt[-9:])
    found = []
    for engine in (warm, Engine(real)):
        tokens = engine.run(request("second", turn, GREEDY, 12))
        found.append((tokens, real.logits(0).tobytes()))
        engine.scheduler.check()
    assert warm.cached["second"] == (len(prompt) + 23) // 16 * 16
    assert found[0] == found[1]


def test_a_hit_among_others_and_in_small_chunks_is_the_same(real: Executor, prompt: tuple[int, ...]) -> None:
    (alone,) = Engine(real).run(request("alone", prompt, WARM, 16))
    engine = Engine(real, quantum_s=1e-9)
    engine.run(request("first", prompt, GREEDY, 2))
    others = [request(f"{n}", (*prompt[: 16 * n + 5], 100 + n), GREEDY, 16) for n in (1, 3)]
    assert engine.run(others[0], request("again", prompt, WARM, 16), others[1])[1] == alone
    assert engine.cached["again"] > 0


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_a_hit_from_the_store_of_a_node_before_is_a_miss_bit_for_bit(
    real: Executor, model_path: Path, prompt: tuple[int, ...], sampling: Sampling, tmp_path: Path
) -> None:
    found = []
    for number in range(2):
        executor = make_native(model_path, slots=1, blocks=24, context=384, step_tokens=64)
        sizes = {"numerics": executor.numerics, "block_bytes": executor.block_bytes}
        store = BlockStore(tmp_path / "kv", 40 << 20, **sizes)  # type: ignore[arg-type]
        tier = StoreTier(executor, store)
        engine = Engine(executor, tier=tier)
        tokens = engine.run(request("a", prompt, sampling, 20))
        found.append((tokens, executor.logits(0).tobytes()))
        assert engine.cached["a"] == number * ((len(prompt) - 1) // 16 * 16)
        tier.flush(engine.scheduler.idle_blocks(), 10, lambda: 0.0)
        store.close(60)
        executor.close()
    assert found[0] == found[1]


def test_a_preempted_sequence_of_the_real_model_is_the_same(real: Executor, prompt: tuple[int, ...]) -> None:
    requests = [request(f"{n}", prompt[: 30 + n], Sampling(seed=n, temperature=0.8), 60) for n in range(2)]
    alone = [Engine(real).run(each)[0] for each in requests]
    engine = Engine(real, blocks=9, mode=Mode.OPTIMISTIC)
    assert engine.run(*requests) == alone
    assert engine.gauges.preemptions > 0


@pytest.mark.parametrize(
    "penalties", [{}, {"repetition": 1.3, "frequency": 0.4, "presence": 0.2}], ids=["", "penalties"]
)
def test_much_preemption_changes_nothing(tiny_path: Path, penalties: dict[str, float]) -> None:
    executor = make_native(tiny_path, slots=6, blocks=80, context=256, step_tokens=32)
    prompts = [tuple((7 * i + n // 2 * 31) % executor.limits.vocab for i in range(20 + 5 * n)) for n in range(10)]
    requests = [
        request(f"{n}", prompt, Sampling(seed=n, first=len(prompt), **penalties), 100)  # type: ignore[arg-type]
        for n, prompt in enumerate(prompts)
    ]
    alone = [Engine(executor).run(each)[0] for each in requests]
    engine = Engine(executor, blocks=12, mode=Mode.OPTIMISTIC)
    assert engine.run(*requests) == alone
    assert engine.gauges.preemptions > 3
    executor.close()
