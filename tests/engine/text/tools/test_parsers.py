"""However an answer is cut into pieces, it has the same calls; what is no call is text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.tools.events import Arguments, CallsOnly, CallStart, Event, Parser, joined, size_of, without
from engine.text.tools.hermes import HermesParser
from engine.text.tools.llama import LlamaJsonParser
from engine.text.tools.mistral import MistralParser
from engine.text.tools.pythonic import PythonicParser
from engine.text.tools.repeats import Repeats

NAMES = frozenset({"f", "get_weather"})
Make = Callable[[frozenset[str]], Parser]


def once(names: frozenset[str]) -> Parser:
    return Repeats(HermesParser(names), 1)


def twice(names: frozenset[str]) -> Parser:
    return Repeats(HermesParser(names), 2)


PARSERS: list[Make] = [HermesParser, LlamaJsonParser, MistralParser, PythonicParser, once, twice]
ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=5)
    | st.sampled_from(['"', "\\", "</tool_call>", "{["]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
CALL: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["f", "get_weather", "unknown"]),
        "arguments": st.dictionaries(st.text(max_size=3), ARGUMENTS, max_size=2),
    }
)
PIECES = st.one_of(
    CALL.map(json.dumps),
    CALL.map(lambda call: f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" * 2),
    CALL.map(lambda call: f"<tool_call>\n{json.dumps(call)}\n</tool_call>"),
    CALL.map(lambda call: json.dumps({"arguments": call["arguments"], "name": call["name"]})),
    CALL.map(lambda call: f"[TOOL_CALLS]{call['name']}[ARGS]{json.dumps(call['arguments'])}"),
    CALL.map(
        lambda call: f"[{call['name']}({', '.join(f'a{i}={v!r}' for i, v in enumerate(call['arguments'].values()))})]"
    ),
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<tool",
            "[TOOL_CALLS]",
            "[TOOL",
            "{",
            "}",
            "[",
            "]",
            ";",
            ",",
            " ",
            "\n",
            "\\",
            '"',
            "f(",
            "<|python_tag|>",
            '{"name":{}}',
        ]
    ),
    st.text(max_size=6),
)
ANSWERS = st.lists(PIECES, max_size=6).map("".join)


def read(make: Make, pieces: Sequence[str]) -> list[Event]:
    parser = make(NAMES)
    events = [event for piece in pieces for event in parser.push(piece)]
    return joined([*events, *parser.finish()])


def cut(text: str, cuts: list[int]) -> list[str]:
    at = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(at)]


def calls(events: list[Event]) -> list[tuple[str, object]]:
    starts = [event for event in events if isinstance(event, CallStart)]
    assert [start.call for start in starts] == list(range(len(starts)))
    texts = ["".join(e.text for e in events if isinstance(e, Arguments) and e.call == s.call) for s in starts]
    return [(start.name, json.loads(text)) for start, text in zip(starts, texts, strict=True)]


def texts(events: list[Event]) -> str:
    return "".join(event for event in events if isinstance(event, str))


@settings(max_examples=150)
@given(make=st.sampled_from(PARSERS), text=ANSWERS, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_what_the_whole_gives(make: Make, text: str, cuts: list[int]) -> None:
    whole = read(make, [text])
    assert read(make, cut(text, cuts)) == whole
    assert read(make, list(text)) == whole


@settings(max_examples=60)
@given(make=st.sampled_from(PARSERS), text=ANSWERS, at=st.integers(0, 10_000))
def test_what_was_told_of_a_beginning_is_the_beginning_of_what_is_told(make: Make, text: str, at: int) -> None:
    parser = make(NAMES)
    told = joined(parser.push(text[: at % (len(text) + 1)]))
    skip = sum(map(size_of, told))
    rest = read(make, [text])
    while skip and skip >= size_of(rest[0]):
        skip -= size_of(rest.pop(0))
    if rest:
        rest[0] = without(rest[0], skip)
    assert joined([*told, *rest]) == read(make, [text])


WEATHER = {"name": "get_weather", "arguments": {"city": "Köln", "when": ["now", "</tool_call>"]}}
F = {"name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (HermesParser, f"<tool_call>\n{json.dumps(WEATHER)}\n</tool_call>\n<tool_call>{json.dumps(F)}</tool_call>"),
        (HermesParser, f"<tool_call>{json.dumps([WEATHER, F])}</tool_call>"),
        (HermesParser, f"<tool_call>{json.dumps(WEATHER)}<tool_call>{json.dumps(F)}"),
        (LlamaJsonParser, f"{json.dumps(WEATHER)}; {json.dumps(F).replace('arguments', 'parameters')}"),
        (LlamaJsonParser, f"<|python_tag|>{json.dumps(WEATHER)};{json.dumps(F)}"),
        (MistralParser, f"[TOOL_CALLS][{json.dumps(WEATHER)}, {json.dumps(F)}]"),
        (MistralParser, "[TOOL_CALLS]get_weather[ARGS]" + json.dumps(WEATHER["arguments"]) + "[TOOL_CALLS]f{}"),
        (PythonicParser, "<|python_tag|>[get_weather(city='Köln', when=('now', '</tool_call>')), f()]"),
        (PythonicParser, "[get_weather(city='Köln', when=[\"now\", '</tool_call>']), f()]"),
    ],
)
def test_each_format_is_read(make: Make, answer: str) -> None:
    events = read(make, [answer])
    assert calls(events) == [("get_weather", WEATHER["arguments"]), ("f", {})]
    assert texts(events) == ""


@pytest.mark.parametrize("make", PARSERS)
@pytest.mark.parametrize(
    "answer",
    [
        "Plain text, with a < and a [ and a { in it.",
        '{"name": "unknown", "arguments": {}}',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> and more',
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"name": "f"',
        '{"name": {}}',
        '{"name": ["f"], "arguments": {}}',
        "[1, 2, 3] are numbers",
        "[unknown(a=1)]",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[f(open('x'))]",
        "[" * 3000 + "]" * 3000,
        "",
    ],
)
def test_what_is_no_call_is_text(make: Make, answer: str) -> None:
    events = read(make, [answer])
    assert calls(events) == []
    assert texts(events) == answer


@pytest.mark.parametrize("make", [LlamaJsonParser, PythonicParser])
@pytest.mark.parametrize("between", ["", " "])
def test_of_two_tags_the_second_is_text_however_they_come(make: Make, between: str) -> None:
    answer = f"<|python_tag|>{between}<|python_tag|>"
    assert read(make, [answer]) == read(make, list(answer)) == ["<|python_tag|>"]


@pytest.mark.parametrize(
    ("make", "begins", "whole"),
    [
        (HermesParser, '<tool_call>{"name": "f", "arguments": {"a": 1', "}}</tool_call>"),
        (LlamaJsonParser, '{"name": "f", "parameters": {"a": 1', "}}"),
        (MistralParser, '[TOOL_CALLS]f[ARGS]{"a": 1', "}"),
        (MistralParser, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1', "}}]"),
        (once, '<tool_call>{"name": "f", "arguments": {"a": 1', "}}</tool_call>"),
        (lambda names: CallsOnly(HermesParser(names)), '<tool_call>{"name": "f", "arguments": {"a": 1', "}}"),
    ],
)
def test_who_ends_in_a_call_has_not_finished_it(make: Make, begins: str, whole: str) -> None:
    for text, unfinished in (begins, True), (begins + whole, False):
        parser = make(NAMES)
        parser.push(text)
        parser.finish()
        assert parser.unfinished == unfinished


CUT = [
    (HermesParser, "I look it up.\n", f"<tool_call>\n{json.dumps(WEATHER)}\n</tool_call>\n<tool_call>{json.dumps(F)}"),
    (MistralParser, "I look it up.", f"[TOOL_CALLS][{json.dumps(WEATHER)}, {json.dumps(F)}]"),
    (MistralParser, "", "[TOOL_CALLS]get_weather[ARGS]" + json.dumps(WEATHER["arguments"]) + "[TOOL_CALLS]f[ARGS]{}"),
    (LlamaJsonParser, "", f"<|python_tag|>{json.dumps(WEATHER)}; {json.dumps(F)}"),
]
LISTED = "[get_weather(city='Köln'), f()]"


@pytest.mark.parametrize(("make", "before", "answer"), CUT)
def test_wherever_an_answer_is_cut_no_part_of_a_mark_is_text(make: Make, before: str, answer: str) -> None:
    for at in range(len(answer)):
        parser = make(NAMES)
        told = texts(joined([*parser.push(before + answer[:at]), *parser.finish(cut=True)]))
        assert told.rstrip() == before.rstrip()


def test_a_list_that_is_cut_is_text_without_the_tag_before_it() -> None:
    for at in range(len(LISTED)):
        for answer in (f"<|python_tag|>{LISTED[:at]}", "<|python_tag|>"[: at + 1]):
            parser = PythonicParser(NAMES)
            assert LISTED.startswith(texts([*parser.push(answer), *parser.finish(cut=True)]))


@pytest.mark.parametrize(
    ("make", "answer"),
    [*((make, answer) for make, _, answer in CUT), (PythonicParser, LISTED), (LlamaJsonParser, "{}")],
)
def test_of_an_answer_that_must_be_calls_nothing_is_text(make: Make, answer: str) -> None:
    for at in range(len(answer) + 1):
        parser = CallsOnly(make(NAMES))
        assert texts([*parser.push(answer[:at]), *parser.finish(cut=at < len(answer))]) == ""


def test_text_around_calls_is_kept() -> None:
    events = read(HermesParser, [f"I look it up.\n<tool_call>{json.dumps(F)}</tool_call>\n Then more."])
    assert (calls(events), texts(events)) == ([("f", {})], "I look it up.Then more.")


def test_arguments_are_told_before_the_call_is_complete() -> None:
    parser = HermesParser(NAMES)
    told = parser.push('<tool_call>{"name": "f", "arguments": {"a": "on')
    assert joined(told) == [CallStart(0, "f"), Arguments(0, '{"a": "on')]
    assert joined(parser.push('e"}')) == [Arguments(0, 'e"}')]


@pytest.mark.parametrize("make", PARSERS)
def test_a_long_answer_takes_time_in_proportion(make: Make) -> None:
    """Quadratic work on 200,000 pieces would not end."""
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 200_000
    assert sum(map(size_of, read(make, list(text)))) > 0


def wrapped(*found: dict[str, Any]) -> str:
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in found)


NEAR: dict[str, Any] = {"name": "get_weather", "arguments": {"city": "Köln", "when": ["now", "</tool_call> "]}}


@pytest.mark.parametrize("between", [[], [F], [NEAR, F]])
def test_a_call_that_was_there_word_for_word_ends_the_answer(between: list[dict[str, Any]]) -> None:
    text = wrapped(WEATHER, *between, WEATHER, F) + "and more"
    for pieces in ([text], list(text)):
        parser = once(NAMES)
        events = joined([event for piece in pieces for event in parser.push(piece)] + parser.finish())
        assert calls(events) == [(call["name"], call["arguments"]) for call in (WEATHER, *between)]
        assert parser.ended and parser.calls == 1 + len(between)
        assert texts(events) == ""


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_call_comes_no_more_often_than_it_may(most: int) -> None:
    text = wrapped(*[WEATHER, F] * most, F, WEATHER) + "and more"
    for pieces in ([text], list(text)):
        parser = Repeats(HermesParser(NAMES), most)
        events = joined([event for piece in pieces for event in parser.push(piece)] + parser.finish())
        assert calls(events) == [(call["name"], call["arguments"]) for call in [WEATHER, F] * most]
        assert parser.ended and parser.calls == 2 * most


def test_a_call_that_only_begins_like_another_is_told() -> None:
    for text in (
        wrapped(WEATHER, NEAR, F),
        wrapped(WEATHER, {**WEATHER, "name": "f"}),
        wrapped(WEATHER, WEATHER)[:-30],
    ):
        events = read(once, list(text))
        assert events == read(HermesParser, [text])
