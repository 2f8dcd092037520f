"""What a node needs in memory, known before anything runs: lifetimes -> offsets -> one arena. Pure.

    weights | activations | KV | sampling

Buffers of a step that are never live together share bytes. The largest is placed first, at the lowest offset where
nothing that lives beside it lies (greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from engine.model.arch import LlamaConfig
from engine.step import BLOCK_TOKENS

ALIGNMENT: Final = 64
"""Of buffers: a cache line."""
PAGE: Final = 4096
"""Of regions."""
PROCESS_BYTES: Final = 96 << 20
"""What a node's process holds beside the arena: interpreter, libraries, tokenizer."""
_F32, _F16 = 4, 2


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

    @property
    def end(self) -> int:
        return self.offset + self.buffer.nbytes


class Region(NamedTuple):
    name: str
    offset: int
    """In the arena."""
    nbytes: int
    buffers: tuple[Placed, ...]

    @property
    def apart(self) -> int:
        """Bytes if no two buffers shared any."""
        return sum(aligned(placed.buffer.nbytes, ALIGNMENT) for placed in self.buffers)


class Sizes(NamedTuple):
    """What is chosen at start."""

    step_tokens: int
    slots: int
    blocks: int
    threads: int
    level_bytes: int = 2
    """Of an activation, before packed weights."""


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
    kv_block = kv_token_bytes(config) * BLOCK_TOKENS
    contents: list[tuple[str, Iterable[Buffer]]] = [
        ("weights", [Buffer("weights", weights, 0, _SAMPLE)]),
        ("activations", _activations(config, sizes)),
        ("kv", [Buffer("kv", kv_block * sizes.blocks, 0, _SAMPLE)]),
        ("sampling", _sampling(config, sizes)),
    ]
    regions: list[Region] = []
    offset = 0
    for name, buffers in contents:
        placed = place(buffers)
        nbytes = aligned(max(p.end for p in placed), PAGE)
        regions.append(Region(name, offset, nbytes, placed))
        offset += nbytes
    return Plan(tuple(regions), sizes, kv_block)


def kv_token_bytes(config: LlamaConfig) -> int:
    """Keys and values of one position in all layers."""
    return 2 * config.layers * config.kv_heads * config.head_dim * _F16


def check_fits(plan: Plan, available: Available) -> None:
    """Raises LayoutError with numbered remedies.

    Counts buffers as if none shared bytes: the arena's saving is small beside weights and KV, and a plan that is too
    large by a little is better than a node that is killed.
    """
    needed = sum(region.apart for region in plan.regions) + PROCESS_BYTES
    if needed <= available.nbytes:
        return
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


_EMBED, _NORM, _PROJECT, _ATTEND, _JOIN, _FEED, _HEAD, _SAMPLE = range(8)
"""Phases of a step. Layers run one after the other in the same buffers, so one stands for all; what all layers read
lives through the last of them."""

_CHUNK, _FEW, _MEMBER_TOKENS = 48, 16, 12
_BLOCK, _PANEL_ROWS, _PART_KEYS, _PART_HEAD, _GROUP, _TILE_KEYS = 32, 32, 256, 16, 4, 64
"""Sizes that csrc/forward.cpp and csrc/kernels.h have by the same names."""


def _activations(config: LlamaConfig, sizes: Sizes) -> Iterator[Buffer]:
    """As csrc/forward.cpp divides a step: rows of all its tokens, and a workspace of a chunk for each thread."""
    tokens, threads = sizes.step_tokens, sizes.threads
    few = min(tokens, max(_FEW, _MEMBER_TOKENS * threads))
    span = min(tokens, max(few, _CHUNK)) * threads
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    wide = max(config.hidden, queries)
    context = min(config.context, sizes.blocks * BLOCK_TOKENS)
    parts = few * config.heads * -(-context // _PART_KEYS)
    part = _PART_HEAD + config.head_dim
    attend = _CHUNK * _GROUP * (_PART_KEYS + 2 * part) + _TILE_KEYS * config.head_dim

    def floats(name: str, count: int, first: int, last: int) -> Buffer:
        return Buffer(name, count * _F32, first, last)

    def quantised(name: str, cols: int, first: int, last: int) -> Buffer:
        """Levels, and three numbers a block."""
        return Buffer(name, span * (cols * sizes.level_bytes + 3 * _F32 * (cols // _BLOCK)), first, last)

    yield floats("residual", tokens * config.hidden, _EMBED, _HEAD)
    yield floats("queries", tokens * queries, _PROJECT, _JOIN)
    yield floats("angles", tokens * 2 * config.head_dim, _EMBED, _FEED)
    yield floats("parts of attention", parts * part, _ATTEND, _JOIN)
    yield floats("rows", span * wide, _NORM, _HEAD)
    yield floats("keys and values", span * 2 * keys, _PROJECT, _PROJECT)
    yield floats("gate and up", 2 * span * _BLOCK, _FEED, _FEED)
    yield floats("ffn", span * config.ffn, _FEED, _FEED)
    yield floats("panel", span * _PANEL_ROWS, _NORM, _HEAD)
    yield quantised("quantised rows", wide, _NORM, _HEAD)
    yield quantised("quantised ffn", config.ffn, _FEED, _FEED)
    yield floats("scratch", threads * max(_PANEL_ROWS * max(wide, config.ffn), attend), _EMBED, _HEAD)


def _sampling(config: LlamaConfig, sizes: Sizes) -> Iterator[Buffer]:
    yield Buffer("last logits", sizes.slots * config.vocab * _F32, _EMBED, _SAMPLE)
    yield Buffer("candidates", sizes.threads * config.vocab * (_F32 + _F32), _SAMPLE, _SAMPLE)
