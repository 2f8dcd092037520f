"""A child that fails in the same way again is told of in full once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgeproxy.upstream.repeats import MOST_LINES, Repeats

FAILS = ("reading", "Traceback", "ValueError: no such model")


class Child:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.said = Repeats(self.told.append)

    def life(self, lines: Sequence[str], status: str = "exit status 1") -> tuple[list[str], int]:
        """What was told of it, and how often it was so before."""
        self.told.clear()
        self.said.begin()
        for line in lines:
            self.said.line(line)
        again = self.said.end(status)
        return self.told.copy(), again


def test_the_same_failure_is_told_once_and_then_counted() -> None:
    child = Child()
    assert child.life(FAILS) == ([*FAILS], 0)
    assert [child.life(FAILS) for _ in range(3)] == [([], 1), ([], 2), ([], 3)]


@pytest.mark.parametrize(
    "other",
    [(*FAILS[:2], "OSError: disk"), FAILS[:2], (*FAILS, "more"), ("starting", *FAILS)],
    ids=["another end", "shorter", "longer", "another beginning"],
)
def test_another_failure_is_told_in_full(other: Sequence[str]) -> None:
    child = Child()
    child.life(FAILS)
    child.life(FAILS)
    assert child.life(other) == ([*other], 0)
    assert child.life(other) == ([], 1)


def test_another_status_alone_is_another_failure() -> None:
    child = Child()
    child.life(FAILS)
    assert child.life(FAILS, "signal SIGKILL") == ([*FAILS], 0)


def test_numbers_alone_are_no_news() -> None:
    child = Child()
    child.life(["read in 0.31 s", "process 4711 at 0x7f00beef"])
    assert child.life(["read in 12 s", "process 4712 at 0x7f00cafe"]) == ([], 1)


def test_a_line_that_is_new_is_told_at_once_behind_what_led_to_it() -> None:
    child = Child()
    child.life(FAILS)
    child.told.clear()
    child.said.begin()
    child.said.line("reading")
    assert child.told == []
    child.said.line("ready")
    assert child.told == ["reading", "ready"]
    child.said.line("Traceback")
    assert child.told == ["reading", "ready", "Traceback"]


def test_what_waits_is_told_once_it_lives_longer_than_before() -> None:
    child = Child()
    child.life(FAILS)
    child.told.clear()
    child.said.begin()
    child.said.line("reading")
    child.said.go_on()
    assert child.told == ["reading"]
    child.said.line("Traceback")
    assert child.told == ["reading", "Traceback"]
    assert child.said.end("exit status 1") == 0


def test_no_more_is_kept_than_a_bound_allows_and_what_is_longer_is_told() -> None:
    child = Child()
    flood = ["line"] * (2 * MOST_LINES)
    assert child.life(flood) == (flood, 0)
    assert child.life(flood) == (flood, 0)
    assert len(child.said._lines) <= MOST_LINES + 1
