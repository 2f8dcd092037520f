"""GGUF to image: the weights rearranged for the kernels, everything else carried over."""

from __future__ import annotations

import fcntl
import glob
import os
import struct
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final

import orjson
import xxhash

from engine.model.arch import llama_config
from engine.model.contents import Contents, digest_of, opened
from engine.model.finite import not_finite
from engine.model.gguf import BLOCKS, Gguf, GgufError, TensorInfo, read, readable
from engine.model.image import (
    MAGIC,
    PREAMBLE,
    TENSOR_ALIGNMENT,
    VERSION,
    WEIGHTS_AT,
    Image,
    ImageError,
    Progress,
    Section,
    is_image,
    verify,
)
from engine.model.image import read as read_image
from engine.model.packer import Packer
from engine.model.vocabulary import TemplateText, Vocabulary

PART: Final = ".part"
"""How an image that is being written is named at its end."""

WRITE_BYTES: Final = 4 << 20
"""At once: file systems that can keep what came together in large pages, and a token is faster from those."""


def pack(source: Path, out: Path, packer: Packer, progress: Progress = lambda done, total: None) -> Image:
    """Writes the image of a GGUF file to `out`: all of it or nothing, and read back before it gets its name.

    Raises GgufError for a source that cannot be used, ImageError where the image cannot be written.
    """
    gguf = read(source)
    try:
        with _replacing(out) as (part, file):
            _Writer(file, gguf, packer, progress).write()
            file.flush()
            os.fsync(file.fileno())
            verify(read_image(part, packer.layout))
    except FileNotFoundError as error:
        raise ImageError(f"{out}: there is no folder {out.parent}; make it, or name another place (-o)") from error
    except OSError as error:
        raise ImageError(
            f"{out}: cannot be written: {error.strerror or error}; make room, or name another place (-o, --cache)"
        ) from error
    return read_image(out, packer.layout)


def check_place(out: Path) -> None:
    """Raises ImageError, or OSError, where an image would take the place of something that is none."""
    if out.exists() and not (out.is_file() and is_image(out)):
        raise ImageError(f"{out}: is there already and is no image; name another place (-o), or remove it first")


def check_weights(gguf: Gguf, progress: Progress = lambda done, total: None) -> None:
    """Reads all tensors of a GGUF file. It has no hashes: only what no model holds is found. Raises GgufError."""
    done, total = 0, sum(tensor.nbytes for tensor in gguf.tensors.values())
    with readable(gguf.path) as contents:
        for tensor in gguf.tensors.values():
            check_numbers(gguf.path, tensor, contents.read(tensor.offset, tensor.nbytes))
            done += tensor.nbytes
            progress(done, total)


def check_numbers(path: Path, tensor: TensorInfo, data: bytes) -> None:
    """Raises GgufError for a tensor with NaN or infinity in it."""
    block = not_finite(tensor.dtype, data)
    if block is not None:
        raise GgufError(
            f"{path}: the tensor {tensor.name!r} has NaN or infinity in block {block} of {BLOCKS[tensor.dtype][1]} "
            "bytes: the file is damaged; fetch it again"
        )


