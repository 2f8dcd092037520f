"""How a device's kernels want their matrices. Apart from packing itself, which a start does without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from engine.model.gguf import TensorInfo


class Packer(NamedTuple):
    """How the kernels of this build want their matrices."""

    layout: str
    """Names it: at most 16 ASCII characters. Another arrangement needs another name."""
    dtypes: Mapping[str, str] = MappingProxyType({})
    """GGUF's dtype -> the packed one. Matrices of other dtypes, and vectors, stay as they are."""
    pack: Callable[[str, int, int, bytes], bytes] = lambda dtype, rows, cols, data: data
    """dtype, rows, columns, GGUF's bytes -> packed bytes."""

    def packed(self, tensor: TensorInfo, data: bytes) -> tuple[str, bytes]:
        """The dtype and the bytes that the image holds."""
        if len(tensor.shape) != 2 or tensor.dtype not in self.dtypes:
            return tensor.dtype, data
        rows, cols = tensor.shape
        return self.dtypes[tensor.dtype], self.pack(tensor.dtype, rows, cols, data)
