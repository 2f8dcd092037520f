"""A JSON schema in numbers that llguidance follows exactly: bounds it would miss are narrowed, the rest is refused.

It reads numbers as doubles, not always the nearest, writes bounds as patterns of digits and counts multiples in 32
bits. So every bound becomes one within what was asked for, of so few digits that it is read as it is written; what
must be met exactly and cannot be is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import gcd
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from edgeproxy.protocol.openai.checks import Json

LARGEST: Final = 2**53 - 1
"""Beyond it whole numbers are not exact in doubles (RFC 8259, section 6)."""
MAX_DECIMALS: Final = 22
"""10^22 is the largest power of ten that is exact in a double, so that a division by it is rounded once."""
_DIGITS: Final = 15
"""Of a decimal that is the same again when it was read as a double and written."""
_MULTIPLES: Final = 2**32

_NAMED: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose members have the client's own names."""
_VALUES: Final = frozenset({"const", "enum"})
_SAID: Final = frozenset({"default", "examples"})
"""Values too, that allow and forbid nothing."""
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_DIALECT: Final = "x-guidance"
"""Options of llguidance, which would change what a schema means."""
_JOINING: Final = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


class _Side(NamedTuple):
    inclusive: str
    exclusive: str
    rounding: str
    inwards: int


_LOWER: Final = _Side("minimum", "exclusiveMinimum", ROUND_CEILING, 1)
_UPPER: Final = _Side("maximum", "exclusiveMaximum", ROUND_FLOOR, -1)


def exact(schema: Json) -> Json:
    """The schema, or one that allows no more. Raises ValueError that names the keyword and says why."""
    found: Json = _narrowed({name: item for name, item in schema.items() if name != _DIALECT}, "#")
    _check_joined_multiples(schema)
    return found


def references(schema: Json) -> list[Any]:
    """What its `$ref`s name."""
    return [value for name, value in _members(schema) if name == "$ref" and not isinstance(value, dict)]


def _narrowed(value: Any, where: str) -> Any:
    """Looks into unknown keywords too: they may hold what `$ref` names."""
    if isinstance(value, list):
        return [_narrowed(item, f"{where}/{index}") for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    found = {name: _member(name, item, f"{where}/{name}") for name, item in value.items()}
    if found.get("uniqueItems") is False:  # asks for nothing, and llguidance does not know it
        del found["uniqueItems"]
    for side in (_LOWER, _UPPER):
        _bound(found, side, where)
    return found


def _member(name: str, value: Any, where: str) -> Any:
    if name in _NAMED and isinstance(value, dict):
        return {own: _narrowed(item, f"{where}/{own}") for own, item in value.items()}
    if name in _VALUES:
        return _values(value, where)
    if name in _COUNTS:
        return _count(value, where)
    if name == "multipleOf":
        _multiple(value, where)
    elif name == "$ref":
        _check_reference(value, where)
    elif name not in _SAID:
        return _narrowed(value, where)
    return value


# Bounds.


class _Bound(NamedTuple):
    value: Decimal
    excluded: bool


def _bound(schema: dict[str, Any], side: _Side, where: str) -> None:
    """One bound in the place of what the schema says of this side."""
    bounds: list[_Bound] = []
    excluded = schema.pop(side.exclusive, False)
    if not isinstance(excluded, bool):  # true is of the drafts before 6, and speaks of the inclusive one
        bounds.append(_inside(excluded, side, f"{where}/{side.exclusive}", excluded=True))
        excluded = False
    if side.inclusive in schema:
        bounds.append(_inside(schema.pop(side.inclusive), side, f"{where}/{side.inclusive}", excluded=excluded))
    if bounds:
        value, excluded = max(bounds, key=lambda bound: (bound.value * side.inwards, bound.excluded))
        schema[side.exclusive if excluded else side.inclusive] = _number(value)


def _inside(value: Any, side: _Side, where: str, *, excluded: bool) -> _Bound:
    """The bound itself, or the next one within it, that is read as it is written.

    One that is excluded is missed where zero lies outside of it. Where not, it is left as it is: an inclusive one
    beside it, of many nines, would let nobody say 0.9 without more digits.
    """
    asked = _decimal(value, where)
    if asked * side.inwards > LARGEST:
        raise ValueError(f"{where} allows only numbers beyond {LARGEST * side.inwards}, which are not exact as doubles")
    if asked * side.inwards < -LARGEST:
        return _Bound(Decimal(-LARGEST * side.inwards), excluded=False)
    missed = excluded and asked * side.inwards >= 0
    if not missed and _is_exact(asked):
        return _Bound(asked, excluded)
    last = max(-MAX_DECIMALS, min(0, asked.adjusted() + 1 - _DIGITS)) if asked else -MAX_DECIMALS
    unit = Decimal(1).scaleb(last)
    found = asked.quantize(unit, side.rounding)
    return _Bound(found + unit * side.inwards if excluded and found == asked else found, excluded=False)


def _is_exact(value: Decimal) -> bool:
    digits, decimals = _parts(value)
    return digits <= LARGEST and decimals <= MAX_DECIMALS


def _parts(value: Decimal) -> tuple[int, int]:
    """Without its sign: a whole number, and over which power of ten it is the value."""
    _, digits, exponent = value.normalize().as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))) * 10 ** max(0, exponent), max(0, -exponent)


