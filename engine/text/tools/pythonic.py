"""`[name(argument=value, ...), ...]` as all of an answer: Llama 3.2 and 4, in Python's own notation."""

from __future__ import annotations

import ast
import warnings
from typing import Any, Final

import orjson

from engine.text.stop import without_begun
from engine.text.tools.events import Arguments, CallStart, Event, Parser
from engine.text.tools.marks import LLAMA_TAG as TAG

MAX_CHARS: Final = 1 << 16
"""A longer list is text."""
MAX_DEPTH: Final = 40
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}


class PythonicParser(Parser):
    """An answer that begins otherwise is text to its end; a list is told when it is complete. A tag may come before."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._text = False
        self._tagged = False
        """A tag came, and was left out."""
        self._seen = 0
        """Of `_held`, by the brackets below."""
        self._depth = 0
        self._deepest = 0
        self._quote = ""
        self._escaped = False

    def push(self, text: str) -> list[Event]:
        if self._text:
            return [text]
        self._held += text
        begins = self._held.lstrip()
        if not self._tagged and begins.startswith(TAG):
            self._held, self._tagged = begins.removeprefix(TAG), True
        if self._tagged and not self._seen:
            self._held = begins = self._held.lstrip()
        if not begins or (not self._tagged and TAG.startswith(begins)):
            return []
        end = None
        if begins[0] == "[":
            end = self._list_end()
            if end is None and len(self._held) <= MAX_CHARS:
                return []
        self._text = True
        held, self._held = self._held, ""
        return [held] if end is None else self._read(held[:end], held[end:])

    def finish(self, *, cut: bool = False) -> list[Event]:
        held, self._held, self._text = self._held, "", True
        return [without_begun(held, TAG) if cut else held]

    def _list_end(self) -> int | None:
        for at in range(self._seen, min(len(self._held), MAX_CHARS)):
            char = self._held[at]
            if self._escaped:
                self._escaped = False
            elif self._quote:
                self._escaped = char == "\\"
                self._quote = "" if char == self._quote else self._quote
            elif char in "'\"":
                self._quote = char
            elif char in "([{":
                self._depth += 1
                self._deepest = max(self._deepest, self._depth)
            elif char in ")]}":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        self._seen = len(self._held)
        return None

    def _read(self, text: str, rest: str) -> list[Event]:
        calls = _calls_of(text.strip(), self.names) if self._deepest <= MAX_DEPTH else None
        if calls is None:
            return [text, rest]
        events: list[Event] = []
        for name, arguments in calls:
            events += [CallStart(self.calls, name), Arguments(self.calls, arguments)]
            self.calls += 1
        return [*events, rest]


def _calls_of(text: str, names: frozenset[str]) -> list[tuple[str, str]] | None:
    """None where it is anything else than a list of calls."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call_of(item, names) for item in tree.elts]
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _call_of(node: ast.expr, names: frozenset[str]) -> tuple[str, str]:
    """Raises ValueError, TypeError for what JSON cannot say."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call by keywords")
    name = ast.unparse(node.func)
    if name not in names or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no such function")
    arguments = {keyword.arg: _value_of(keyword.value) for keyword in node.keywords}
    return name, orjson.dumps(arguments).decode()


def _value_of(node: ast.expr) -> Any:
    """A literal of Python or of JSON."""
    match node:
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value_of(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {ast.literal_eval(key): _value_of(value) for key, value in zip(keys, values, strict=True) if key}
        case _:
            return ast.literal_eval(node)
