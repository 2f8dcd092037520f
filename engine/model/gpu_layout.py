"""The memory plan of a node on a GPU: as layout.py's, with the buffers that the kernels of executor/gpu take. Pure.

    weights | activations | KV | sampling

The weights are the image's bytes; the rest is one allocation, made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from engine.model import layout
from engine.model.arch import LlamaConfig
from engine.model.layout import Buffer, Region
from engine.step import BLOCK_TOKENS

WIDTHS: Final = MappingProxyType({"bf16": 2, "f16": 2, "f32": 4})
"""Bytes of a value, by what is computed in."""
KV_DTYPES: Final = ("16", "fp8")
"""As wide as what is computed in, or e4m3."""
PART: Final = 1024
"""Positions that one program of attention goes through."""
SORT_ROWS: Final = 16
"""That are sorted at a time."""
_SORT_BYTES: Final = 48
"""That torch's sort takes beside a value and its id: copies of both, two rounds of them. An upper bound, by ATen's
Sort.cu; not measured."""
INTS, REALS, TOLD = 592, 520, 20
"""Of a slot's sampling state, and of what is told: engine/executor/kernels/slot.py."""
_F32 = _I32 = 4
_F64 = _I64 = 8

_NORM, _PROJECT, _ROPE, _ATTEND, _MERGE, _OUTPUT, _GATE, _DOWN, _HEAD = range(9)
"""Phases of a layer, and what follows the last."""


class GpuSizes(NamedTuple):
    """What is chosen at start."""

    step_tokens: int
    slots: int
    blocks: int
    context: int
    dtype: str = "bf16"
    """A key of WIDTHS."""
    kv_dtype: str = "16"
    part: int = PART

    @property
    def rows(self) -> int:
        """Most sampling rows of a step."""
        return min(self.slots, self.step_tokens)

    @property
    def parts(self) -> int:
        return -(-self.context // self.part)

    @property
    def table(self) -> int:
        return -(-self.context // BLOCK_TOKENS)


def plan(config: LlamaConfig, weights: int, sizes: GpuSizes) -> layout.Plan:
    """weights: bytes of the image's weights. Raises LayoutError for a KV type that there is not."""
    kv_block = kv_block_bytes(config, sizes)
    contents = (
        ("weights", [_whole("weights", weights)]),
        ("activations", list(_activations(config, sizes))),
        ("kv", [_whole("kv", kv_block * sizes.blocks)]),
        ("sampling", list(_sampling(config, sizes))),
    )
    regions: list[Region] = []
    offset = 0
    for name, buffers in contents:
        placed = layout.place(buffers)
        nbytes = layout.aligned(max(p.end for p in placed), layout.PAGE)
        regions.append(Region(name, offset, nbytes, placed))
        offset += nbytes
    chosen = layout.Sizes(sizes.step_tokens, sizes.slots, sizes.blocks, 1, context=sizes.context)
    return layout.Plan(tuple(regions), chosen, kv_block)


def kv_block_bytes(config: LlamaConfig, sizes: GpuSizes) -> int:
    """Keys and values of 16 positions in all layers."""
    if sizes.kv_dtype not in KV_DTYPES:
        raise layout.LayoutError(
            f"KV type {sizes.kv_dtype} is none of a GPU's: --kv-dtype f16 (as wide as --gpu-dtype) or fp8"
        )
    width = 1 if sizes.kv_dtype == "fp8" else WIDTHS[sizes.dtype]
    return 2 * config.layers * config.kv_heads * config.head_dim * BLOCK_TOKENS * width


def sort_bytes(config: LlamaConfig, sizes: GpuSizes) -> int:
    """What sampling needs of the device beside the plan, from torch's allocator, within captured graphs."""
    return min(sizes.rows, SORT_ROWS) * config.vocab * _SORT_BYTES


def _whole(name: str, nbytes: int) -> Buffer:
    return Buffer(name, nbytes, _NORM, _HEAD)


def _activations(config: LlamaConfig, sizes: GpuSizes) -> Iterator[Buffer]:
    tokens, width = sizes.step_tokens, WIDTHS[sizes.dtype]
    queries = config.heads * config.head_dim
    heads = tokens * config.heads * sizes.parts
    yield _whole("angles", sizes.context * config.head_dim * _F32)
    yield _whole("residual", tokens * config.hidden * _F32)
    yield _whole("delta", tokens * config.hidden * _F32)
    yield _whole("normed", tokens * config.hidden * width)
    qkv = queries + 2 * config.kv_heads * config.head_dim
    yield Buffer("qkv", tokens * qkv * _F32, _PROJECT, _ROPE)
    yield Buffer("queries", tokens * queries * width, _ROPE, _ATTEND)
    yield Buffer("sums", heads * 2 * _F32, _ATTEND, _MERGE)
    yield Buffer("parts", heads * config.head_dim * _F32, _ATTEND, _MERGE)
    yield Buffer("attended", tokens * queries * width, _MERGE, _OUTPUT)
    yield Buffer("ffn", tokens * config.ffn * width, _GATE, _DOWN)
    yield Buffer("gathered", sizes.rows * config.hidden * width, _HEAD, _HEAD)
    yield Buffer("logits", sizes.rows * config.vocab * _F32, _HEAD, _HEAD)


def _sampling(config: LlamaConfig, sizes: GpuSizes) -> Iterator[Buffer]:
    rows, vocab = sizes.rows, config.vocab
    yield _whole("adjusted", rows * vocab * _F32)
    yield _whole("ordered", rows * vocab * _F32)
    yield _whole("order", rows * vocab * _I64)
    yield _whole("choice", rows * _I32)
    yield _whole("results", rows * 2 * _I32)
    yield _whole("told ids", rows * TOLD * _I32)
    yield _whole("told", rows * (TOLD + 1) * _F64)
    yield _whole("ints", sizes.slots * INTS * _I32)
    yield _whole("reals", sizes.slots * REALS * _F64)
    yield _whole("seen", sizes.slots * vocab * _I32)
    yield _whole("allowed", sizes.slots * -(-vocab // 32) * _I32)
    yield _whole("last logits", sizes.slots * vocab * _F32)
    yield _whole("table", sizes.slots * sizes.table * _I32)
    yield _whole("step", 6 * (sizes.step_tokens + sizes.rows) * _I32)
    yield _whole("masked", rows * _I32)
    yield _whole("block", kv_block_bytes(config, sizes))
