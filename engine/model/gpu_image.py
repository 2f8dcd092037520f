"""What an image for a GPU holds: matrices of 16 bits, or the few bits that the GGUF file has, apart by kind.

    F32, F16, BF16    [rows, cols]
    Q8_0p             int8 levels [rows, cols]; then float16 scales [rows, cols / 32]
    Q4_1p             bytes [rows, cols / 2], byte j with column 2j in its low four bits and 2j + 1 in its high ones;
                      then float16 scales, then float16 minimums, each [rows, cols / 32]

Every part begins at a multiple of 64 in its tensor. Vectors are float32. As read by engine/executor/kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.model.gguf import BLOCKS, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from engine.model.packer import Packer

ALIGNMENT: Final = 64
"""Of parts: the image's own."""
GROUP: Final = 32
"""Columns that share a scale."""
DTYPES: Final = MappingProxyType({"bf16": "BF16", "f16": "F16", "f32": "F32"})
"""What is computed in -> the dtype of matrices that are not kept in few bits."""
BITS: Final = MappingProxyType({"F32": 32, "F16": 16, "BF16": 16, "Q8_0p": 8, "Q4_1p": 4})


class Part(NamedTuple):
    """Of a tensor's bytes."""

    offset: int
    rows: int
    cols: int
    item: int
    """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        return self.rows * self.cols * self.item

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


def packer(dtype: str, *, kept: bool) -> Packer:
    """dtype: a key of DTYPES. kept: matrices of 8 and 4 bits stay so, instead of becoming ones of `dtype`."""
    from engine.model.packer import Packer

    dense = DTYPES[dtype]
    dtypes = dict.fromkeys(("F32", "F16", "Q4_1", "Q8_0"), dense)
    if kept:
        dtypes |= {"Q4_1": "Q4_1p", "Q8_0": "Q8_0p"}

    def pack(source: str, rows: int, cols: int, data: bytes) -> bytes:
        return _pack(source, dtypes[source], rows, cols, data)

    return Packer(f"gpu-{dtype}{'-kept' if kept else ''}", dtypes, pack)


def parts(dtype: str, rows: int, cols: int) -> tuple[Part, ...]:
    """Of a packed matrix. Raises ValueError for columns that groups of 32 do not divide."""
    bits = BITS[dtype]
    if bits >= 16:
        return (Part(0, rows, cols, bits // 8),)
    if cols % GROUP:
        raise ValueError(f"a matrix of {cols} columns cannot be kept in {bits} bits: they are no multiple of {GROUP}")
    found = [Part(0, rows, cols * bits // 8, 1)]
    for _ in range(1 if bits == 8 else 2):
        found.append(Part(_aligned(found[-1].end), rows, cols // GROUP, 2))
    return tuple(found)


def _pack(source: str, target: str, rows: int, cols: int, data: bytes) -> bytes:
    arrays = _kept(source, rows, data) if target in ("Q4_1p", "Q8_0p") else (_dense(source, target, rows, cols, data),)
    return b"".join(_padded(arrays))


def _padded(arrays: tuple[npt.NDArray[Any], ...]) -> Iterator[bytes]:
    for array in arrays:
        yield array.tobytes()
        yield bytes(-array.nbytes % ALIGNMENT)


def _kept(source: str, rows: int, data: bytes) -> tuple[npt.NDArray[Any], ...]:
    import numpy as np

    blocks = np.frombuffer(data, np.uint8).reshape(rows, -1, BLOCKS[source][1])
    if source == "Q8_0":
        return blocks[..., 2:], blocks[..., :2]
    packed = blocks[..., 4:]
    levels = np.concatenate([packed & 0x0F, packed >> 4], axis=-1)
    return levels[..., ::2] | (levels[..., 1::2] << 4), blocks[..., :2], blocks[..., 2:4]


def _dense(source: str, target: str, rows: int, cols: int, data: bytes) -> npt.NDArray[Any]:
    import numpy as np

    from engine.executor.dequantise import dequantise

    values = dequantise(np.frombuffer(data, np.uint8), TensorInfo("", source, (rows, cols), 0, len(data)))
    if target == "BF16":
        return _bf16(values)
    return values.astype(np.float16 if target == "F16" else np.float32)


def _bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Bits, to nearest, ties to even. A GGUF file's weights are finite."""
    import numpy as np

    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
