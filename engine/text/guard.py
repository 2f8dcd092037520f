"""Keeps what people wrote apart from what a chat template writes.

A template's control tokens are recognised by their names in the rendered text, so a name that stands in a message would
be taken for one: a user could end a turn and begin another in anybody's role. Before rendering, such names are broken
with a character that stands nowhere in the request; the encoder takes it out again once the control tokens are found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

MARKS: Final = ("\x7f", *map(chr, chain(range(0xFDD0, 0xFDF0), range(0xE000, 0xF900))))
"""DEL passes through `tojson` and is no white space; behind it what Unicode gives no meaning."""


class Guarded(NamedTuple):
    value: Any
    mark: str
    """What names were broken with; empty where there were none."""


class Guard:
    def __init__(self, names: Iterable[str]) -> None:
        """`names`: of the control tokens."""
        found = [name for name in names if len(name) > 1]
        longest_first = sorted(found, key=len, reverse=True)
        self._name = re.compile(f"(?s)(?=(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'}))(.)")
        self._heads = frozenset(name[:2] for name in found)
        self._beginnings = frozenset(name[:end] for name in found for end in range(1, len(name)))
        self._longest = max(map(len, found), default=0)

    def guarded(self, value: Any) -> Guarded:
        """The same JSON value with all names in its strings broken, also those that what follows could complete.

        Raises ValueError where every character that could break them stands in the value.
        """
        if not any(self._suspicious(text) for text in _texts(value)):
            return Guarded(value, "")
        mark = next((mark for mark in MARKS if not any(mark in text for text in _texts(value))), None)
        if mark is None:
            raise ValueError("the messages have every character that is of no meaning; take some out")
        return Guarded(self._mapped(value, mark), mark)

    def _suspicious(self, text: str) -> bool:
        return any(head in text for head in self._heads) or any(self._unfinished(text))

    def _unfinished(self, text: str) -> Iterator[int]:
        """Where a name begins that ends with the text, whatever white space a template may take off."""
        text = text.rstrip()
        for size in range(1, min(self._longest, len(text) + 1)):
            if text[-size:] in self._beginnings:
                yield len(text) - size + 1

    def _broken(self, text: str, mark: str) -> str:
        for at in self._unfinished(text):  # from the last on
            text = text[:at] + mark + text[at:]
        return self._name.sub(rf"\1{mark}", text)

    def _mapped(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._broken(value, mark)
        if isinstance(value, Mapping):
            return {self._broken(key, mark): self._mapped(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._mapped(item, mark) for item in value]
        return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
