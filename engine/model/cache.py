"""Images packed on first use, in a folder of the user's cache.

An image's name holds the digest of the GGUF file's content, the kernels' layout and the format's version, so that an
image is never stale. Hashing 100 MB takes longer than a start may, and so does looking for a file in an installed
package. So a note beside the images remembers, for a model's URI, the file and its digest; it holds for as long as that
file's size, inode, mtime and ctime are the same.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import orjson
import xxhash

from engine.model.image import REMEDY, VERSION, Image, ImageError, Progress, is_image, read, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from engine.model.packer import Packer

logger = logging.getLogger(__name__)

SCHEME: Final = "package:"
FOLDER: Final = "edgeproxy"
DAMAGED: Final = ".damaged"
"""In place of .image: what was found to be damaged, the last one."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """$XDG_CACHE_HOME/edgeproxy (XDG base directories, 0.8: a relative path there is to be ignored)."""
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / FOLDER


def opened(
    uri: str,
    folder: Path,
    packer: Packer,
    progress: Progress = lambda done, total: None,
    *,
    thorough: bool = False,
) -> Image:
    """The image of a GGUF file, packed now if it never was; or the image itself, if the URI names one.

    thorough: one that is there is read as a whole, and packed again where it is damaged.
    Processes that want the same image at once: one packs, the others wait for it. Raises SourceError, GgufError,
    ImageError.
    """
    check = verify if thorough else _unchecked
    try:
        note = _note(uri, folder)
        path, digest = _remembered(note) or _looked_up(uri, note)
        if not digest:
            image = read(path, packer.layout)
            (verify if _suspected(image, folder) else check)(image)
            return image
    except OSError as error:
        raise ImageError(
            f"{error.filename or uri}: {error.strerror or error}; name a file you may read, and with --cache a folder "
            "you may write"
        ) from error
    out = folder / f"{path.stem[:100]}{_ending(digest, packer.layout)}"
    found = _found(out, digest, packer.layout, check)
    if found is None:
        with _locked(out):
            found = _found(out, digest, packer.layout, check, logger.warning) or _packed(path, out, packer, progress)
    return found


def set_aside(image: Image, folder: Path) -> Path | None:
    """Renames a damaged image of the cache, so that the next start packs anew; where to, or None where it is not done.

    Not where another process has put a sound one in its place. A file that is not the cache's stays where it is, and
    starts read all of it until it is another. Nodes that map it keep it. Raises ImageError, OSError.
    """
    if image.path.parent != folder or not image.path.name.endswith(_ending(image.source.digest, image.layout)):
        folder.mkdir(parents=True, exist_ok=True)
        _suspicion(image, folder).write_bytes(orjson.dumps(_stamp(image.path)))
        return None
    with _locked(image.path):
        if not image.path.exists() or _sound(image.path, image.layout):
            return None
        return image.path.replace(image.path.with_suffix(DAMAGED))


def _suspected(image: Image, folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(orjson.loads(_suspicion(image, folder).read_bytes()) == _stamp(image.path))
    return False


def _suspicion(image: Image, folder: Path) -> Path:
    return folder / f"{xxhash.xxh3_128_hexdigest(os.fsencode(image.path.absolute()))}.suspect"


def _sound(path: Path, layout: str) -> bool:
    try:
        verify(read(path, layout))
    except ImageError:
        return False
    return True


def _ending(digest: str, layout: str) -> str:
    return f"-{digest[:16]}-{layout}-{VERSION}.image"


def _unchecked(image: Image) -> None:
    """As it is: to read all of it would take longer than a start may."""


def _found(
    out: Path,
    digest: str,
    layout: str,
    check: Callable[[Image], None],
    say: Callable[[str, object], None] = lambda text, value: None,
) -> Image | None:
    """say: told why one that is there is not used."""
    if not out.exists():
        return None
    try:
        image = read(out, layout)
        check(image)
    except ImageError as error:
        say("packing again: %s", str(error).removesuffix(f"; {REMEDY}"))
        return None
    return image if image.source.digest == digest else None


def _packed(path: Path, out: Path, packer: Packer, progress: Progress) -> Image:
    from engine.model.pack import pack

    image = pack(path, out, packer, progress)
    _prune(out)
    return image


def _prune(out: Path) -> None:
    """Removes what earlier versions of the format left of the same content and layout. Nodes that map it keep it."""
    import glob

    same, _, version = out.stem.rpartition("-")
    for other in out.parent.glob(f"{glob.escape(same)}-*.image"):
        found = other.stem.rpartition("-")[2]
        if found.isdigit() and int(found) < int(version):
            with suppress(OSError):  # another process may be faster, and an image too many does no harm
                for suffix in (".image", ".lock", DAMAGED):
                    other.with_suffix(suffix).unlink(missing_ok=True)


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


def _note(uri: str, folder: Path) -> Path:
    """Where it is remembered what a URI names: in a package of this very environment, or in this very folder."""
    name = f"{sys.prefix}\0{uri}" if uri.startswith(SCHEME) else str(Path(uri).expanduser().absolute())
    return folder / f"{xxhash.xxh3_128_hexdigest(os.fsencode(name))}.note"


def _remembered(note: Path) -> tuple[Path, str] | None:
    """A GGUF file that is as it was, and the digest of its content."""
    with suppress(OSError, ValueError, TypeError):
        name, stamp, digest = orjson.loads(note.read_bytes())
        path = Path(name)
        if stamp == _stamp(path) and isinstance(digest, str) and digest:
            return path, digest
    return None


def _looked_up(uri: str, note: Path) -> tuple[Path, str]:
    """The digest is empty where the file is an image itself. Raises SourceError, OSError."""
    from engine.model.arch import llama_config
    from engine.model.contents import digest_of
    from engine.model.gguf import read as read_gguf
    from engine.model.source import check_published, resolve

    path = resolve(uri)
    if is_image(path):
        return path, ""
    llama_config(read_gguf(path))  # what is no model leaves nothing in the folder
    check_published(uri)
    note.parent.mkdir(parents=True, exist_ok=True)
    stamp, digest = _stamp(path), digest_of(path)
    part = note.with_suffix(f".{os.getpid()}")
    with suppress(OSError, TypeError):  # a folder that holds the image but cannot be written is still of use
        part.write_bytes(orjson.dumps((str(path.absolute()), stamp, digest)))
        part.replace(note)
    return path, digest


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
