"""The native executor follows the oracle, token by token, on the real model.

The oracle runs the tokens that native chose, so every one of them is judged, also those after a first difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.executor.native import NativeExecutor
from engine.executor.reference import ReferenceExecutor, sample
from engine.model.arch import llama_config
from engine.model.gguf import Gguf, read
from engine.step import Row, Sampling
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.executor.driver import GREEDY, Driver, blocks_for
from tests.engine.executor.prompts import PROMPTS
from tests.engine.gguf_files import write_llama

GREEDY_TOKENS = 64
SAMPLED_TOKENS = 12
NEAR = 0.05
"""Two logits nearer than this may change places."""
TOLERANCE = 0.04
"""Of logits that reach 30. All of it is native's KV in float16: with K and V rounded so, the oracle's own logits move
by 0.015 when its embeddings change by one part in 10^7, and by 0.00005 without."""
TINY_TOLERANCE = 0.008
DISTURBANCES = 6


@dataclass(frozen=True)
class Choice:
    """A token that native sampled, and the oracle's logits for its position."""

    sampling: Sampling
    position: int
    token: int
    logits: npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def native(gguf: Gguf) -> Iterator[NativeExecutor]:
    executor = NativeExecutor(gguf, llama_config(gguf), threads=2, slots=16, blocks=256, context=2048, step_tokens=512)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def chats(tokenizer: Tokenizer, chat_template: ChatTemplate) -> list[list[int]]:
    return [tokenizer.encode(chat_template.render([{"role": "user", "content": prompt}])) for prompt in PROMPTS]


def choices_of(
    native: NativeExecutor,
    reference: ReferenceExecutor,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    amount: int,
) -> Iterator[Choice]:
    """Native runs all prompts in one batch, prompt i in slot i; the oracle then reads each text that came out."""
    drive = Driver(native)
    tables, first = [], 0
    for prompt in prompts:
        tables.append(blocks_for(len(prompt) + amount, first))
        first += len(tables[-1])
    texts = [list(prompt) for prompt in prompts]
    for slot, (prompt, table, sampling) in enumerate(zip(prompts, tables, samplings, strict=True)):
        texts[slot] += drive.prefill(prompt, blocks=table, slot=slot, sampling=sampling)
    for _ in range(amount - 1):
        rows = drive.step(*(Row(slot, len(text) - 1, (), tables[slot], True) for slot, text in enumerate(texts)))
        for text, row in zip(texts, rows, strict=True):
            text += row.tokens
    for prompt, text, sampling in zip(prompts, texts, samplings, strict=True):
        logits = reference.text_logits(text[:-1])
        for position in range(len(prompt), len(text)):
            yield Choice(sampling, position, text[position], logits[position - 1])


def test_prefill_logits_agree(native: NativeExecutor, reference: ReferenceExecutor, chats: list[list[int]]) -> None:
    ours, oracle = Driver(native), Driver(reference)
    for tokens in chats:
        table = blocks_for(len(tokens))
        ours.prefill(tokens, blocks=table)
        oracle.prefill(tokens, blocks=table)
        np.testing.assert_allclose(ours.logits(), oracle.logits(), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", ["Q4_1", "Q8_0", "F16", "F32"])
def test_every_matrix_type_and_a_tied_head_agree(tmp_path: Path, dtype: str) -> None:
    """On two layers of random weights, where rounding is not amplified."""
    path = write_llama(tmp_path / "tiny.gguf", dtype=dtype, tied=dtype == "F16")
    gguf = read(path)
    native = NativeExecutor(gguf, llama_config(gguf), threads=1, slots=1, blocks=8, context=128, step_tokens=128)
    ours, oracle = Driver(native), Driver(ReferenceExecutor(path, slots=1, blocks=8))
    tokens, table = [(7 * i * i + 3) % 128 for i in range(100)], (5, 0, 7, 2, 4, 1, 6)
    ours.prefill(tokens, blocks=table)
    oracle.prefill(tokens, blocks=table)
    np.testing.assert_allclose(ours.logits(), oracle.logits(), atol=TINY_TOLERANCE, rtol=0)
    assert np.abs(oracle.logits()).max() > 0.5
    native.close()


def test_greedy_text_is_the_references_or_differs_where_logits_nearly_tie(
    native: NativeExecutor, reference: ReferenceExecutor, chats: list[list[int]]
) -> None:
    choices = list(choices_of(native, reference, chats, [GREEDY] * len(chats), GREEDY_TOKENS))
    assert len(choices) == len(PROMPTS) * GREEDY_TOKENS
    assert [c for c in choices if c.logits.max() - c.logits[c.token] >= NEAR] == []
    assert sum(int(c.logits.argmax()) == c.token for c in choices) >= 0.98 * len(choices)


def test_seeded_sampling_is_the_references_except_at_a_boundary(
    native: NativeExecutor, reference: ReferenceExecutor, chats: list[list[int]]
) -> None:
    kinds = [Sampling(1.0), Sampling(0.7, top_p=0.9), Sampling(1.3, top_k=40), Sampling(0.8, top_p=0.95, top_k=20)]
    samplings = [
        replace(kinds[slot % 4], seed=0x9E3779B97F4A7C15 * (slot + 1) % (1 << 64)) for slot in range(len(chats))
    ]
    choices = list(choices_of(native, reference, chats, samplings, SAMPLED_TOKENS))
    decided = [(choice, only) for choice in choices if (only := undisturbed(choice)) is not None]
    assert len(decided) > 0.7 * len(choices)
    assert [choice for choice, only in decided if choice.token != only] == []
    assert any(int(choice.logits.argmax()) != choice.token for choice, _ in decided)


def undisturbed(choice: Choice) -> int | None:
    """The token that all logits within the tolerance give, or None at a boundary."""
    random = np.random.default_rng(choice.position)
    noise = random.uniform(-TOLERANCE, TOLERANCE, (DISTURBANCES, len(choice.logits))).astype(np.float32)
    tokens = {sample(choice.logits + disturbed, choice.sampling, choice.position) for disturbed in noise}
    return tokens.pop() if len(tokens) == 1 else None
