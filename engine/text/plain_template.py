"""Chat templates of the plainest kind, in Python, for what a node is asked first.

jinja2 takes 50 ms to be loaded and to compile a template, and the interpreter with it. Many a template needs little of
it: `for`, `if`, `loop.first`, members, `+` and comparisons. `compiled` takes those and no other; what comes out is what
jinja2 gives (tests/engine/text/test_plain_template.py). Where the values are not as plain as the template, rendering
raises Unsure, and jinja2 has to say what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

Scope = Mapping[str, Any]
Value = Callable[[Scope], Any]
Render = Callable[[Scope], Iterable[str]]

_TAG: Final = re.compile(r"\{(?:([%{])(-?)(.*?)(-?)[%}]\})", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""\s*(?:('(?:[^'\\]|\\[nt\\'"])*'|"(?:[^"\\]|\\[nt\\'"])*")|([A-Za-z][A-Za-z0-9_]*)|([0-9]+)|(==|!=|[+.\[\]()]))"""
)
_WORDS: Final = frozenset("and or not in is if else elif for endfor endif true false none True False None".split())
_MEMBERS: Final = frozenset(dir(dict))
"""Of which `message.name` would be the method."""


class Unsure(Exception):
    """What a value is to Jinja's rules is not known here."""


class _Outside(Exception):
    """The template has more in it."""


class _Loop:
    __slots__ = ("first", "index", "index0", "last", "length")

    def __init__(self, index0: int, length: int) -> None:
        self.first, self.last = index0 == 0, index0 == length - 1
        self.index, self.index0, self.length = index0 + 1, index0, length


def compiled(source: str) -> Render | None:
    """With trim_blocks and lstrip_blocks; None for a template that needs jinja2."""
    try:
        return _Template(source).body
    except (_Outside, RecursionError):
        return None


class _Template:
    def __init__(self, source: str) -> None:
        if any(mark in source for mark in ("\r", "{#", "{%+", "{{+", "+%}")):
            raise _Outside
        self._parts = _parts(source.removesuffix("\n"))
        self.body, end = self._block(())
        assert end is None

    def _block(self, ends: tuple[str, ...]) -> tuple[Render, list[str] | None]:
        """What stands before one of the tags that end it, and that tag's tokens."""
        found: list[Render] = []
        for kind, text in self._parts:
            if kind == "text":
                found.append(_text(text))
            elif kind == "{":
                found.append(_output(_whole(_tokens(text))))
            else:
                tokens = _tokens(text)
                word = tokens[0] if tokens else ""
                if word in ends:
                    return _joined(found), tokens
                if word == "for":
                    found.append(self._for(tokens))
                elif word == "if":
                    found.append(self._if(tokens))
                else:
                    raise _Outside
        if ends:
            raise _Outside
        return _joined(found), None

    def _for(self, tokens: list[str]) -> Render:
        if len(tokens) < 4 or tokens[2] != "in" or not _is_name(tokens[1]) or tokens[1] == "loop":
            raise _Outside
        name, values = tokens[1], _whole(tokens[3:])
        body, _ = self._block(("endfor",))

        def render(scope: Scope) -> Iterator[str]:
            items = values(scope)
            if not isinstance(items, list | tuple):
                raise Unsure
            for at, item in enumerate(items):
                yield from body({**scope, name: item, "loop": _Loop(at, len(items))})

        return render

    def _if(self, tokens: list[str]) -> Render:
        test = _whole(tokens[1:])
        then, end = self._block(("elif", "else", "endif"))
        assert end is not None
        if end[0] == "elif":
            other = self._if(end)
        elif end != ["else"]:
            other = _text("")
        else:
            other, _ = self._block(("endif",))
        return lambda scope: (then if test(scope) else other)(scope)


def _parts(source: str) -> Iterator[tuple[str, str]]:
    """Text, and the tags between: `{` for what is written, `%` for statements."""
    at, stripped = 0, False
    for tag in _TAG.finditer(source):
        kind, before, inner, after = tag.groups()
        if source[tag.end() - 2] != ("%" if kind == "%" else "}"):
            raise _Outside
        yield "text", _between(source[at : tag.start()], stripped, bool(before), kind == "%")
        yield kind, inner
        at, stripped = tag.end(), bool(after)
        if kind == "%" and not after and source.startswith("\n", at):
            at += 1
    yield "text", _between(source[at:], stripped, False, False)


