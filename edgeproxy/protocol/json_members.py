"""The members of a large JSON object, found and checked a piece at a time (RFC 8259).

Nothing is made of what is read: what comes out is where each value stands. Strict where readers differ, so that all of
them find the same: UTF-8 without a byte order mark, whole surrogate pairs, no NaN, no control characters in strings, no
trailing commas. The grammar is in the patterns, which take in one go as much as they find of what is not nested deeply;
the stack is here.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import msgspec

STEP = 2**14
"""Bytes that are looked at in one piece, about: a millisecond or less."""
MAX_DEPTH = 512
MAX_ELEMENTS = 2**17
"""Lists and objects, and values that no pattern takes in one go. A parser makes something of each, wherever it runs:
millions of them hold up the node's event loop for a second. What is read at once (256 KiB) cannot have more."""
MAX_NAMES = 2**18
"""Of members, wherever they stand. A parser looks each up, and keeps those that it has not seen."""
_LEAST_WINDOW = 2**9
_LONGEST_ESCAPE = 12
_FAST = 8
"""Steps in one piece where a decoder looks at them."""
_LEVELS = 3
"""Of brackets in what a pattern takes in one go."""

_SPACE = rb"[ \t\n\r]*+"
_PAIR = rb"[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?:' + _PAIR + rb"|(?![dD][89a-fA-F])[0-9a-fA-F]{4}))"
_CHARACTERS = rb'(?:[^"\\\x00-\x1f]++|' + _ESCAPE + rb")*+"
_STRING = rb'"' + _CHARACTERS + rb'"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_SCALAR = b"(?:" + _STRING + b"|" + _NUMBER + b"|true|false|null)"
_KEY = _STRING + _SPACE + b":" + _SPACE
_COMMA = _SPACE + b"," + _SPACE
_CLOSING = b'"]}'
_strings_out = functools.partial(re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"').sub, b"")


_decode_name = msgspec.json.Decoder(str).decode
_skip = msgspec.json.Decoder(msgspec.Raw).decode


class Malformed(ValueError):
    """What is wrong, and at which byte; never what stands there."""


class Member(NamedTuple):
    """Offsets: of the key's first byte, of the value's first, and behind its last."""

    key: int
    value: int
    end: int
    times: int
    """How often the name is there: this is the last."""


Keep = Callable[[str, int, int, int], None]
"""Told of a member: its name, and the offsets as of `Member`."""


class Grammar:
    """The patterns for objects of which some members are wanted. They take some milliseconds to compile."""

    def __init__(self, names: frozenset[str], step: int = STEP) -> None:
        self.names = names
        self.step = step
        value = _flat(_LEVELS)
        pair = _KEY + value + _COMMA
        wanted = b"|".join(re.escape(name.encode()) for name in sorted(names))
        other = rb'(?!"(?:[^"\\]*+\\|(?:' + wanted + rb')"))'
        self.space = re.compile(_SPACE)
        self.key = re.compile(b"(" + _STRING + b")" + _SPACE + b":" + _SPACE)
        self.characters = re.compile(_CHARACTERS)
        self.value = re.compile(value)
        self.items = re.compile(b"(?:" + value + _COMMA + b")*+")
        self.pairs = re.compile(b"(?:" + pair + b")*+")
        self.others = re.compile(b"(?:" + other + pair + b")*+")
        """Members whose names are not wanted, and have no escapes."""

    def members(self, body: bytes) -> Generator[None, None, dict[str, Member]]:
        """Those wanted that are there. Yields between two pieces. Raises Malformed."""
        found: dict[str, Member] = {}

        def keep(name: str, key: int, value: int, end: int) -> None:
            before = found.get(name)
            found[name] = Member(key, value, end, 1 if before is None else before.times + 1)

        yield from self.visit(body, keep)
        return found

    def visit(self, body: bytes, keep: Keep) -> Iterator[None]:
        """As `members`, and tells of each, as often as it is there, in the order in which they stand."""
        brackets, colons = yield from _surveyed(body, self.step * _FAST)
        counting = brackets > MAX_ELEMENTS or colons > MAX_NAMES
        yield from _Reading(self, body, keep, counting).run()


def _plain(chunk: bytes) -> bool:
    """Whether it may stand in a string. A decoder tells ten times as fast as the patterns do."""
    try:
        _skip(b'"%b"' % chunk)
    except msgspec.DecodeError:
        return False
    return True


def _flat(levels: int) -> bytes:
    """A value with at most so many levels of brackets."""
    if not levels:
        return _SCALAR
    inner = _flat(levels - 1) + _SPACE
    array = rb"\[" + _SPACE + b"(?:" + inner + rb"(?:," + _SPACE + rb"(?!\])|(?=\])))*+\]"
    members = rb"\{" + _SPACE + b"(?:" + _KEY + inner + rb"(?:," + _SPACE + rb"(?!\})|(?=\})))*+\}"
    return b"(?:" + _SCALAR + b"|" + array + b"|" + members + b")"


def _surveyed(body: bytes, step: int) -> Generator[None, None, tuple[int, int]]:
    """How many brackets open something, and colons; those within strings too. Raises Malformed where it is no UTF-8."""
    at = brackets = colons = 0
    while at < len(body):
        piece = body[at : at + step]
        brackets += piece.count(b"[") + piece.count(b"{")
        colons += piece.count(b":")
        if piece.isascii():
            at += len(piece)
        else:
            try:
                at += codecs.utf_8_decode(piece, "strict", at + step >= len(body))[1]
            except UnicodeDecodeError as error:
                found = f"the byte 0x{piece[error.start]:02x} at offset {at + error.start}"
                raise Malformed(f"{found} is no part of a UTF-8 character") from None
        yield
    return brackets, colons


def _end(pattern: re.Pattern[bytes], body: bytes, at: int, limit: int) -> int:
    """Where it ends that begins at `at`; there, where it is nothing."""
    found = pattern.match(body, at, limit)
    return at if found is None else found.end()


class _Reading:
    """Of one body. `_open` are the brackets that will close what it is within."""

    __slots__ = (
        "_at",
        "_body",
        "_counting",
        "_elements",
        "_fresh",
        "_grammar",
        "_keep",
        "_key",
        "_least",
        "_name",
        "_names",
        "_open",
        "_step",
        "_value",
        "_window",
    )

    def __init__(self, grammar: Grammar, body: bytes, keep: Keep, counting: bool) -> None:
        """`counting`: there may be too many lists, objects or names, so that those which patterns take count too."""
        self._grammar = grammar
        self._body = body
        self._keep = keep
        self._counting = counting
        self._elements = self._names = 0
        self._at = 0
        self._open: list[bytes] = []
        self._fresh = False
        """Nothing stands yet in what was opened last."""
        self._step = grammar.step
        self._least = self._window = min(_LEAST_WINDOW, grammar.step)
        self._name = ""
        self._key = self._value = 0
        """Of the member that is being read."""

    def run(self) -> Iterator[None]:
        if self._mark() != b"{":
            raise self._wrong("an object")
        self._enter(b"}")
        spent = 0
        while self._open:
            before, window = self._at, self._window
            self._skim()
            empty = self._fresh and self._mark() == self._open[-1]
            if empty or (yield from self._element()):
                self._close()
            if self._elements > MAX_ELEMENTS:
                raise Malformed(f"it has more than {MAX_ELEMENTS} lists and objects")
            if self._names > MAX_NAMES:
                raise Malformed(f"its objects have more than {MAX_NAMES} members")
            spent += self._at - before + window  # which may have been looked at in vain
            if spent >= self._step:
                spent = 0
                yield
        if self._mark():
            raise self._wrong("nothing more")

    def _mark(self) -> bytes:
        """The next byte that is not blank; none at the end."""
        limit = self._at + self._step
        end = _end(self._grammar.space, self._body, self._at, limit)
        if end == limit:
            raise Malformed(f"there are more than {self._step} blanks at byte {self._at}")
        self._at = end
        return self._body[end : end + 1]

    def _enter(self, closing: bytes) -> None:
        if len(self._open) == MAX_DEPTH:
            raise Malformed(f"it is nested more than {MAX_DEPTH} levels deep")
        self._elements += 1
        self._open.append(closing)
        self._fresh = True
        self._at += 1

    def _skim(self) -> None:
        """Over values that are not nested deeply, and have others behind them."""
        self._mark()
        if self._open[-1] == b"]":
            pattern = self._grammar.items
        else:
            pattern = self._grammar.others if len(self._open) == 1 else self._grammar.pairs
        before, window = self._at, self._window
        end = _end(pattern, self._body, before, before + window)
        if end == before:
            self._window = self._least
            return
        if end - before > window // 2:
            self._window = min(2 * window, self._step)
        self._elements += self._taken(end)
        self._at, self._fresh = end, False

    def _taken(self, end: int) -> int:
        """The lists and objects from here up to `end`: whole values, as patterns have found. 0 where few are there.
        Counts the names, too."""
        if not self._counting:
            return 0
        text = _strings_out(self._body[self._at : end])
        self._names += text.count(b":")
        return text.count(b"[") + text.count(b"{")

    def _element(self) -> Generator[None, None, bool]:
        """True where it has ended, False where it was opened."""
        depth = len(self._open)
        if self._open[-1] == b"}":
            self._read_key(depth)
        mark = self._mark()
        if depth == 1:
            self._value = self._at
        end = self._flat_end()
        if end:
            self._elements += self._taken(end) or 1
            self._at = end
        elif mark == b'"':
            self._elements += 1
            yield from self._string()
        elif mark == b"[" or mark == b"{":
            self._enter(b"]" if mark == b"[" else b"}")
            return False
        else:
            raise self._wrong("a value")
        if depth == 1:
            self._end_member()
        return True

    def _read_key(self, depth: int) -> None:
        self._mark()
        found = self._grammar.key.match(self._body, self._at, self._at + self._step)
        if found is None:
            raise self._wrong("a name in quotes and a colon")
        self._names += 1
        if depth == 1:
            self._key = self._at
            self._name = _decode_name(found[1])
        self._at = found.end()

    def _flat_end(self) -> int:
        """Of the value that begins here; 0 where it is longer or deeper than is taken in one go."""
        window = self._window
        while True:
            limit = self._at + window
            end = _end(self._grammar.value, self._body, self._at, limit)
            if end == self._at:
                return 0
            if end < limit or self._body[limit - 1] in _CLOSING or limit >= len(self._body):
                return end
            if window >= self._step:
                raise Malformed(f"the number at byte {self._at} is too long")
            window *= 2

    def _string(self) -> Iterator[None]:
        """One that may be as long as the body."""
        self._at += 1
        while True:
            chunk = self._chunk(self._at + self._step * _FAST)
            if len(chunk) > _LONGEST_ESCAPE and _plain(chunk):
                self._at += len(chunk)
                if self._body[self._at : self._at + 1] != b'"':
                    yield
                    continue
            limit = self._at + self._step
            self._at = end = _end(self._grammar.characters, self._body, self._at, limit)
            if self._body[end : end + 1] == b'"':
                self._at += 1
                return
            if not limit - _LONGEST_ESCAPE < end <= limit < len(self._body):
                raise self._wrong("the rest of a string: no control character, no half of a surrogate pair")
            yield

    def _chunk(self, limit: int) -> bytes:
        """Of a string: up to its end, or so far that hardly an escape is cut."""
        chunk = masked = self._body[self._at : limit]
        if b"\\" in chunk:
            masked = chunk.replace(b"\\\\", b"xx").replace(b'\\"', b"xx")
        quote = masked.find(b'"')
        if quote >= 0:
            return chunk[:quote]
        cut = masked.find(b"\\", max(len(chunk) - _LONGEST_ESCAPE, 0))
        return chunk if cut < 0 else chunk[:cut]

    def _close(self) -> None:
        """What ends with a value: the lists and objects that it is the last of."""
        self._fresh = False
        while self._open:
            mark = self._mark()
            if mark == b",":
                self._at += 1
                return
            if mark != self._open[-1]:
                raise self._wrong(f"',' or '{self._open[-1].decode()}'")
            self._at += 1
            self._open.pop()
            if len(self._open) == 1:
                self._end_member()

    def _end_member(self) -> None:
        if self._name in self._grammar.names:
            self._keep(self._name, self._key, self._value, self._at)

    def _wrong(self, wanted: str) -> Malformed:
        if self._at >= len(self._body):
            return Malformed(f"it ends at byte {self._at}, before {wanted}")
        return Malformed(f"at byte {self._at} there should be {wanted}")
