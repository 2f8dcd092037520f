"""What a node needs in memory, known before anything runs: lifetimes -> offsets -> one arena. Pure.

    weights | activations | KV | sampling

The weights are the image's own mapping; the rest is one allocation, and the kernels take their buffers from it by name
(csrc/arena.h), refusing a plan with a buffer that is missing or of another size than they need.

Buffers that are never live together share bytes. The largest is placed first, at the lowest offset where nothing that
lives beside it lies (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020). Only buffers of one thread may share: threads are in different phases at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from engine.model.arch import LlamaConfig
from engine.step import BLOCK_TOKENS

ALIGNMENT: Final = 64
"""Of buffers: a cache line."""
PAGE: Final = 4096
"""Of regions."""
PROCESS_BYTES: Final = 96 << 20
"""What a node's process holds beside the arena: interpreter, libraries, tokenizer."""
_F32 = 4
_KV_GROUP: Final = 16
KV_DTYPES: Final = MappingProxyType({"f16": 2 * _KV_GROUP, "int8": _KV_GROUP + 2})
"""Type of keys and values -> bytes of 16 values, which under int8 share a scale of float16."""


class LayoutError(ValueError):
    """It does not fit; the message says by how much, and numbers what can be done."""


class Buffer(NamedTuple):
    name: str
    nbytes: int
    first: int
    last: int
    """Phases of a step, both included, between which its content is needed."""

    def beside(self, other: Buffer) -> bool:
        """Whether both are live in some phase."""
        return self.first <= other.last and other.first <= self.last


class Placed(NamedTuple):
    buffer: Buffer
    offset: int
    """In its region."""
    copies: int = 1
    """One for each thread."""
    stride: int = 0
    """Bytes from one copy to the next."""

    @property
    def end(self) -> int:
        return self.offset + (self.copies - 1) * self.stride + self.buffer.nbytes


class Piece(NamedTuple):
    """A buffer as the kernels take it: offsets count from the end of the weights."""

    name: str
    offset: int
    nbytes: int
    copies: int
    stride: int


class Region(NamedTuple):
    name: str
    offset: int
    """In the arena."""
    nbytes: int
    buffers: tuple[Placed, ...]

    @property
    def apart(self) -> int:
        """Bytes if no two buffers shared any."""
        return sum(placed.copies * aligned(placed.buffer.nbytes, ALIGNMENT) for placed in self.buffers)


class Sizes(NamedTuple):
    """What is chosen at start."""

    step_tokens: int
    slots: int
    blocks: int
    threads: int
    level_bytes: int = 2
    """Of an activation, before packed weights."""
    context: int | None = None
    """Most positions of a sequence; None: as many as model and pool hold."""
    kv_dtype: str = "f16"
    """A key of KV_DTYPES."""


class Plan(NamedTuple):
    regions: tuple[Region, ...]
    sizes: Sizes
    kv_block: int
    """Bytes of a block of 16 tokens."""

    @property
    def nbytes(self) -> int:
        return self.regions[-1].offset + self.regions[-1].nbytes

    def region(self, name: str) -> Region:
        return next(region for region in self.regions if region.name == name)

    @property
    def arena(self) -> tuple[Piece, ...]:
        """All but the weights, which are a mapping of their own."""
        weights, *rest = self.regions
        return tuple(
            Piece(p.buffer.name, region.offset - weights.nbytes + p.offset, p.buffer.nbytes, p.copies, p.stride)
            for region in rest
            for p in region.buffers
        )


class Available(NamedTuple):
    nbytes: int
    bound: str
    """What sets it, for messages: a cgroup's limit, or the machine's free memory."""


def place(buffers: Iterable[Buffer]) -> tuple[Placed, ...]:
    """Offsets, in the order given."""
    given = tuple(buffers)
    done: dict[int, Placed] = {}
    for index in sorted(range(len(given)), key=lambda i: (-given[i].nbytes, given[i].first, i)):
        buffer = given[index]
        offset = 0
        for other in sorted((p for p in done.values() if p.buffer.beside(buffer)), key=lambda p: p.offset):
            if offset + buffer.nbytes <= other.offset:
                break
            offset = max(offset, aligned(other.end, ALIGNMENT))
        done[index] = Placed(buffer, offset)
    return tuple(done[index] for index in range(len(given)))


def plan(config: LlamaConfig, weights: int, sizes: Sizes) -> Plan:
    """The arena of a node. weights: bytes of the image's weights."""
    kv_block = kv_token_bytes(config, sizes.kv_dtype) * BLOCK_TOKENS
    contents: list[tuple[str, tuple[Placed, ...]]] = [
        ("weights", place([_whole("weights", weights)])),
        ("activations", _divided(_activations(config, sizes), _workspace(config, sizes), sizes.threads)),
        ("kv", place([_whole("kv", kv_block * sizes.blocks)])),
        ("sampling", _divided(_sampling(config, sizes), _sampler(config), sizes.threads)),
    ]
    regions: list[Region] = []
    offset = 0
    for name, placed in contents:
        nbytes = aligned(max(p.end for p in placed), PAGE)
        regions.append(Region(name, offset, nbytes, placed))
        offset += nbytes
    return Plan(tuple(regions), sizes, kv_block)


def _divided(common: Iterable[Buffer], own: Iterable[Buffer], threads: int) -> tuple[Placed, ...]:
    """What all threads share, then the same piece of memory for each of them."""
    shared, each = place(common), place(own)
    base = aligned(max(p.end for p in shared), ALIGNMENT)
    stride = aligned(max(p.end for p in each), ALIGNMENT)
    return (*shared, *(Placed(p.buffer, base + p.offset, threads, stride) for p in each))