def _between(text: str, stripped: bool, strips: bool, statement: bool) -> str:
    if "{%" in text or "{{" in text:
        raise _Outside
    if stripped:
        text = text.lstrip()
    if strips:
        return text.rstrip()
    if statement and text[text.rfind("\n") + 1 :].isspace():
        raise _Outside  # lstrip_blocks, which depends on whether a line begins before it
    return text


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.strip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _Outside
        found.append(token[0].lstrip())
        at = token.end()
    return found


def _is_name(token: str) -> bool:
    return token[:1].isalpha() and token not in _WORDS


def _whole(tokens: list[str]) -> Value:
    parser = _Parser(tokens)
    value = parser.either()
    if parser.tokens:
        raise _Outside
    return value


class _Parser:
    """Of an expression, by recursive descent; what it understands becomes a function of the names in scope."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        """Still to be read, the next one last."""

    def either(self) -> Value:
        left = self.both()
        while self._takes("or"):
            left = _or(left, self.both())
        return left

    def both(self) -> Value:
        left = self.negated()
        while self._takes("and"):
            left = _and(left, self.negated())
        return left

    def negated(self) -> Value:
        if self._takes("not"):
            value = self.negated()
            return lambda scope: not value(scope)
        return self.compared()

    def compared(self) -> Value:
        left = self.sum()
        if self._takes("=="):
            right = self.sum()
            return lambda scope: left(scope) == right(scope)
        if self._takes("!="):
            other = self.sum()
            return lambda scope: left(scope) != other(scope)
        return left

    def sum(self) -> Value:
        left = self.member()
        while self._takes("+"):
            left = _plus(left, self.member())
        return left

    def member(self) -> Value:
        value = self.atom()
        while True:
            if self._takes("["):
                value = _item(value, _key(self._next()))
                self._expect("]")
            elif self._takes("."):
                name = self._next()
                if not name[:1].isalpha():
                    raise _Outside
                value = _attribute(value, name)
            else:
                return value

    def atom(self) -> Value:
        token = self._next()
        if token == "(":
            value = self.either()
            self._expect(")")
            return value
        if token[0] in "'\"":
            text = _literal(token)
            return lambda scope: text
        if not _is_name(token):
            raise _Outside
        return lambda scope: _named(scope, token)

    def _next(self) -> str:
        if not self.tokens:
            raise _Outside
        return self.tokens.pop()

    def _takes(self, token: str) -> bool:
        if self.tokens and self.tokens[-1] == token:
            self.tokens.pop()
            return True
        return False

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise _Outside


def _literal(token: str) -> str:
    return token[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape") if "\\" in token else token[1:-1]


def _key(token: str) -> str | int:
    if token[0] in "'\"":
        return _literal(token)
    if token.isdigit() and (token == "0" or token[0] != "0"):
        return int(token)
    raise _Outside


def _named(scope: Scope, name: str) -> Any:
    if name not in scope:
        raise Unsure
    return scope[name]


def _or(left: Value, right: Value) -> Value:
    return lambda scope: left(scope) or right(scope)


def _and(left: Value, right: Value) -> Value:
    return lambda scope: left(scope) and right(scope)


def _plus(left: Value, right: Value) -> Value:
    def total(scope: Scope) -> str:
        return _text_of(left(scope)) + _text_of(right(scope))

    return total


def _text_of(value: Any) -> str:
    if type(value) is not str:
        raise Unsure
    return value


def _item(value: Value, key: str | int) -> Value:
    kind: type[Any] = dict if isinstance(key, str) else list

    def found(scope: Scope) -> Any:
        holder: Any = value(scope)
        if type(holder) is not kind:
            raise Unsure
        try:
            return holder[key]
        except LookupError:
            raise Unsure from None

    return found


def _attribute(value: Value, name: str) -> Value:
    def found(scope: Scope) -> Any:
        holder = value(scope)
        if type(holder) is dict and name in holder and name not in _MEMBERS:
            return holder[name]
        if type(holder) is _Loop and name in _Loop.__slots__:
            return getattr(holder, name)
        raise Unsure

    return found


def _text(text: str) -> Render:
    return lambda scope: (text,)


def _output(value: Value) -> Render:
    return lambda scope: (_text_of(value(scope)),)


def _joined(renders: list[Render]) -> Render:
    def render(scope: Scope) -> Iterator[str]:
        for each in renders:
            yield from each(scope)

    return render
