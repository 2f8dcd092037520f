"""Why a grammar cannot be followed, in the client's words: llguidance speaks of its own parts and options. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from engine.text.recursion import ENDLESS

_ONE_OF: Final = (
    "'oneOf' is followed only where types, or constants of a required member, tell its alternatives apart: use 'anyOf'"
)
_A: Final = {"string": "a string", "array": "a list", "object": "an object"}
_TELLING: Final[tuple[tuple[str, Callable[[re.Match[str]], str]], ...]] = (
    (r"Unimplemented keys: \[(.*)\]", lambda found: f"not supported: {found[1].replace(chr(34), chr(39))}"),
    (r"oneOf constraints are not supported", lambda _: _ONE_OF),
    (r"NoExtensionBias", lambda _: ENDLESS),
    (r"circular references with sibling keys", lambda _: "a '$ref' to a schema around it must stand alone"),
    (r"recursion limit exceeded", lambda _: "it is nested too deeply"),
    (r"Pointer '(.*)' does not exist", lambda found: f"a '$ref' names '#{found[1]}', which is not there"),
    (r"Anchor '(.*)' does not exist", lambda found: f"a '$ref' names '#{found[1]}', which is not there"),
    (r"Resource '.*' is not present", lambda _: "a '$ref' names another document: put it into '$defs'"),
    (r"Failed to generate regex for (?:integer|float) range", lambda _: "no number lies within its bounds"),
    (r"range [\[(].*[\])] does not contain a multiple", lambda _: "no multiple of 'multipleOf' lies within its bounds"),
    (r"interval [\[(].*[\])] contains no integer", lambda _: "no whole number lies within its bounds"),
    (r"Expected (\w+) for '([\w$]+)' item, got", lambda found: f"'{found[2]}' holds what is not {_A[found[1]]}"),
    (r"Expected (string|array|object) for '([\w$]+)', got", lambda found: f"'{found[2]}' must be {_A[found[1]]}"),
    (r"(\$?\w+) must be a string, got", lambda found: f"'{found[1]}' must be a string"),
    (r"(\w+) must be an array$", lambda found: f"'{found[1]}' must be a list"),
    (r"Unsatisfiable schema: (.*)", lambda found: f"no value matches it: {found[1]}"),
)


def reason(error: str) -> str:
    """One line: the others draw the place in the grammar, which the client did not write in these words."""
    lines = [line.removeprefix("error: ") for line in error.strip().splitlines() if line.startswith("error: ")]
    told = (lines or error.strip().splitlines() or [""])[0].rstrip(".")
    for pattern, words in _TELLING:
        if found := re.search(pattern, told):
            return words(found)
    return told or "it cannot be compiled"
