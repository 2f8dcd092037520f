"""Reads the head of a GGUF file: metadata and the table of tensors, never the weights themselves.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. A file is untrusted:
every length is held against the file before it is used, and everything that is wrong is a GgufError.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from engine.model.contents import Contents, opened
from engine.model.foreign import HEAD_BYTES, foreign

MAGIC: Final = b"GGUF"
MAX_HEAD_BYTES: Final = 64 << 20
"""Metadata and tensor table together. A vocabulary of 256k tokens with its merges takes 16 MiB."""
MAX_NAME_BYTES: Final = 65_535
MAX_DIMENSIONS: Final = 4
MAX_NESTING: Final = 4
DEFAULT_ALIGNMENT: Final = 32

BLOCKS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "F32": (1, 4),
        "F16": (1, 2),
        "BF16": (1, 2),
        "F64": (1, 8),
        "I8": (1, 1),
        "I16": (1, 2),
        "I32": (1, 4),
        "I64": (1, 8),
        "Q4_0": (32, 18),
        "Q4_1": (32, 20),
        "Q5_0": (32, 22),
        "Q5_1": (32, 24),
        "Q8_0": (32, 34),
        "Q2_K": (256, 84),
        "Q3_K": (256, 110),
        "Q4_K": (256, 144),
        "Q5_K": (256, 176),
        "Q6_K": (256, 210),
    }
)
"""dtype -> (elements, bytes) of one block."""

_DTYPES: Final[Mapping[int, str]] = MappingProxyType(
    {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K"}
    | {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
    | {30: "BF16"}
)

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Final[Mapping[int, str]] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
)
"""Value type -> the code it has both in `struct` and in `array`."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class GgufError(ValueError):
    """A file that cannot be used; the message names file, place and remedy."""


