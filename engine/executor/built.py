"""Whether the compiled module is of the sources that lie beside it: to pull new ones does not build them."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).parent.parent / "csrc"
"""Not there in an installed wheel, which has nothing to be behind."""


def behind(module: Path, built_from: str, sources: Path = SOURCES) -> str | None:
    """What to tell of a module that was built from other sources, else None. built_from: as `digest` says it.

    Contents are compared only where a source is younger than the module: a start has no time to read them all.
    """
    try:
        newest = max((file.stat().st_mtime_ns for file in _files(sources)), default=0)
        if newest <= module.stat().st_mtime_ns or digest(sources) == built_from:
            return None
    except OSError:
        return None
    return f"the native executor ({module}) was built from other sources than {sources} now holds: run scripts/install"


def digest(sources: Path) -> str:
    """As CMakeLists.txt makes it: SHA-256 over lines of name and SHA-256, by name. Raises OSError."""
    from hashlib import sha256

    lines = [f"{file.name} {sha256(file.read_bytes()).hexdigest()}\n" for file in sorted(_files(sources))]
    return sha256("".join(lines).encode()).hexdigest()


def _files(sources: Path) -> list[Path]:
    return [file for file in sources.iterdir() if file.suffix in (".cpp", ".h")]
