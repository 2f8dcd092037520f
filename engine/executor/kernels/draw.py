"""The draw: steps 7 to 11 of docs/sampling.md, in float64, over adjusted logits in descending order."""

import triton
import triton.language as tl

from engine.executor.kernels import slot as field


@triton.jit
def draw(
    ordered, order, sample_tokens, sample_slots, positions, ints, reals, choice,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a sampling row: replaces its choice, unless that is -1 or its temperature 0.

    ordered [rows, VOCAB], float32, descending, and order [rows, VOCAB], int64: the ids, of equals the lowest first.
    """
    row = tl.program_id(0)
    slot = tl.load(sample_slots + row)
    if slot >= 0:
        mine, real = ints + slot * field.INTS, reals + slot * field.REALS
        temperature = tl.load(real + field.TEMPERATURE)
        if (temperature != 0.0) & (tl.load(choice + row) >= 0):
            values = ordered + row.to(tl.int64) * VOCAB
            top = tl.load(values).to(tl.float64) / temperature
            kept = _likely(values, temperature, top, tl.load(real + field.MIN_P), VOCAB, BLOCK)
            most = tl.load(mine + field.TOP_K)
            kept = tl.where((most > 0) & (most < kept), most, kept)
            total = _total(values, temperature, top, kept, BLOCK)
            top_p = tl.load(real + field.TOP_P)
            below, _ = _count(values, temperature, top, total, top_p, kept, 0, BLOCK)
            kept = tl.minimum(below + 1, kept)
            _, reached = _count(values, temperature, top, total, top_p, kept, 0, BLOCK)
            position = tl.load(positions + tl.load(sample_tokens + row)) + 1
            target = _uniform(mine, position).to(tl.float64) * reached
            passed, _ = _count(values, temperature, top, total, target, kept, 1, BLOCK)
            index = tl.minimum(passed, kept - 1)
            tl.store(choice + row, tl.load(order + row.to(tl.int64) * VOCAB + index).to(tl.int32))


@triton.jit
def _weights(values, temperature, top, at, inside):
    """Of probabilities, the likeliest's being 1; 0 outside."""
    scaled = tl.load(values + at, mask=inside, other=0.0).to(tl.float64) / temperature
    return tl.where(inside, tl.exp(scaled - top), 0.0)


@triton.jit
def _likely(values, temperature, top, least, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """How many weights are at least `least`."""
    count = tl.full((), 0, tl.int32)
    for base in range(0, VOCAB, BLOCK):
        at = base + tl.arange(0, BLOCK)
        weights = _weights(values, temperature, top, at, at < VOCAB)
        count += tl.sum(tl.where((at < VOCAB) & (weights >= least), 1, 0), 0)
    return count


@triton.jit
def _total(values, temperature, top, kept, BLOCK: tl.constexpr):
    total = tl.full((), 0.0, tl.float64)
    for base in range(0, kept, BLOCK):
        at = base + tl.arange(0, BLOCK)
        total += tl.sum(_weights(values, temperature, top, at, at < kept), 0)
    return total


@triton.jit
def _count(values, temperature, top, total, bound, kept, including, BLOCK: tl.constexpr):
    """Of the cumulated probabilities of the first `kept`: how many are below `bound` (or equal, if `including`), and
    the last one."""
    count = tl.full((), 0, tl.int32)
    reached = tl.full((), 0.0, tl.float64)
    for base in range(0, kept, BLOCK):
        at = base + tl.arange(0, BLOCK)
        sums = reached + tl.cumsum(_weights(values, temperature, top, at, at < kept) / total, 0)
        below = (sums < bound) | ((including != 0) & (sums == bound))
        count += tl.sum(tl.where((at < kept) & below, 1, 0), 0)
        reached = tl.max(sums, 0)
    return count, reached


@triton.jit
def _uniform(mine, position):
    """As engine/executor/philox.py."""
    low = tl.load(mine + field.SEED).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(mine + field.SEED + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    zero = position.to(tl.uint32) * 0
    word, _, _, _ = tl.philox((high << 32) | low, position.to(tl.uint32), zero, zero, zero)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08
