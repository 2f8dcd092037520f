"""Images packed on first use, in a folder of the user's cache.

An image's name holds the digest of the GGUF file's content, the kernels' layout and the format's version, so that an
image is never stale. Hashing 100 MB takes longer than a start may, so the digest is remembered beside the images
under the file's path, and holds for as long as size, inode, mtime and ctime are the same.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson
import xxhash

from engine.model.image import VERSION, Image, ImageError, Progress, is_image, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from engine.model.pack import Packer

logger = logging.getLogger(__name__)

FOLDER: Final = "edgeproxy"


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """$XDG_CACHE_HOME/edgeproxy (XDG base directories, 0.8: a relative path there is to be ignored)."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / FOLDER


def opened(path: Path, folder: Path, packer: Packer, progress: Progress = lambda done, total: None) -> Image:
    """The image of a GGUF file, packed now if it never was; or the image itself, if `path` is one.

    Processes that want the same image at once: one packs, the others wait for it. Raises GgufError, ImageError.
    """
    try:
        if is_image(path):
            return read(path, packer.layout)
        folder.mkdir(parents=True, exist_ok=True)
        digest = _digest(path, folder)
    except OSError as error:
        raise ImageError(
            f"{error.filename or path}: {error.strerror or error}; name a file you may read, and with --cache a folder "
            "you may write"
        ) from error
    out = folder / f"{path.stem[:100]}-{digest[:16]}-{packer.layout}-{VERSION}.image"
    image = _found(out, digest, packer.layout)
    if image is None:
        with _locked(out):
            image = _found(out, digest, packer.layout) or _packed(path, out, packer, progress)
    return image


def _found(out: Path, digest: str, layout: str) -> Image | None:
    if not out.exists():
        return None
    try:
        image = read(out, layout)
    except ImageError as error:
        logger.warning("packing again: %s", error)
        return None
    return image if image.source.digest == digest else None


def _packed(path: Path, out: Path, packer: Packer, progress: Progress) -> Image:
    from engine.model.pack import PART, pack

    for left_behind in out.parent.glob(f".{out.name}.*{PART}"):  # by a process that was killed: the lock is ours
        left_behind.unlink(missing_ok=True)
    return pack(path, out, packer, progress)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Across processes; the kernel lets go when its holder dies."""
    lock = out.with_suffix(".lock")
    try:
        file = lock.open("ab")
    except OSError as error:
        raise ImageError(f"{lock}: {error.strerror}; name a folder you may write with --cache") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _digest(path: Path, folder: Path) -> str:
    """Of the file's content, remembered. Raises OSError."""
    path = path.resolve()
    status = path.stat()
    stamp = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
    note = folder / f"{xxhash.xxh3_128_hexdigest(os.fsencode(path))}.digest"
    with suppress(OSError, ValueError, TypeError):
        remembered, digest = orjson.loads(note.read_bytes())
        if remembered == stamp and isinstance(digest, str):
            return digest
    from engine.model.pack import digest_of

    digest = digest_of(path)
    part = note.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a folder that holds the image but cannot be written is still of use
        part.write_bytes(orjson.dumps((stamp, digest)))
        part.replace(note)
    return digest
