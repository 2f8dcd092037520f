from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.text.stop import StopStrings

TEXT = st.text("ab", max_size=16)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def cut(text: str, stops: list[str]) -> str:
    """The definition: up to the stop string that is complete first, of those that end together the longest."""
    ends = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return text[: min(ends)[1]] if ends else text


def piecewise(pieces: list[str], stops: list[str]) -> tuple[str, list[str]]:
    finder = StopStrings(stops)
    shown = [finder.push(piece) for piece in pieces]
    return "".join(shown) + finder.finish(), shown


@given(TEXT, STOPS)
def test_the_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    assert piecewise([text], stops)[0] == cut(text, stops)


@given(st.lists(st.text("ab", max_size=3), max_size=8), STOPS)
def test_pieces_change_nothing(pieces: list[str], stops: list[str]) -> None:
    assert piecewise(pieces, stops)[0] == cut("".join(pieces), stops)


@given(st.lists(st.text("ab", max_size=3), max_size=8), STOPS)
def test_what_was_shown_is_never_taken_back(pieces: list[str], stops: list[str]) -> None:
    _, shown = piecewise(pieces, stops)
    assert cut("".join(pieces), stops).startswith("".join(shown))


def test_only_what_may_be_a_stop_string_is_held_back() -> None:
    finder = StopStrings(["END"])
    assert finder.push("the E") == "the "
    assert finder.push("N") == ""
    assert finder.push("T") == "ENT"
    assert finder.push("END and more") == ""
    assert finder.found
    assert finder.push("more") == ""
    assert finder.finish() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    assert StopStrings(()).push("abc") == "abc"


@given(st.lists(st.text("ab", max_size=3), max_size=8), STOPS)
def test_where_it_is_told_the_text_ends_behind_the_stop_string(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    finder = StopStrings(stops, told=True)
    shown = "".join(map(finder.push, pieces)) + finder.finish()
    assert shown == text[: min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))]
