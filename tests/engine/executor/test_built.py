"""A compiled module that is behind its sources is told of before it is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.executor.built import SOURCES, behind, digest

YOUNG, OLD = 2_000_000_000, 1_000_000_000
"""Seconds since the epoch."""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "csrc"
    folder.mkdir()
    for name in ("a.cpp", "b.h"):
        dated(folder / name, name, OLD)
    return folder


def dated(path: Path, text: str, when: int) -> Path:
    path.write_text(text)
    os.utime(path, (when, when))
    return path


def test_a_module_of_these_sources_is_in_step_however_young_they_look(sources: Path, tmp_path: Path) -> None:
    module = dated(tmp_path / "module.so", "", OLD + 1)
    assert behind(module, digest(sources), sources) is None
    os.utime(sources / "a.cpp", (YOUNG, YOUNG))
    assert behind(module, digest(sources), sources) is None


@pytest.mark.parametrize("name", ["a.cpp", "c.h"])
@pytest.mark.parametrize("older", [False, True], ids=["built from others", "from before digests were kept"])
def test_a_module_of_other_sources_names_the_remedy(sources: Path, tmp_path: Path, name: str, older: bool) -> None:
    module = dated(tmp_path / "module.so", "", OLD + 1)
    built_from = "" if older else digest(sources)
    dated(sources / name, "changed", YOUNG)
    said = behind(module, built_from, sources) or ""
    assert "run scripts/install" in said
    assert str(module) in said


def test_what_an_editor_leaves_there_is_no_source(sources: Path, tmp_path: Path) -> None:
    module, built_from = dated(tmp_path / "module.so", "", OLD + 1), digest(sources)
    dated(sources / ".a.cpp.swp", "", YOUNG)
    assert behind(module, built_from, sources) is None


def test_an_installed_wheel_has_no_sources_to_be_behind(tmp_path: Path) -> None:
    assert behind(dated(tmp_path / "module.so", "", OLD), "", tmp_path / "csrc") is None


def test_the_module_says_of_its_sources_what_is_computed_here() -> None:
    native = pytest.importorskip("engine._native", reason="the native executor is not built")
    assert digest(SOURCES) == native.SOURCES