def kv_token_bytes(config: LlamaConfig, kv_dtype: str = "f16") -> int:
    """Keys and values of one position in all layers. Raises LayoutError for a type that is not in KV_DTYPES."""
    if kv_dtype not in KV_DTYPES:
        raise LayoutError(f"KV type {kv_dtype} is not one of {', '.join(KV_DTYPES)}")
    return 2 * config.layers * config.kv_heads * config.head_dim // _KV_GROUP * KV_DTYPES[kv_dtype]


def check_fits(plan: Plan, available: Available) -> int:
    """Bytes that are needed. Raises LayoutError with numbered remedies.

    Counts buffers as if none shared bytes: the arena's saving is small beside weights and KV, and a plan that is too
    large by a little is better than a node that is killed.
    """
    needed = sum(region.apart for region in plan.regions) + PROCESS_BYTES
    if needed <= available.nbytes:
        return needed
    parts = ", ".join(f"{region.name} {mib(region.apart)}" for region in plan.regions)
    remedies = "; ".join(f"({number}) {text}" for number, text in enumerate(_remedies(plan, needed, available), 1))
    raise LayoutError(
        f"this node needs {mib(needed)} ({parts}, process {mib(PROCESS_BYTES)}) and {available.bound} leaves "
        f"{mib(available.nbytes)}: {remedies}"
    )


def aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _remedies(plan: Plan, needed: int, available: Available) -> Iterator[str]:
    over = needed - available.nbytes
    blocks = plan.sizes.blocks - -(-over // plan.kv_block)
    if blocks >= 1:
        yield f"a smaller KV pool: --kv-tokens {blocks * BLOCK_TOKENS}"
    for name, option in (("activations", "--step-tokens"), ("sampling", "--slots")):
        if plan.region(name).apart >= over:
            yield f"a smaller {option}: it takes {mib(plan.region(name).apart)}"
    yield f"raise {available.bound} by {mib(over)}"
    yield "a smaller model, or one quantised to Q4_1"


_PROJECT, _ATTEND, _FEED, _HEAD, _SAMPLE = range(5)
"""Phases of a step, as one thread goes through them. Layers run one after the other in the same buffers, so one stands
for all; what more than one phase needs lives through all of them."""

_CHUNK, _FEW, _MEMBER_TOKENS = 48, 16, 12
_BLOCK, _PANEL_ROWS, _PART_KEYS, _PART_HEAD, _GROUP, _TILE_KEYS = 32, 32, 256, 16, 4, 64
"""Sizes that csrc/forward.cpp and csrc/kernels.h have by the same names."""


def _whole(name: str, nbytes: int) -> Buffer:
    """Live through all of a step."""
    return Buffer(name, nbytes, _PROJECT, _SAMPLE)


def _few(sizes: Sizes) -> int:
    """Tokens up to which threads divide the outputs of a matrix."""
    return min(sizes.step_tokens, max(_FEW, _MEMBER_TOKENS * sizes.threads))


def _context(config: LlamaConfig, sizes: Sizes) -> int:
    return sizes.context or min(config.context, sizes.blocks * BLOCK_TOKENS)


def _activations(config: LlamaConfig, sizes: Sizes) -> Iterator[Buffer]:
    """Rows of all the step's tokens."""
    tokens = sizes.step_tokens
    parts = _few(sizes) * config.heads * -(-_context(config, sizes) // _PART_KEYS)
    yield _whole("residual", tokens * config.hidden * _F32)
    yield _whole("queries", tokens * config.heads * config.head_dim * _F32)
    yield _whole("angles", tokens * 2 * config.head_dim * _F32)
    yield _whole("parts of attention", parts * (_PART_HEAD + config.head_dim) * _F32)


def _workspace(config: LlamaConfig, sizes: Sizes) -> Iterator[Buffer]:
    """Rows of the chunk that a thread works at."""
    span = min(sizes.step_tokens, max(_few(sizes), _CHUNK))
    wide = max(config.hidden, config.heads * config.head_dim)
    attend = _CHUNK * _GROUP * (_PART_KEYS + 2 * (_PART_HEAD + config.head_dim)) + _TILE_KEYS * config.head_dim

    def quantised(cols: int) -> int:
        """Levels, and three numbers a block."""
        numbers = aligned(span * (cols // _BLOCK) * _F32, ALIGNMENT)
        return aligned(span * cols, ALIGNMENT) * sizes.level_bytes + 3 * numbers

    yield _whole("rows", span * wide * _F32)
    yield Buffer("keys and values", span * 2 * config.kv_heads * config.head_dim * _F32, _PROJECT, _PROJECT)
    yield Buffer("gate", span * _BLOCK * _F32, _FEED, _FEED)
    yield Buffer("up", span * _BLOCK * _F32, _FEED, _FEED)
    yield _whole("panel", span * _PANEL_ROWS * _F32)
    yield Buffer("ffn", span * config.ffn * _F32, _FEED, _FEED)
    yield _whole("quantised rows", quantised(wide))
    yield Buffer("quantised ffn", quantised(config.ffn), _FEED, _FEED)
    yield _whole("scratch", max(_PANEL_ROWS * max(wide, config.ffn), attend) * _F32)


def _sampling(config: LlamaConfig, sizes: Sizes) -> Iterator[Buffer]:
    different = min(_context(config, sizes), config.vocab)
    yield _whole("last logits", sizes.slots * config.vocab * _F32)
    yield _whole("allowed tokens", sizes.slots * -(-config.vocab // 32) * _F32)
    yield _whole("tokens seen", sizes.slots * (config.vocab + different) * _F32)


def _sampler(config: LlamaConfig) -> Iterator[Buffer]:
    yield _whole("probabilities", config.vocab * 2 * _F32)
    yield _whole("candidates", config.vocab * _F32)
    yield _whole("adjusted logits", config.vocab * _F32)
