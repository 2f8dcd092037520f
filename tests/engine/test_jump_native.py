"""On real executors, with real grammars: forced tokens in one row give what they give one by one, token for token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.formats import Format
from engine.constraint import Constraint
from engine.executor.base import Executor
from engine.executor.reference import ReferenceExecutor
from engine.gauges import Gauges
from engine.model.gguf import read
from engine.scheduler import Scheduler
from engine.sequence import GenerationRequest
from engine.step import Finish, Sampling
from engine.text.grammar import Grammars, Rules
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.text.test_grammar import SCHEMAS

pytest.importorskip("engine._native", reason="the native executor is not built")

from tests.engine.executor.native_models import make_native

Make = Callable[[], Rules]
GREEDY = Sampling(temperature=0.0, constrained=True)
WARM = Sampling(temperature=0.9, top_p=0.95, constrained=True)
PENALISED = replace(WARM, repetition=1.3, frequency=0.4, presence=-0.3)
ORDER = {
    "type": "object",
    "properties": {
        "customer_reference": {"type": "string", "maxLength": 8},
        "number_of_packages": {"type": "integer", "minimum": 1, "maximum": 99},
        "preferred_delivery_window": {"enum": ["morning", "afternoon"]},
    },
    "required": ["customer_reference", "number_of_packages", "preferred_delivery_window"],
    "additionalProperties": False,
}


class Blind:
    """The same rules, of which nobody hears what is forced but by masks."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def mask(self) -> bytes | None:
        return self._rules.mask()

    def forced(self, most: int) -> tuple[int, ...]:
        return ()

    def accept(self, token: int) -> Finish | None:
        return self._rules.accept(token)


def run(executor: Executor, requests: list[GenerationRequest]) -> tuple[list[tuple[int, ...]], int]:
    """The tokens of each, and the steps that all took; as the engine's thread runs them."""
    scheduler = Scheduler(executor.limits, Gauges(), queue=64)
    tokens: dict[str, tuple[int, ...]] = {request.request_id: () for request in requests}
    for request in requests:
        scheduler.add(request, 0.0)
    while not scheduler.idle:
        while scheduler.in_flight < executor.depth and (plan := scheduler.plan()):
            executor.submit(plan)
            allow(executor, scheduler)
        events = scheduler.complete(executor.collect(), 0.0)
        allow(executor, scheduler)
        for name, delta in events:
            tokens[name] += delta.tokens
    scheduler.check()
    return list(tokens.values()), scheduler.load().step


def allow(executor: Executor, scheduler: Scheduler) -> None:
    for mask in scheduler.masks.due():
        executor.allow(*mask)


def asked(
    name: str, prompt: tuple[int, ...], sampling: Sampling, constraint: Constraint, most: int = 64
) -> GenerationRequest:
    seeded = replace(sampling, first=len(prompt), seed=len(name))
    return GenerationRequest(name, prompt, seeded, most, constraint=constraint)


def both(
    executor: Executor, prompts: list[tuple[int, ...]], samplings: list[Sampling], makes: list[Make]
) -> tuple[int, int]:
    """Steps with jumps and without, of answers that are the same."""
    found = []
    for wrap in (lambda rules: rules, Blind):
        requests = [
            asked("x" * number, prompt, sampling, wrap(make()))
            for number, (prompt, sampling, make) in enumerate(zip(prompts, samplings, makes, strict=True), 1)
        ]
        found.append(run(executor, requests))
    (jumped, fewer), (walked, steps) = found
    assert jumped == walked
    return fewer, steps


def compiled(grammars: Grammars, schema: Any) -> Make:
    return grammars.of_format(Format("json", orjson.dumps(schema).decode(), "x"))


@pytest.fixture(scope="module")
def tiny(tiny_text_path: Path) -> Iterator[tuple[Executor, Grammars]]:
    executor = make_native(tiny_text_path, slots=4, blocks=64, context=256, step_tokens=64)
    yield executor, Grammars(Tokenizer.from_gguf(read(tiny_text_path)))
    executor.close()


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas=st.lists(SCHEMAS, min_size=1, max_size=4), samplings=st.permutations([GREEDY, WARM, PENALISED, WARM]))
def test_any_schema_on_a_tiny_model(
    tiny: tuple[Executor, Grammars], schemas: list[tuple[Any, Any]], samplings: list[Sampling]
) -> None:
    executor, grammars = tiny
    makes: list[Make] = []
    for schema, _ in schemas:
        try:
            makes.append(compiled(grammars, schema))
        except ValueError:
            continue
    prompts = [tuple(range(2 + number, 9)) for number in range(len(makes))]
    if makes:
        fewer, steps = both(executor, prompts, samplings[: len(makes)], makes)
        assert fewer <= steps


def test_the_oracle_runs_forced_tokens_of_a_slot_whose_last_step_is_on_its_way(tiny_text_path: Path) -> None:
    executor = ReferenceExecutor(tiny_text_path, slots=4, blocks=64, context=256)
    make = compiled(Grammars(Tokenizer.from_gguf(read(tiny_text_path))), {"const": ["the_other", True]})
    fewer, steps = both(executor, [(5, 6, 7)] * 3, [GREEDY, WARM, PENALISED], [make] * 3)
    assert fewer < steps


@pytest.fixture(scope="module")
def real(model_path: Path) -> Iterator[Executor]:
    executor = make_native(model_path, arithmetic="float32", slots=3, blocks=64, context=512, step_tokens=64)
    yield executor
    executor.close()


def test_the_real_model(real: Executor, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    make = compiled(Grammars(tokenizer), ORDER)
    messages = [{"role": "user", "content": "An order, please."}]
    prompt = tuple(tokenizer.encode(chat_template.render(messages, add_generation_prompt=True)))
    fewer, steps = both(real, [prompt] * 3, [GREEDY, WARM, PENALISED], [make] * 3)
    assert fewer < steps * 2 / 3
