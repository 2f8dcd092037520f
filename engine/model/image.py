"""An image: one file that a node maps and runs in place. Weights lie in it as the kernels read them.

    0                preamble, 64 bytes: magic, version, layout, where the header is, hashes of the header and of itself
    4096             weights; every tensor begins at a multiple of 64
    then             tokens (UTF-8), where each ends (uint32), token types (a byte a token), merges by rank (pairs of
                     uint32), the same in the order in which they are looked up (engine/model/merges.py)
    at the end       header (JSON): configuration, table of tensors, chat template, source, xxh3 of every section

The header stands last so that a file is written in one pass. All numbers are little-endian. A file is untrusted:
everything that is wrong with it is an ImageError.

What is checked when: `read` checks the preamble, the header and the file's size; `Image.vocabulary` checks the sections
it reads. The weights are checked by `pack`, by `verify`, and by a node once it is ready (engine/integrity.py), since a
start must not read them all.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
import xxhash

from engine.model.arch import LlamaConfig
from engine.model.contents import Contents, opened
from engine.model.gguf import TensorInfo
from engine.model.merges import NONE, Merges
from engine.model.vocabulary import TemplateText, Texts, Vocabulary

MAGIC: Final = b"edgeimg\0"
VERSION: Final = 2
WEIGHTS_AT: Final = 4096
"""A page, so that the weights' pages hold nothing else."""
TENSOR_ALIGNMENT: Final = 64
MAX_HEADER_BYTES: Final = 16 << 20

PREAMBLE: Final = struct.Struct("<8sII16sQQQQ")
"""magic, version, 0, layout, header's offset, header's bytes, header's xxh3, xxh3 of all that."""
_HASHED: Final = PREAMBLE.size - 8

REMEDY: Final = "run engine pack again"

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""


class ImageError(ValueError):
    """An image that cannot be used; the message names the file, the cause and the remedy."""


class Section(NamedTuple):
    offset: int
    nbytes: int
    xxh3: str
    """xxh3_64 of its bytes, hexadecimal."""


class Source(NamedTuple):
    """The file that the image was packed from."""

    name: str
    nbytes: int
    digest: str
    """xxh3_128 of its bytes, hexadecimal."""


@dataclass(frozen=True, slots=True)
class Image:
    path: Path
    layout: str
    config: LlamaConfig
    tensors: Mapping[str, TensorInfo]
    """Offsets from the start of the file. dtypes are the kernels': Q4_1x16 is Q4_1 in tiles of 16 rows."""
    sections: Mapping[str, Section]
    source: Source
    template: TemplateText | None
    tokenizer: Mapping[str, Any]
    """end_ids, bos_id, add_bos; empty where the model came without a vocabulary."""

    @property
    def digest(self) -> str:
        """Names the bytes of the weights."""
        return self.sections["weights"].xxh3

    def vocabulary(self) -> Vocabulary:
        """Reads and checks the sections it is made of. Raises ImageError."""
        if not self.tokenizer:
            raise ImageError(f"{self.path}: there is no tokenizer in it; pack a model that has one")
        with _opened(self.path) as data, _sense(self.path):
            tokens = Texts(self._checked(data, "tokens"), array("I", self._checked(data, "token_ends")))
            types = self._checked(data, "types")
            merges = array("I", self._checked(data, "merges"))
            vocabulary = Vocabulary(
                tokens,
                types,
                merges[::2],
                merges[1::2],
                Merges.from_bytes(self._checked(data, "lookup")),
                frozenset(map(int, self.tokenizer["end_ids"])),
                self.tokenizer["bos_id"],
                bool(self.tokenizer["add_bos"]),
            )
            _check_vocabulary(vocabulary)
            return vocabulary

    def _checked(self, data: Contents, name: str) -> bytes:
        section = self.sections[name]
        found = data.read(section.offset, section.nbytes)
        if xxhash.xxh3_64_hexdigest(found) != section.xxh3:
            raise damaged(self.path, f"its {name} do not have the hash that was written")
        return found


