"""What a sample means for its slot, and what is told of it."""

import triton
import triton.language as tl

from engine.executor.kernels import slot as field


@triton.jit
def commit(choice, sample_slots, ints, seen, results, VOCAB: tl.constexpr):
    """A program a sampling row: the slot takes its choice; results [rows, 2]: the token or -1, and STOP, ERROR or 0."""
    row = tl.program_id(0)
    slot = tl.load(sample_slots + row)
    if slot >= 0:
        mine = ints + slot * field.INTS
        token = tl.load(choice + row)
        ended = tl.load(mine + field.ENDED)
        finish = tl.where((token < 0) & (ended == 0), field.ERROR, 0)
        if token >= 0:
            at = tl.arange(0, field.STOPS)
            stops = tl.load(mine + field.STOP_IDS + at, mask=at < tl.load(mine + field.STOP_COUNT), other=-1)
            finish = tl.max(tl.where(stops == token, field.STOP, 0), 0)
            tl.store(mine + field.LAST, token)
            if tl.load(mine + field.PENALISES) != 0:
                count = seen + slot.to(tl.int64) * VOCAB + token
                tl.store(count, (tl.load(count) | field.KNOWN) + 1)
        if finish != 0:
            tl.store(mine + field.ENDED, finish)
        tl.store(results + row * 2, token)
        tl.store(results + row * 2 + 1, finish)


@triton.jit
def tell(logits, choice, sample_slots, ints, ids, logprobs, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Log-probabilities of the model's own distribution, for slots that asked: ids [rows, TOLD] and logprobs
    [rows, 1 + TOLD], float64, the sampled one's first, then the likeliest in descending order, ties by id."""
    row = tl.program_id(0)
    slot = tl.load(sample_slots + row)
    token = tl.load(choice + row)
    if (slot >= 0) & (token >= 0):
        wanted = tl.load(ints + slot * field.INTS + field.LOGPROBS)
        if wanted >= 0:
            values = logits + row.to(tl.int64) * VOCAB
            out = logprobs + row * (1 + field.TOLD)
            most, _ = _next(values, float("inf"), -1, VOCAB, BLOCK)
            total = tl.full((), 0.0, tl.float64)
            for base in range(0, VOCAB, BLOCK):
                at = base + tl.arange(0, BLOCK)
                shifted = tl.load(values + at, mask=at < VOCAB, other=0.0).to(tl.float64) - most.to(tl.float64)
                total += tl.sum(tl.where(at < VOCAB, tl.exp(shifted), 0.0), 0)
            off = most.to(tl.float64) + tl.log(total)
            tl.store(out, tl.load(values + token).to(tl.float64) - off)
            value = tl.full((), float("inf"), tl.float32)
            last = tl.full((), -1, tl.int32)
            for index in range(wanted):
                value, last = _next(values, value, last, VOCAB, BLOCK)
                tl.store(ids + row * field.TOLD + index, last)
                tl.store(out + 1 + index, value.to(tl.float64) - off)


@triton.jit
def _next(values, value, last, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The largest behind (value, last) in descending order, ties by id."""
    best = tl.full((), float("-inf"), tl.float32)
    found = tl.full((), 0, tl.int32)
    for base in range(0, VOCAB, BLOCK):
        at = base + tl.arange(0, BLOCK)
        here = tl.load(values + at, mask=at < VOCAB, other=float("-inf"))
        behind = (here < value) | ((here == value) & (at > last))
        here = tl.where(behind & (at < VOCAB), here, float("-inf"))
        most = tl.max(here, 0)
        first = tl.min(tl.where(here == most, at, VOCAB), 0)
        found = tl.where(most > best, first, found)
        best = tl.maximum(best, most)
    return best, found
