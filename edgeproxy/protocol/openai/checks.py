"""Typed values out of parsed JSON: the value, or a 400 that names the field. Never quotes what the client sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from edgeproxy.protocol.openai.errors import ApiError, invalid

Json = Mapping[str, Any]
Number = TypeVar("Number", int, float)
INT32 = 2**31 - 1
INT64 = 2**63 - 1


def required(present: Json, name: str, where: str = "") -> Any:
    value = present.get(name)
    if value is None:
        raise invalid(f"'{where}{name}' is missing.", where + name, "missing_required_parameter")
    return value


def text(value: Any, where: str, most: int) -> str:
    if not isinstance(value, str):
        raise wrong_type(where, "a string", value)
    if not value:
        raise invalid(f"'{where}' is empty.", where, "empty_string")
    if len(value) > most:
        raise invalid(f"'{where}' is longer than {most} characters.", where, "string_above_max_length")
    return value


def boolean(present: Json, name: str, where: str = "") -> bool:
    value = present.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(where + name, "true or false", value)
    return value


def integer(present: Json, name: str, least: int, most: int) -> int | None:
    value = present.get(name)
    return None if value is None else integer_of(value, name, least, most)


def listed(value: Any, where: str, wanted: str) -> list[Any]:
    """One that is not empty."""
    if not isinstance(value, list):
        raise wrong_type(where, wanted, value)
    if not value:
        raise invalid(f"'{where}' is empty: send at least one, or leave it out.", where, "empty_array")
    return value


def integer_of(value: Any, where: str, least: int, most: int) -> int:
    found = whole(value)
    if found is None and isinstance(value, float) and value.is_integer():
        found = int(value)  # beyond 2^53 JSON is read as a double, which is out of any bounds
    if found is None:
        raise wrong_type(where, "an integer", value)
    return _within(found, where, least, most, "integer")


def whole(value: Any) -> int | None:
    """The integer that a JSON number is, as JSON Schema sees it: 1.0 is one too. None for anything else."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(present: Json, name: str, least: float, most: float, default: float) -> float:
    value = present.get(name)
    return default if value is None else number_of(value, name, least, most)


def number_of(value: Any, where: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong_type(where, "a number", value)
    return float(_within(value, where, least, most, "decimal"))


def _within(value: Number, name: str, least: float, most: float, kind: str) -> Number:
    if value < least:
        raise invalid(f"'{name}' must be at least {least}.", name, f"{kind}_below_min_value")
    if value > most:
        raise invalid(f"'{name}' must be at most {most}.", name, f"{kind}_above_max_value")
    return value


def wrong_type(where: str, wanted: str, value: Any) -> ApiError:
    return invalid(f"'{where}' must be {wanted}, not {kind_of(value)}.", where, "invalid_type")


def kind_of(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
    }
    return names.get(type(value), "null")
