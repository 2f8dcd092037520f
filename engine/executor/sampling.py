"""The semantics of Sampling in numpy: what executors are held to. In the order of docs/sampling.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.executor.philox import uniform
from engine.step import Logprobs, Sampling

Floats = npt.NDArray[np.float32]


def sample(
    logits: Floats, sampling: Sampling, position: int, history: Sequence[int] = (), mask: bytes | None = None
) -> int:
    """The token for `position` out of finite `logits` [vocab]; `history`: all tokens before, where it penalises.

    mask: the tokens that may be sampled, a bit each; None for all.
    """
    adjusted = adjust(logits, sampling, position, history)
    if mask is not None:
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: len(adjusted)]
        adjusted[bits == 0] = -np.finfo(np.float32).max
    if sampling.temperature == 0:
        return int(np.argmax(adjusted))
    scaled = adjusted.astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    weights = np.exp(scaled[order] - scaled[order[0]])
    likely = int((weights >= sampling.min_p).sum())
    weights = weights[: min(likely, sampling.top_k or likely)]
    reached = np.cumsum(weights / weights.sum())
    kept = reached[: int(np.searchsorted(reached, sampling.top_p)) + 1]
    index = int(np.searchsorted(kept, uniform(sampling.seed, position) * kept[-1], side="right"))
    return int(order[min(index, len(kept) - 1)])


def adjust(logits: Floats, sampling: Sampling, position: int, history: Sequence[int]) -> Floats:
    """What is sampled from: a copy with bias and penalties, float32 throughout and never infinite."""
    values = logits.astype(np.float32)
    largest = np.finfo(np.float32).max

    def put(token: int, value: np.float32) -> None:
        values[token] = np.clip(value, -largest, largest)

    with np.errstate(over="ignore"):
        for token, bias in sampling.bias:
            put(token, values[token] + np.float32(bias))
        if sampling.penalises:
            repetition, frequency, presence = map(
                np.float32, (sampling.repetition, sampling.frequency, sampling.presence)
            )
            times = Counter(history[sampling.first :])
            for token in set(history):
                logit = values[token]
                put(token, logit / repetition if logit > 0 else logit * repetition)
                if times[token]:
                    put(token, values[token] - frequency * np.float32(times[token]))
                    put(token, values[token] - presence)
    if position < sampling.first + sampling.min_tokens:
        values[list(sampling.stop_ids)] = -largest
    return values


def logprobs(logits: Floats, token: int, top: int) -> Logprobs:
    """Of `token` and of the `top` likeliest, by the log-softmax of the logits as the model gave them."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    order = np.argsort(-logits.astype(np.float64), kind="stable")[:top]
    return Logprobs(float(values[token]), tuple((int(other), float(values[other])) for other in order))