def _decimal(value: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} must be a number")
    return Decimal(repr(value))


def _number(value: Decimal) -> int | float:
    """Without a point where none is needed: digits behind it count when it is read."""
    return int(value) if value == value.to_integral_value() else float(value)


# What must be met exactly.


def _values(value: Any, where: str) -> Any:
    if isinstance(value, list):
        return [_values(item, f"{where}/{index}") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: _values(item, f"{where}/{name}") for name, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    asked = _decimal(value, where)
    if not _is_exact(asked):
        raise ValueError(
            f"{where} is a number that is not exact as a double: whole numbers go up to {LARGEST}, others to {_DIGITS} "
            f"digits, at most {MAX_DECIMALS} of them behind the point; a string holds any"
        )
    return _number(asked)


def _multiple(value: Any, where: str) -> tuple[int, int]:
    """A whole number, and over which power of ten it is the multiple."""
    asked = _decimal(value, where)
    if asked <= 0:
        raise ValueError(f"{where} must be above 0")
    scaled, decimals = float(value), 0
    while scaled % 1:  # as llguidance does it: some decimals are lost on the way
        scaled, decimals = scaled * 10, decimals + 1
    if scaled >= _MULTIPLES or Decimal(scaled).scaleb(-decimals) != asked:
        raise ValueError(f"{where} has too many digits to be followed exactly")
    return _parts(asked)


def _check_joined_multiples(schema: Any) -> None:
    """Where schemas hold together, llguidance multiplies what they ask for, and says nothing when that overflows."""
    members = list(_members(schema))
    if not any(name in _JOINING for name, _ in members):
        return
    joined = None
    for name, value in members:
        if name != "multipleOf" or isinstance(value, dict | bool):
            continue
        digits, decimals = _multiple(value, "multipleOf")
        if joined is None:
            joined = digits, decimals
            continue
        most = max(decimals, joined[1])
        one, other = joined[0] * 10 ** (most - joined[1]), digits * 10 ** (most - decimals)
        if one * other >= _MULTIPLES:
            raise ValueError("several 'multipleOf' that may hold together have a product that is too large")
        joined = one * other // gcd(one, other), most


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    for item in value if isinstance(value, list) else ():
        yield from _members(item)
    for name, item in value.items() if isinstance(value, dict) else ():
        yield name, item
        yield from _members(item)


# What need only be read.


def _count(value: Any, where: str) -> Any:
    """As a whole number, which JSON Schema sees in 1.0 too."""
    asked = _decimal(value, where)
    if asked < 0 or asked != asked.to_integral_value():
        raise ValueError(f"{where} must be a whole number of at least 0")
    return min(int(asked), LARGEST)


def _check_reference(value: Any, where: str) -> None:
    """What is a value is no schema, and was not looked into."""
    named = False
    for part in unquote(value).split("/") if isinstance(value, str) else ():
        if not named and part in _VALUES | _SAID:
            raise ValueError(f"{where} names what is a value and no schema")
        named = not named and part in _NAMED
