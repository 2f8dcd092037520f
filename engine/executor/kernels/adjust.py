"""From the model's logits to what is sampled from: steps 1 to 6 of docs/sampling.md, in float32, each rounded once."""

import triton
import triton.language as tl

from engine.executor.kernels import slot as field

LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)


@triton.jit
def adjust(
    logits, sample_tokens, sample_slots, sample_masked, positions, ints, reals, seen, allowed, last_logits, adjusted,
    choice,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a sampling row: its token of the launch, its slot (-1: nothing is done), and whether it has a mask.

    logits and adjusted [rows, VOCAB], float32; seen and last_logits [slots, VOCAB]; allowed [slots, WORDS], a bit a
    token. choice [rows]: the likeliest, of equals the lowest id; -1 where a logit is not finite, or the slot has ended.
    """
    row = tl.program_id(0)
    slot = tl.load(sample_slots + row)
    if slot >= 0:
        mine = ints + slot * field.INTS
        out = adjusted + row.to(tl.int64) * VOCAB
        if tl.load(mine + field.ENDED) != 0:
            tl.store(choice + row, -1)
        else:
            source = logits + row.to(tl.int64) * VOCAB
            sound = _copy(source, out, last_logits + slot.to(tl.int64) * VOCAB, VOCAB, BLOCK)
            tl.debug_barrier()
            _bias(out, mine, reals + slot * field.REALS)
            tl.debug_barrier()
            if tl.load(mine + field.PENALISES) != 0:
                _penalise(out, seen + slot.to(tl.int64) * VOCAB, reals + slot * field.REALS, VOCAB, BLOCK)
                tl.debug_barrier()
            position = tl.load(positions + tl.load(sample_tokens + row)) + 1
            if position < tl.load(mine + field.FIRST) + tl.load(mine + field.MIN_TOKENS):
                _hold_back(out, mine)
                tl.debug_barrier()
            likeliest = _restrict(out, allowed + slot * WORDS, tl.load(sample_masked + row), VOCAB, BLOCK)
            tl.store(choice + row, tl.where(sound > 0, likeliest, -1))


@triton.jit
def _copy(source, out, last, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """1 where all are finite."""
    sound = tl.full((), 1, tl.int32)
    for base in range(0, VOCAB, BLOCK):
        at = base + tl.arange(0, BLOCK)
        values = tl.load(source + at, mask=at < VOCAB, other=0.0)
        sound = tl.minimum(sound, tl.min(tl.where((values - values) == 0.0, 1, 0), 0))
        tl.store(out + at, values, mask=at < VOCAB)
        tl.store(last + at, values, mask=at < VOCAB)
    return sound


@triton.jit
def _bias(out, mine, reals):
    at = tl.arange(0, field.BIASES)
    named = at < tl.load(mine + field.BIAS_COUNT)
    token = tl.load(mine + field.BIAS_IDS + at, mask=named, other=0)
    value = tl.load(out + token, mask=named, other=0.0)
    bias = tl.load(reals + field.BIAS_VALUES + at, mask=named, other=0.0).to(tl.float32)
    tl.store(out + token, _bounded(value + bias), mask=named)


@triton.jit
def _penalise(out, seen, reals, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    repetition = tl.load(reals + field.REPETITION).to(tl.float32)
    frequency = tl.load(reals + field.FREQUENCY).to(tl.float32)
    presence = tl.load(reals + field.PRESENCE).to(tl.float32)
    for base in range(0, VOCAB, BLOCK):
        at = base + tl.arange(0, BLOCK)
        count = tl.load(seen + at, mask=at < VOCAB, other=0)
        values = tl.load(out + at, mask=at < VOCAB, other=0.0)
        divided = tl.div_rn(values, repetition + tl.zeros((BLOCK,), tl.float32))
        values = tl.where(count != 0, _bounded(tl.where(values > 0, divided, values * repetition)), values)
        times = count & (field.KNOWN - 1)
        taken = _bounded(_bounded(values - frequency * times.to(tl.float32)) - presence)
        tl.store(out + at, tl.where(times != 0, taken, values), mask=(at < VOCAB) & (count != 0))


@triton.jit
def _hold_back(out, mine):
    at = tl.arange(0, field.STOPS)
    named = at < tl.load(mine + field.STOP_COUNT)
    tl.store(out + tl.load(mine + field.STOP_IDS + at, mask=named, other=0), -LARGEST, mask=named)


@triton.jit
def _restrict(out, allowed, masked, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The likeliest of those that are allowed; what is not is put at the bottom."""
    best = tl.full((), float("-inf"), tl.float32)
    likeliest = tl.full((), 0, tl.int32)
    for base in range(0, VOCAB, BLOCK):
        at = base + tl.arange(0, BLOCK)
        values = tl.load(out + at, mask=at < VOCAB, other=float("-inf"))
        if masked != 0:
            word = tl.load(allowed + at // 32, mask=at < VOCAB, other=0)
            values = tl.where((at < VOCAB) & (((word >> (at % 32)) & 1) == 0), -LARGEST, values)
            tl.store(out + at, values, mask=at < VOCAB)
        most = tl.max(values, 0)
        here = tl.min(tl.where(values == most, at, VOCAB), 0)
        likeliest = tl.where(most > best, here, likeliest)
        best = tl.maximum(best, most)
    return likeliest


@triton.jit
def _bounded(values):
    return tl.minimum(tl.maximum(values, -LARGEST), LARGEST)
