"""One member of a JSON object set, in the client's own bytes: everything else stays as it was written, whatever a
parser would make of it (numbers out of its range, deep nesting)."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from edgeproxy.protocol.json_members import Grammar
from edgeproxy.protocol.openai.errors import invalid

_BLANKS = b" \t\n\r"

written = msgspec.json.encode
"""What `members` gives, as one body."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def members(body: bytes) -> dict[str, msgspec.Raw]:
    """Of an object that has been let in: each name with its value as it stands there, the last where there are several.

    Raises ApiError 400 where it is nested deeper than can be followed from here: how deep that is depends on what is
    under way, so that one of some hundreds of levels may have been read before.
    """
    try:
        return _decode(body)
    except RecursionError:
        raise invalid("The body is nested too deeply.", code="invalid_json") from None


def set_at_once(body: bytes, name: str, value: bytes) -> bytes:
    """`body`, an object, with `value` (JSON) as its only member of that name. Raises ApiError 400 as `members`."""
    return written(members(body) | {name: msgspec.Raw(value)})


def set_in_pieces(body: bytes, name: str, value: bytes, grammar: Grammar) -> Generator[None, None, bytes]:
    """As `set_at_once`; yields between pieces. `grammar` wants `name`. Raises Malformed."""
    edit = _Edit(body, name, value)
    yield from grammar.visit(body, edit.take)
    yield
    return edit.whole()


class _Edit:
    """The first member of the name is written anew, others of that name are left out: no reader finds the old value,
    and however many there are, what is written is hardly longer than the body."""

    __slots__ = ("_body", "_done", "_found", "_member", "_name", "_out", "_view")

    def __init__(self, body: bytes, name: str, value: bytes) -> None:
        self._body = body
        self._view = memoryview(body)
        self._name = name
        self._member = b"%b:%b" % (msgspec.json.encode(name), value)
        self._done = 0
        """What stands before it is in `_out`, as far as it stays."""
        self._found = False
        self._out = bytearray()

    def take(self, name: str, key: int, _: int, end: int) -> None:
        if name != self._name:
            return
        self._out += self._view[self._done : key]
        if self._found:
            self._drop_comma()
        else:
            self._out += self._member
        self._found, self._done = True, end

    def whole(self) -> bytes:
        if not self._found:
            self._add()
        return b"".join((self._out, self._view[self._done :]))

    def _drop_comma(self) -> None:
        while self._out[-1] in _BLANKS:
            self._out.pop()
        self._out.pop()

    def _add(self) -> None:
        """As the first member."""
        first = self._done = self._body.index(b"{") + 1
        while self._body[first] in _BLANKS:
            first += 1
        self._out += self._view[: self._done]
        self._out += self._member
        if self._body[first] != ord("}"):
            self._out += b","