class TensorInfo(NamedTuple):
    name: str
    dtype: str
    """A key of BLOCKS."""
    shape: tuple[int, ...]
    """Row-major: (rows, columns); the last dimension is contiguous and is cut into the dtype's blocks."""
    offset: int
    """Bytes from the start of the file, a multiple of the file's alignment."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    path: Path
    version: int
    metadata: Mapping[str, Any]
    """Numbers, booleans and strings; arrays of numbers are `array`, arrays of anything else are tuples."""
    tensors: Mapping[str, TensorInfo]
    """In the order of the file."""


def read(path: Path | str) -> Gguf:
    """Raises GgufError where the file is missing, damaged, or not a GGUF of version 2 or 3."""
    path = Path(path)
    if sys.byteorder != "little":
        raise GgufError(f"{path}: GGUF files are little-endian and this machine is not; use another machine")
    with readable(path) as contents:
        if not contents.nbytes:
            raise GgufError(f"{path}: the file is empty; fetch it again")
        return _Reader(path, contents.read(0, min(contents.nbytes, MAX_HEAD_BYTES)), contents.nbytes).gguf()


@contextmanager
def readable(path: Path) -> Iterator[Contents]:
    """Raises GgufError, also where it cannot be read within the block."""
    try:
        with opened(path) as contents:
            yield contents
    except OSError as error:
        raise GgufError(f"{path}: cannot be read: {error.strerror or error}; name a GGUF file you may read") from error


class _Reader:
    """A cursor over the head of one file. `place` is what is being read, for messages."""

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        """data: as much of the file as a head may have; size: of the file."""
        self.path = path
        self.data = data
        self.size = size
        self.end = len(data)
        self.at = 0
        self.place = "file header"

    def gguf(self) -> Gguf:
        version, tensor_count, key_count = self.header()
        metadata: dict[str, Any] = {}
        for index in range(key_count):
            self.place = f"metadata key {index + 1} of {key_count}"
            key = self.name()
            if key in metadata:
                self.fail(f"{key!r} appears twice", "convert the model again")
            self.place = f"metadata key {key!r}"
            metadata[key] = self.value(self.u32(), 0)
        alignment = self.alignment(metadata)
        tensors: dict[str, TensorInfo] = {}
        for index in range(tensor_count):
            self.place = f"tensor {index + 1} of {tensor_count}"
            tensor = self.tensor()
            if tensor.name in tensors:
                self.fail(f"{tensor.name!r} appears twice", "convert the model again")
            tensors[tensor.name] = tensor
        start = -(-self.at // alignment) * alignment
        placed = {name: self.placed(tensor, start, alignment) for name, tensor in tensors.items()}
        return Gguf(self.path, version, MappingProxyType(metadata), MappingProxyType(placed))

    def header(self) -> tuple[int, int, int]:
        if self.data[:4] != MAGIC:
            found = foreign(self.data[:HEAD_BYTES])
            raise GgufError(f"{self.path}: this is {found.what}; {found.remedy}")
        self.take(4)
        version = self.u32()
        if version not in (2, 3):
            known = "a big-endian file" if version in (2 << 24, 3 << 24) else f"version {version}"
            self.fail(f"{known} is not supported", "convert the model to little-endian GGUF version 3")
        return version, self.u64(), self.u64()

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        self.place = "metadata key 'general.alignment'"
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self.fail(f"{alignment!r} is not a power of two up to 1 MiB", "convert the model again")
        return alignment

    def tensor(self) -> TensorInfo:
        """With the offset as the file has it, relative to the start of the data."""
        name = self.name()
        self.place = f"tensor {name!r}"
        dimensions = self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.fail(f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", "fetch the file again")
        shape = tuple(self.u64() for _ in range(dimensions))[::-1]
        code = self.u32()
        dtype = _DTYPES.get(code)
        if dtype is None:
            self.fail(f"has the unknown type {code}", "use a file quantised to Q4_1, Q8_0, F16 or F32")
        elements, block_bytes = BLOCKS[dtype]
        if min(shape) == 0 or shape[-1] % elements:
            self.fail(f"of type {dtype} has the shape {shape}, no multiple of {elements}", "convert the model again")
        return TensorInfo(name, dtype, shape, self.u64(), prod(shape) // elements * block_bytes)

    def placed(self, tensor: TensorInfo, start: int, alignment: int) -> TensorInfo:
        self.place = f"tensor {tensor.name!r}"
        if tensor.offset % alignment:
            self.fail(f"begins at {tensor.offset}, no multiple of {alignment}", "convert the model again")
        offset = start + tensor.offset
        if offset + tensor.nbytes > self.size:
            self.fail(
                f"needs bytes {offset} to {offset + tensor.nbytes} of a file of {self.size}",
                "the file is cut short: fetch it again",
            )
        return TensorInfo(tensor.name, tensor.dtype, tensor.shape, offset, tensor.nbytes)

    def value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self.string(self.end)
        if kind == _ARRAY:
            return self.array(depth + 1)
        if kind == _BOOL:
            return self.take(1) != b"\0"
        return self.numbers(kind, 1)[0]

    def array(self, depth: int) -> Any:
        if depth > MAX_NESTING:
            self.fail(f"nests arrays more than {MAX_NESTING} deep", "convert the model again")
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.strings(count)
        if kind == _BOOL:
            return tuple(byte != 0 for byte in self.take(count))
        if kind == _ARRAY:
            self.room(12 * count)
            return tuple(self.array(depth + 1) for _ in range(count))
        return self.numbers(kind, count)

    def numbers(self, kind: int, count: int) -> Any:
        code = _NUMBERS.get(kind)
        if code is None:
            self.fail(f"has the unknown value type {kind}", "fetch the file again")
        values = array(code)
        values.frombytes(self.take(count * values.itemsize))
        return values

    def strings(self, count: int) -> tuple[str, ...]:
        """The vocabulary and its merges: 10^5 strings, so that the cursor is kept in locals."""
        self.room(8 * count)
        data, at, end, length_at = self.data, self.at, self.end, _U64.unpack_from
        found = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > end:
                    break
                found.append(data[start:at].decode())
        except struct.error:
            at = end + 1
        except UnicodeDecodeError:
            self.fail(f"string {len(found)} is not UTF-8", "convert the model again")
        self.room(at - self.at)
        self.at = at
        return tuple(found)

    def name(self) -> str:
        return self.string(MAX_NAME_BYTES)

    def string(self, limit: int) -> str:
        length = self.u64()
        if length > limit:
            self.fail(f"a string of {length} bytes is longer than {limit}", "fetch the file again")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            self.fail("a string is not UTF-8", "convert the model again")

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def take(self, count: int) -> bytes:
        self.room(count)
        start = self.at
        self.at += count
        return self.data[start : self.at]

    def room(self, count: int) -> None:
        if self.at + count <= self.end:
            return
        if self.end < self.size:
            self.fail(f"the head is longer than {MAX_HEAD_BYTES >> 20} MiB", "use a file with less metadata")
        self.fail(f"needs {count} bytes, {self.end - self.at} are left", "the file is cut short: fetch it again")

    def fail(self, what: str, remedy: str) -> NoReturn:
        raise GgufError(f"{self.path}: {self.place} (at byte {self.at}): {what}; {remedy}")