def is_image(path: Path) -> bool:
    """Whether the file begins as an image does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path | str, layout: str) -> Image:
    """Opens an image in the layout that this machine's kernels read. Reads header and preamble only.

    Raises ImageError.
    """
    path = Path(path)
    if sys.byteorder != "little":
        raise ImageError(f"{path}: images are little-endian and this machine is not; use another machine")
    with _opened(path) as data:
        found, header = _header(path, data)
        if found != layout:
            raise ImageError(f"{path}: packed as {found!r}, the kernels here read {layout!r}; {REMEDY}")
        with _sense(path):
            return _image(path, found, orjson.loads(header), data)


def verify(image: Image, progress: Progress = lambda done, total: None) -> None:
    """Reads all of it: every section has its hash, and what lies between them is zeros. Raises ImageError."""
    total = sum(section.nbytes for section in image.sections.values())
    done = 0
    with _opened(image.path) as data:
        for name, section in image.sections.items():
            state = xxhash.xxh3_64()
            for piece in data.pieces(section.offset, section.nbytes):
                state.update(piece)
                done += len(piece)
                progress(done, total)
            if state.hexdigest() != section.xxh3:
                raise damaged(image.path, f"its {name} do not have the hash that was written")
        for start, end in _gaps(image, data):
            if data.read(start, end - start).strip(b"\0"):
                raise damaged(image.path, f"bytes {start} to {end - 1} are no zeros, as they were written")


def _gaps(image: Image, data: Contents) -> Iterator[tuple[int, int]]:
    """What no hash covers. A header with the right hash may name sections that leave much or overlap."""
    at = PREAMBLE.size
    header = PREAMBLE.unpack(data.read(0, PREAMBLE.size))[4]
    taken = sorted((section.offset, section.nbytes) for section in image.sections.values())
    for start, nbytes in (*taken, (header, 0)):
        if start - at > WEIGHTS_AT:
            raise damaged(image.path, f"there are {start - at} bytes that belong to nothing")
        yield at, max(at, start)
        at = max(at, start + nbytes)


def damaged(path: Path, what: str) -> ImageError:
    return ImageError(f"{path}: {what}; {REMEDY}")


@contextmanager
def _opened(path: Path) -> Iterator[Contents]:
    try:
        with opened(path) as data:
            if data.nbytes < PREAMBLE.size:
                raise damaged(path, "too short for an image")
            yield data
    except OSError as error:
        raise ImageError(
            f"{path}: cannot be read: {error.strerror or error}; name an image that you may read"
        ) from error


@contextmanager
def _sense(path: Path) -> Iterator[None]:
    """A header with the right hash may still say anything."""
    try:
        yield
    except ImageError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(path, f"its header makes no sense ({type(error).__name__}: {error})") from error


def _header(path: Path, data: Contents) -> tuple[str, bytes]:
    preamble = data.read(0, PREAMBLE.size)
    magic, version, _, layout, offset, nbytes, xxh3, own = PREAMBLE.unpack(preamble)
    if magic != MAGIC:
        raise ImageError(f"{path}: is no image; make one with engine pack")
    if version != VERSION:
        raise ImageError(f"{path}: image version {version}, this engine reads {VERSION}; {REMEDY}")
    if xxhash.xxh3_64_intdigest(preamble[:_HASHED]) != own:
        raise damaged(path, "its first 64 bytes are damaged")
    if nbytes > MAX_HEADER_BYTES or offset < PREAMBLE.size or offset + nbytes != data.nbytes:
        raise damaged(path, f"{data.nbytes} bytes where {offset + nbytes} were written")
    header = data.read(offset, nbytes)
    if xxhash.xxh3_64_intdigest(header) != xxh3:
        raise damaged(path, "its header does not have the hash that was written")
    return layout.rstrip(b"\0").decode("ascii", "replace"), header


def _image(path: Path, layout: str, header: dict[str, Any], data: Contents) -> Image:
    sections = {
        name: Section(int(offset), int(nbytes), str(xxh3))
        for name, (offset, nbytes, xxh3) in header["sections"].items()
    }
    for name, section in sections.items():
        _check_range(name, section.offset, section.nbytes, PREAMBLE.size, data.nbytes)
    weights = sections["weights"]
    tensors = {}
    for name, dtype, shape, offset, nbytes in header["tensors"]:
        _check_range(name, offset, nbytes, weights.offset, weights.offset + weights.nbytes)
        tensors[name] = TensorInfo(str(name), str(dtype), tuple(map(int, shape)), offset, nbytes)
    template = header["template"]
    return Image(
        path,
        layout,
        _config(header["config"]),
        MappingProxyType(tensors),
        MappingProxyType(sections),
        Source(*header["source"]),
        None if template is None else TemplateText(*map(str, template)),
        MappingProxyType(header["tokenizer"]),
    )


def _config(found: Mapping[str, Any]) -> LlamaConfig:
    for field in fields(LlamaConfig):
        value = found[field.name]
        if not isinstance(value, float if field.type == "float" else int) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{field.name} is {value!r}")
    return LlamaConfig(**found)


def _check_range(name: str, offset: int, nbytes: int, start: int, end: int) -> None:
    if not (start <= offset and 0 <= nbytes <= end - offset):
        raise ValueError(f"{name!r} lies at {offset}, {nbytes} bytes, outside of {start} to {end}")


def _check_vocabulary(vocabulary: Vocabulary) -> None:
    tokens = len(vocabulary.tokens)
    if len(vocabulary.types) != tokens:
        raise ValueError("tokens and their types do not fit")
    ids = [*vocabulary.end_ids, *(() if vocabulary.bos_id is None else (vocabulary.bos_id,))]
    ids += [max(merged, default=0) for merged in (vocabulary.left, vocabulary.right, vocabulary.merges.made)]
    ids += [letter for letter in vocabulary.merges.letters if letter != NONE]
    if len(vocabulary.left) != len(vocabulary.right) or not all(0 <= token < tokens for token in ids):
        raise ValueError("a merge or a special token names no token")
