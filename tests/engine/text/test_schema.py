"""Numbers: what a schema's grammar lets through, the schema allows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.formats import Format
from engine.text.grammar import of_format
from engine.text.schema import LARGEST, exact

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COMPARES: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "const": lambda value, bound: value == bound,
    "enum": lambda value, bounds: value in bounds,
}
_STRICT = ("exclusiveMinimum", "exclusiveMaximum")
"""Whoever compares doubles misses numbers that are closer to these than doubles are to each other."""


class Bytes:
    """A vocabulary of bytes, so that any text has one spelling."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


VOCABULARY = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()))


def matcher(schema: Any) -> llguidance.LLMatcher:
    """Raises ValueError."""
    grammar = of_format(Format("json", json.dumps(schema), "x"))
    found = llguidance.LLMatcher(VOCABULARY, grammar.text, log_level=0)
    if found.is_error():
        raise ValueError(found.get_error())
    return found


def accepts(grammar: llguidance.LLMatcher, text: str) -> bool:
    copy, said = grammar.deep_copy(), list(text.encode())
    return copy.validate_tokens(said) == len(said) and copy.consume_tokens(said) and copy.is_accepting()


def allows(schema: Any, text: str) -> bool:
    """The oracle: of a text that is a number, by the letter of JSON Schema."""
    decimal, double = Fraction(text), float(text)
    if "integer" in schema.get("type", ()) and decimal.denominator > 1:
        return False
    if "multipleOf" in schema and (decimal / fraction(schema["multipleOf"])).denominator > 1:
        return False
    return (
        all(_COMPARES[name](decimal, fraction(schema[name])) for name in _COMPARES if name in schema)
        and all(_COMPARES[name](double, schema[name]) for name in _COMPARES if name in schema and name not in _STRICT)
        and all(allows(part, text) for part in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(allows(part, text) for part in schema["anyOf"]))
    )


def fraction(value: Any) -> Any:
    return [fraction(item) for item in value] if isinstance(value, list) else Fraction(repr(value))


def numbers_in(schema: Any) -> Iterator[float]:
    for item in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        if isinstance(item, int | float):
            yield item
        yield from numbers_in(item)


def candidates(schema: Any) -> set[str]:
    """Texts at, around and just beside every number of the schema, and the odd ones."""
    found = {"0", "-0", "0.0", "1", "-1", "0.5", "1e0", "1E2", "-7.0", "12", "9007199254740993", "0." + "9" * 25}
    for number in numbers_in(schema):
        decimal = Decimal(repr(number))
        near = {decimal + sign * Decimal(1).scaleb(-places) for places in (0, 1, 3, 15, 17, 24) for sign in (-1, 0, 1)}
        near |= {Decimal(repr(math.nextafter(float(number), way))) for way in (-math.inf, math.inf)}
        texts = {format(one, "f") for one in near}
        found |= (
            texts | {text.split(".")[0] for text in texts} | {f"{format(decimal, 'f')}{end}" for end in (".0", 0, 1)}
        )
    return {text for text in found if not text.endswith(".")}


SIZES = st.one_of(
    st.integers(-20, 2000),
    st.integers(-200, 2000).map(lambda number: number / 100),
    st.floats(-10, 10),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 0.001, 1e-22, 1e-30, -1e-7, 5e-324, 1e15, 1e22, -1e300]),
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1]),
)
STEPS = st.sampled_from([1, 2, 3, 7, 10, 0.1, 0.01, 0.5, 0.25, 1.5, 0.07, 1e-9, 0, -1, 65537, 1e-23, 2**40])
PLAIN = dict.fromkeys(BOUNDS, SIZES) | {"multipleOf": STEPS}
PART = st.fixed_dictionaries({}, optional=PLAIN | {"const": SIZES})
NUMERIC = st.fixed_dictionaries(
    {"type": st.sampled_from(["number", "integer", ["integer", "null"]])},
    optional=PLAIN
    | {
        "const": SIZES,
        "enum": st.lists(SIZES, min_size=1, max_size=3),
        "allOf": st.lists(PART, min_size=1, max_size=2),
        "anyOf": st.lists(PART, min_size=1, max_size=2),
    },
)


def lets_through_what_it_allows(schema: Any) -> None:
    try:
        grammar = matcher(schema)
    except ValueError as error:
        assert "Some(" not in str(error)
        return
    for text in candidates(schema):
        assert not accepts(grammar, text) or allows(schema, text), (schema, text)


@settings(max_examples=60)
@given(schema=NUMERIC)
def test_every_number_that_is_let_through_is_allowed(schema: Any) -> None:
    lets_through_what_it_allows(schema)


