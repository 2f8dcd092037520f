"""A file's bytes by their offset. Read and not mapped: what is cut short meanwhile, or cannot be read from the disk, is
an OSError here, where a mapping would end the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 1 << 20


class Contents:
    """Of an open file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.nbytes = os.fstat(fd).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """Raises OSError, also where the file ends before."""
        first = os.pread(self._fd, nbytes, offset)
        if len(first) == nbytes:
            return first
        pieces = [first]  # a call reads 2 GiB at most
        while pieces[-1] and sum(map(len, pieces)) < nbytes:
            done = sum(map(len, pieces))
            pieces.append(os.pread(self._fd, nbytes - done, offset + done))
        if sum(map(len, pieces)) < nbytes:
            raise OSError(errno.EIO, "it was cut short while it was read")
        return b"".join(pieces)

    def pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        """Of 1 MiB. Raises OSError."""
        for at in range(offset, offset + nbytes, _PIECE_BYTES):
            yield self.read(at, min(_PIECE_BYTES, offset + nbytes - at))


@contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """Raises OSError."""
    with path.open("rb", buffering=0) as file:
        yield Contents(file.fileno())


def digest_of(path: Path) -> str:
    """xxh3_128 of a file's bytes, hexadecimal. Raises OSError."""
    import xxhash  # not where shapes of models alone are wanted: scripts/gpu_check has no such package

    state = xxhash.xxh3_128()
    with opened(path) as contents:
        for piece in contents.pieces(0, contents.nbytes):
            state.update(piece)
    return str(state.hexdigest())
