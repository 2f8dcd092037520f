"""Whether a JSON schema describes any value that ends: one that requires itself within itself describes none. Pure."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from edgeproxy.protocol.openai.checks import Json
from engine.text.schema import references

ENDLESS: Final = "every value of it would hold another of the same, without end"


def check_ends(schema: Json) -> None:
    """Raises ValueError where a model that follows it could never stop. What `$ref` cannot find is not judged here."""
    targets = {name: _target(schema, name) for name in references(schema) if isinstance(name, str)}
    open_ = set(targets)
    """References that are not known to have a value that ends: the least fixed point of `_ends`."""
    while ending := [name for name in open_ if _ends(targets[name], open_)]:
        open_.difference_update(ending)
    if not _ends(schema, open_):
        raise ValueError(ENDLESS)


def _ends(schema: Any, open_: set[str]) -> bool:
    if not isinstance(schema, dict):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference in open_:
        return False
    if not all(_ends(part, open_) for part in _list(schema, "allOf")):
        return False
    for name in ("anyOf", "oneOf"):
        if (parts := _list(schema, name)) and not any(_ends(part, open_) for part in parts):
            return False
    if schema.get("type") == "object":
        members = schema.get("properties")
        required = [name for name in _list(schema, "required") if isinstance(name, str)]
        return not isinstance(members, dict) or all(_ends(members.get(name), open_) for name in required)
    if schema.get("type") == "array" and schema.get("minItems") and not _list(schema, "prefixItems"):
        return _ends(schema.get("items"), open_)
    return True


def _list(schema: Json, name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _target(schema: Json, name: str) -> Any:
    """What a JSON pointer (RFC 6901), an anchor or the name of a part leads to, None for nothing."""
    if name != "#" and not name.startswith("#/"):
        return _called(schema, "$anchor", name[1:]) if name.startswith("#") else _called(schema, "$id", name)
    found: Any = schema
    for part in unquote(name.removeprefix("#")).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(part)] if part.isdecimal() and int(part) < len(found) else None
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


def _called(value: Any, keyword: str, name: str) -> Json | None:
    """The first schema of this name."""
    if isinstance(value, dict) and value.get(keyword) == name:
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for part in parts if (found := _called(part, keyword, name)) is not None), None)