@contextmanager
def _replacing(out: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A file beside `out` that takes its name when the block ends well, and is gone when it does not.

    Its writer holds a lock on it, which ends with the process: what a killed one left is removed, what one that lives
    writes is not.
    """
    _remove_left_behind(out)
    descriptor, part = _locked_part(out)
    try:
        with os.fdopen(descriptor, "w+b", WRITE_BYTES) as file:
            yield part, file
        part.chmod(0o644)
        part.replace(out)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    folder = os.open(out.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked_part(out: Path) -> tuple[int, Path]:
    """Raises OSError."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=PART, dir=out.parent)
        with suppress(OSError):  # a file system without locks: parts stay until somebody removes them
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, Path(name)
        os.close(descriptor)  # somebody took it for left behind before it was locked


def _remove_left_behind(out: Path) -> None:
    for part in out.parent.glob(f".{glob.escape(out.name)}.*{PART}"):
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


class _Writer:
    """Writes one image from front to back, and its preamble last."""

    def __init__(self, file: IO[bytes], gguf: Gguf, packer: Packer, progress: Progress) -> None:
        self.file = file
        self.gguf = gguf
        self.packer = packer
        self.progress = progress
        self.sections: dict[str, Section] = {}

    def write(self) -> None:
        config = asdict(llama_config(self.gguf))
        vocabulary = Vocabulary.from_gguf(self.gguf) if "tokenizer.ggml.tokens" in self.gguf.metadata else None
        template = TemplateText.from_gguf(self.gguf) if "tokenizer.chat_template" in self.gguf.metadata else None
        tensors = self.weights()
        header = {
            "config": config,
            "source": (self.gguf.path.name, self.gguf.path.stat().st_size, digest_of(self.gguf.path)),
            "template": template and (template.source, template.bos_token, template.eos_token),
            "tokenizer": self.vocabulary(vocabulary) if vocabulary else {},
            "tensors": tensors,
            "sections": {name: (s.offset, s.nbytes, s.xxh3) for name, s in self.sections.items()},
        }
        self.header(orjson.dumps(header))

    def weights(self) -> list[tuple[Any, ...]]:
        """The table of tensors."""
        self.pad(WEIGHTS_AT)
        state = xxhash.xxh3_64()
        table: list[tuple[Any, ...]] = []
        tensors = self.gguf.tensors
        done, total = 0, sum(tensor.nbytes for tensor in tensors.values())
        with opened(self.gguf.path) as contents:
            for tensor in tensors.values():
                raw = self.source(contents, tensor)
                dtype, packed = self.packer.packed(tensor, raw)
                state.update(self.pad(TENSOR_ALIGNMENT))
                table.append((tensor.name, dtype, tensor.shape, self.file.tell(), len(packed)))
                self.file.write(packed)
                state.update(packed)
                done += tensor.nbytes
                self.progress(done, total)
        self.sections["weights"] = Section(WEIGHTS_AT, self.file.tell() - WEIGHTS_AT, state.hexdigest())
        return table

    def source(self, contents: Contents, tensor: TensorInfo) -> bytes:
        """Raises GgufError: what cannot be read is not what cannot be written."""
        try:
            data = contents.read(tensor.offset, tensor.nbytes)
        except OSError as error:
            raise GgufError(
                f"{self.gguf.path}: the tensor {tensor.name!r} cannot be read: {error.strerror or error}; fetch the "
                "file again, and look for disk errors in the kernel's log"
            ) from error
        check_numbers(self.gguf.path, tensor, data)
        return data

    def vocabulary(self, vocabulary: Vocabulary) -> dict[str, Any]:
        merges = array("I", [token for pair in zip(vocabulary.left, vocabulary.right, strict=True) for token in pair])
        tokens = [token.encode() for token in vocabulary.tokens]
        self.section("tokens", b"".join(tokens))
        self.section("token_ends", array("I", accumulate(map(len, tokens))).tobytes())
        self.section("types", vocabulary.types)
        self.section("merges", merges.tobytes())
        self.section("lookup", vocabulary.merges.to_bytes())
        return {
            "end_ids": sorted(vocabulary.end_ids),
            "bos_id": vocabulary.bos_id,
            "add_bos": vocabulary.add_bos,
        }

    def header(self, header: bytes) -> None:
        self.pad(TENSOR_ALIGNMENT)
        offset = self.file.tell()
        self.file.write(header)
        layout = self.packer.layout.encode("ascii")
        values = (MAGIC, VERSION, 0, layout, offset, len(header), xxhash.xxh3_64_intdigest(header))
        hashed = PREAMBLE.pack(*values, 0)[: PREAMBLE.size - 8]
        self.file.seek(0)
        self.file.write(hashed + struct.pack("<Q", xxhash.xxh3_64_intdigest(hashed)))

    def section(self, name: str, data: bytes) -> None:
        self.pad(TENSOR_ALIGNMENT)
        self.sections[name] = Section(self.file.tell(), len(data), xxhash.xxh3_64_hexdigest(data))
        self.file.write(data)

    def pad(self, alignment: int) -> bytes:
        """Zeros up to the next multiple of `alignment`; they are written, and returned."""
        at = self.file.tell()
        zeros = bytes(-at % alignment if at else alignment)
        self.file.write(zeros)
        return zeros
