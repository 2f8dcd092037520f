"""A sequence's sampling as its slot's row on the device (kernels/slot.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.executor.kernels import slot as field
from engine.step import Sampling

Ints = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float64]

INTS, REALS = int(field.INTS.value), int(field.REALS.value)
TOLD = int(field.TOLD.value)


def check(sampling: Sampling, vocab: int) -> str | None:
    """What of it a slot cannot hold; None: all can be held."""
    ids = {*sampling.stop_ids, *(token for token, _ in sampling.bias)}
    if len(sampling.stop_ids) > field.STOPS.value:
        return f"{len(sampling.stop_ids)} stop ids; at most {field.STOPS.value} can be held"
    if len(sampling.bias) > field.BIASES.value:
        return f"{len(sampling.bias)} biased tokens; at most {field.BIASES.value} can be held"
    if len({token for token, _ in sampling.bias}) < len(sampling.bias):
        return "a token is biased twice"
    if sampling.logprobs is not None and sampling.logprobs > min(TOLD, vocab):
        return f"{sampling.logprobs} log-probabilities; at most {min(TOLD, vocab)} are told"
    if not all(0 <= token < vocab for token in ids):
        return f"a token is outside the vocabulary of {vocab}"
    return None


def fill(sampling: Sampling, ints: Ints, reals: Reals) -> None:
    """Writes the row [INTS] and [REALS] of a slot that opens: not ended, nothing sampled."""
    ints[:] = 0
    ints[field.TOP_K.value] = min(sampling.top_k, 1 << 30)
    seed = np.array([sampling.seed & 0xFFFFFFFF, sampling.seed >> 32 & 0xFFFFFFFF], np.uint32)
    ints[field.SEED.value : field.SEED.value + 2] = seed.view(np.int32)
    ints[field.FIRST.value] = sampling.first
    ints[field.MIN_TOKENS.value] = min(sampling.min_tokens, 1 << 30)
    ints[field.LOGPROBS.value] = -1 if sampling.logprobs is None else sampling.logprobs
    ints[field.PENALISES.value] = sampling.penalises
    ints[field.STOP_COUNT.value] = len(sampling.stop_ids)
    ints[field.BIAS_COUNT.value] = len(sampling.bias)
    _put(ints, field.STOP_IDS.value, sampling.stop_ids)
    _put(ints, field.BIAS_IDS.value, [token for token, _ in sampling.bias])
    reals[: field.BIAS_VALUES.value] = 0
    reals[field.TEMPERATURE.value] = sampling.temperature
    reals[field.TOP_P.value] = sampling.top_p
    reals[field.MIN_P.value] = sampling.min_p
    reals[field.REPETITION.value] = sampling.repetition
    reals[field.FREQUENCY.value] = sampling.frequency
    reals[field.PRESENCE.value] = sampling.presence
    at = field.BIAS_VALUES.value
    reals[at : at + len(sampling.bias)] = [bias for _, bias in sampling.bias]


def count(history: Sequence[int], first: int, seen: Ints) -> None:
    """Writes what penalties count [vocab]: of all tokens known, those from position `first` on were sampled."""
    seen[:] = 0
    seen[list(set(history))] = field.KNOWN.value
    for token, times in Counter(history[first:]).items():
        seen[token] += times


def _put(row: Ints, at: int, values: Sequence[int]) -> None:
    row[at : at + len(values)] = values