@pytest.mark.long
@settings(max_examples=5000)
@given(schema=NUMERIC)
def test_every_number_of_thousands_of_schemas_is_allowed(schema: Any) -> None:
    lets_through_what_it_allows(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 5, "exclusiveMaximum": 5.5},
        {"minimum": -5.5, "exclusiveMaximum": -5},
        {"exclusiveMaximum": 0, "minimum": -0.5},
        {"minimum": 0, "exclusiveMinimum": True, "maximum": 0.9},
        {"exclusiveMaximum": 0.3},
        {"maximum": 0.001},
        {"exclusiveMaximum": 0.001},
        {"minimum": 0.30000000000000004},
        {"maximum": 2**64 - 1, "minimum": -(2**63)},
        {"type": "integer", "maximum": 2**53 + 1},
        {"type": "integer", "exclusiveMinimum": 1.5, "exclusiveMaximum": 4},
    ],
)
def test_bounds_that_would_be_missed_hold(schema: Any) -> None:
    narrowed = matcher({"type": "number", **schema})
    schema = {name: bound for name, bound in schema.items() if bound is not True}
    let_through = {text for text in candidates(schema) if accepts(narrowed, text)}
    assert let_through
    assert all(allows(schema, text) for text in let_through)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 120}, ["1", "41", "120"]),
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.25", "1", "1.0"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.01", "3", "12.5"]),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.5", "0.9", "0.999", "0.001"]),
        ({"type": "number", "minimum": -1, "exclusiveMaximum": 0.5}, ["0.4", "-0.9", "-1"]),
        ({"type": "number", "minimum": 3.141592653589793, "maximum": 4}, ["3.141592653589793", "3.5"]),
        ({"type": "integer", "maximum": 2**63 - 1}, ["0", "-12", "9007199254740991"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0", "19.99", "5"]),
        ({"type": "number"}, ["6.02e23", "-1.5E-7", "0"]),
        ({"const": 0.1}, ["0.1"]),
        ({"enum": [2.5, -3, LARGEST]}, ["2.5", "-3", str(LARGEST)]),
    ],
)
def test_what_is_asked_for_in_ordinary_numbers_can_be_said(schema: Any, texts: list[str]) -> None:
    grammar = matcher(schema)
    assert [text for text in texts if not accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"const": 2**53 + 1}, "#/const"),
        ({"enum": ["a", 2**63]}, "#/enum/1"),
        ({"const": {"a": [0.30000000000000004]}}, "#/const/a/0"),
        ({"properties": {"const": {"minimum": 2**60}}}, "#/properties/const/minimum"),
        ({"$defs": {"a": {"exclusiveMaximum": -1e300}}}, "#/$defs/a/exclusiveMaximum"),
        ({"items": [{"multipleOf": 0.07}]}, "#/items/0/multipleOf"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"maximum": "5"}, "#/maximum"),
        ({"minItems": 1.5}, "#/minItems"),
        ({"$ref": "#/%65num/0", "enum": [{"exclusiveMinimum": 0}]}, "#/$ref"),
        ({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}]}, "'multipleOf'"),
    ],
)
def test_what_cannot_be_met_is_refused_by_its_place(schema: Any, where: str) -> None:
    with pytest.raises(ValueError, match=re.escape(where)):
        exact(schema)


def test_nothing_but_numbers_is_touched() -> None:
    schema = {
        "type": "object",
        "title": "minimum",
        "properties": {"minimum": {"type": "string", "default": {"minimum": 2**60}}, "enum": {"type": "null"}},
        "required": ["minimum"],
        "components": {"a": {"items": False, "minItems": 2.0}},
        "x-guidance": {"coerce_one_of": True},
    }
    found = exact(schema)
    assert found == {name: item for name, item in schema.items() if name != "x-guidance"}
    assert type(found["components"]["a"]["minItems"]) is int


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
LISTED = {"type": "array", "items": {"$ref": "#"}}
IN_DEFS = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {**NODE, "required": ["next"]},
        {"$anchor": "a", "type": "object", "properties": {"b": {"$ref": "#a"}}, "required": ["b"]},
        {**LISTED, "minItems": 1},
        {"anyOf": [{**NODE, "required": ["next"]}, {"$ref": "#/anyOf/0"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {**IN_DEFS, "$defs": {"a": {**IN_DEFS["$defs"]["a"], "required": ["b"]}}},  # type: ignore[index]
    ],
)
def test_a_value_that_could_not_end_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(ValueError, match="without end"):
        matcher(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (NODE, '{"next": {"next": {}}}'),
        (LISTED, "[[], [[]]]"),
        (IN_DEFS, '{"b": {}}'),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}, "[[null], null]"),
    ],
)
def test_a_value_may_hold_others_like_it(schema: Any, text: str) -> None:
    assert accepts(matcher(schema), text)


@pytest.mark.parametrize(("reference", "name"), [("#a", {"$anchor": "a"}), ("a", {"$id": "a"})])
@pytest.mark.parametrize("required", [[], ["b"]])
def test_what_is_named_by_an_anchor_or_an_id_is_followed(reference: str, name: Any, required: list[str]) -> None:
    part = {**name, "type": "boolean"}
    found = matcher(
        {"type": "object", "properties": {"b": {"$ref": reference}}, "required": required, "$defs": {"c": part}}
    )
    assert accepts(found, '{"b": true}')
    assert not accepts(found, '{"b": 1}')


def test_items_that_need_not_differ_are_any() -> None:
    assert accepts(matcher({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}), "[1, 1]")
    with pytest.raises(ValueError, match="uniqueItems"):
        matcher({"type": "array", "uniqueItems": True})
