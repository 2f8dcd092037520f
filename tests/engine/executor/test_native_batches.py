"""Whatever stands beside a sequence, however it is cut and however many threads run it: the same tokens and logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.step import Row, Sampling
from tests.engine.executor.driver import Driver, blocks_for
from tests.engine.executor.native_models import ARITHMETICS, ISAS, make_native, write_shape

LONGEST = 300
"""Crosses a part of attention (256 positions)."""
STEP_TOKENS = 160
BLOCKS = -(-(LONGEST + 8) // 16)


@dataclass(frozen=True)
class Text:
    """One sequence: its prompt, in chunks, and how many tokens are decoded after it."""

    prompt: tuple[int, ...]
    chunks: tuple[int, ...]
    decoded: int
    sampling: Sampling

    def rows(self, slot: int) -> Iterator[Row]:
        table = blocks_for(LONGEST + 8, slot * BLOCKS)
        start = 0
        for size in self.chunks:
            part = self.prompt[start : start + size]
            last = start + len(part) == len(self.prompt)
            yield Row(slot, start, part, table, last, self.sampling if start == 0 else None)
            start += len(part)
        for position in range(start, start + self.decoded):
            yield Row(slot, position, (), table, True)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    length = draw(st.integers(1, LONGEST))
    seed = draw(st.integers(0, 1 << 32))
    prompt = tuple(int(token) for token in np.random.default_rng(seed).integers(0, 257, length))
    chunks: list[int] = []
    while sum(chunks) < length:
        chunks.append(min(draw(st.integers(1, STEP_TOKENS)), length - sum(chunks)))
    sampling = Sampling(draw(st.sampled_from([0.0, 0.9])), top_p=0.95, seed=seed)
    return Text(prompt, tuple(chunks), draw(st.integers(0, 4)), sampling)


Executors = dict[int, Driver]
KINDS = [*((arithmetic, ISAS[0]) for arithmetic in ARITHMETICS), *(("int16", isa) for isa in ISAS[1:2])]
"""The C++ tests take the others too, which are slow."""


@pytest.fixture(scope="module", params=[*((*kind, "f16") for kind in KINDS), ("float32", "", "int8")], ids="-".join)
def drives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executors]:
    path: Path = write_shape(tmp_path_factory.mktemp("batches"), "three heads a group")
    arithmetic, isa, kv_dtype = request.param
    sizes = {"blocks": 8 * BLOCKS, "step_tokens": STEP_TOKENS, "kv_dtype": kv_dtype}
    drives = {
        threads: Driver(make_native(path, arithmetic=arithmetic, isa=isa, threads=threads, **sizes))
        for threads in (1, 2, 3)
    }
    yield drives
    for drive in drives.values():
        drive.executor.close()


def alone(drive: Driver, text: Text) -> tuple[list[int], list[float]]:
    """Its tokens and last logits, with nothing beside it, the prompt in as few steps as there can be."""
    whole = Text(text.prompt, (STEP_TOKENS,) * -(-len(text.prompt) // STEP_TOKENS), text.decoded, text.sampling)
    tokens = [token for row in whole.rows(0) for token in drive.step(row)[0].tokens]
    return tokens, drive.logits().tolist()


def together(drive: Driver, batch: Sequence[Text], turns: Iterator[int]) -> Iterator[tuple[list[int], list[float]]]:
    """The same for all of them in one batch; a turn's bits say which of them come to the next step."""
    waiting = {slot: list(text.rows(slot)) for slot, text in enumerate(batch)}
    tokens: dict[int, list[int]] = {slot: [] for slot in waiting}
    while any(waiting.values()):
        rows: list[Row] = []
        turn, room = next(turns), STEP_TOKENS
        for slot, left in waiting.items():
            if left and left[0].count <= room and (turn >> slot & 1 or not rows):
                room -= left[0].count
                rows.append(left.pop(0))
        for result in drive.step(*rows):
            tokens[result.slot] += result.tokens
    for slot in waiting:
        yield tokens[slot], drive.logits(slot).tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(texts(), min_size=1, max_size=8), st.sampled_from([1, 2, 3]), st.randoms(use_true_random=False))
def test_alone_equals_batched_and_chunked_equals_whole(
    drives: Executors, batch: list[Text], threads: int, random: Random
) -> None:
    turns = (random.randrange(256) for _ in count())
    expected = [alone(drives[1], text) for text in batch]
    assert list(together(drives[threads], batch, turns)) == expected
