"""The simulator's command says what became of the requests, and names what it cannot use."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from edgeproxy.sim.cli import main


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_nearest_region_takes_all_while_it_lives() -> None:
    output = run("near=2", "far=140")
    assert "near         100.0%" in output
    assert "far" not in output
    assert "0 without an answer" in output


def test_a_dead_region_hands_over_to_the_next() -> None:
    output = run("near=2", "mid=30", "far=140", "--dead", "near=100-400", "--seconds", "600")
    assert "near          50" in output or "near          49" in output
    assert "mid" in output
    assert "far" not in output


def test_a_seed_makes_a_run_repeatable() -> None:
    assert run("a=1", "b=3", "--seed", "7") == run("a=1", "b=3", "--seed", "7")


@pytest.mark.parametrize(
    "arguments", [["near"], ["near=x"], ["near=-1"], ["near=2", "--dead", "far=1-2"], ["near=nan"]]
)
def test_what_cannot_be_used_is_named(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Error" in result.output
