"""What form an answer must have: OpenAI's `response_format`, and the words of vLLM for what that cannot say."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import orjson

from edgeproxy.protocol.openai.checks import Json, boolean, listed, required, text, wrong_type
from edgeproxy.protocol.openai.errors import invalid

MAX_CHARS = 1 << 16
"""Of a schema as JSON, of a pattern or of a grammar."""
MAX_CHOICES = 256
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KINDS = ("json", "regex", "choice", "grammar")
GUIDED = tuple(f"guided_{kind}" for kind in _KINDS)
"""vLLM's older words for the members of `structured_outputs`."""


class Format(NamedTuple):
    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    """A schema or the choices as JSON; a pattern; a grammar in Lark's notation."""
    where: str
    """The field that asks for it."""


def format_of(present: Json) -> Format | None:
    """None where any text will do. Raises ApiError 400."""
    asked = [found for found in (_response_format(present.get("response_format")), *_extras(present)) if found]
    if len(asked) > 1:
        where = asked[1].where
        raise invalid(
            f"'{asked[0].where}' and '{where}' both say what form the answer has: send one of them.",
            where,
            "invalid_parameter_combination",
        )
    return asked[0] if asked else None


def _response_format(value: Any) -> Format | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("response_format", "an object", value)
    kind = required(value, "type", "response_format.")
    more = {name for name, item in value.items() if item is not None} - {"type"}
    if kind == "json_schema":
        more -= {"json_schema"}
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(
            "'response_format.type' must be text, json_object or json_schema.", "response_format.type", "invalid_value"
        )
    if more:
        where = f"response_format.{min(more)}"
        raise invalid(f"'{where}' is no field of this format: leave it out.", where, "unsupported_parameter")
    if kind == "text":
        return None
    if kind == "json_object":
        return Format("json", '{"type":"object"}', "response_format")
    return _json_schema(required(value, "json_schema", "response_format."))


def _json_schema(value: Any) -> Format:
    where = "response_format.json_schema"
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    name = text(required(value, "name", f"{where}."), f"{where}.name", 64)
    if not _NAME.fullmatch(name):
        raise invalid(f"'{where}.name' has other characters than A-Z a-z 0-9 _ -", f"{where}.name", "invalid_value")
    boolean(value, "strict", f"{where}.")  # the schema is followed in any case
    for field, item in value.items():
        if field not in ("name", "schema", "strict", "description") and item is not None:
            raise invalid(f"'{where}.{field}' is no field of it.", f"{where}.{field}", "unsupported_parameter")
    if value.get("description"):
        text(value["description"], f"{where}.description", MAX_CHARS)
    schema = value.get("schema")
    return _schema({"type": "object"} if schema is None else schema, f"{where}.schema")


def _schema(value: Any, where: str) -> Format:
    if isinstance(value, str):  # vLLM takes it as text, too
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise invalid(f"'{where}' is a string, but no JSON.", where, "invalid_value") from None
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    try:
        found = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise invalid(f"'{where}' is nested too deeply.", where, "invalid_value") from None
    return Format("json", _bounded(found, where), where)


def _extras(present: Json) -> list[Format]:
    found = [_extra(name.removeprefix("guided_"), present[name], name) for name in GUIDED if name in present]
    value = present.get("structured_outputs")
    if value is None:
        return found
    if not isinstance(value, dict):
        raise wrong_type("structured_outputs", "an object", value)
    members = {name: item for name, item in value.items() if item is not None}
    if len(members) != 1 or not members.keys() <= set(_KINDS):
        raise invalid(
            f"'structured_outputs' must have one of {', '.join(_KINDS)}.", "structured_outputs", "invalid_value"
        )
    return [*found, *(_extra(name, item, f"structured_outputs.{name}") for name, item in members.items())]


def _extra(kind: str, value: Any, where: str) -> Format:
    if kind == "json":
        return _schema(value, where)
    if kind == "choice":
        return _choice(value, where)
    return Format("regex" if kind == "regex" else "grammar", text(value, where, MAX_CHARS), where)


def _choice(value: Any, where: str) -> Format:
    value = listed(value, where, "a list of strings")
    if len(value) > MAX_CHOICES:
        raise invalid(f"'{where}' has more than {MAX_CHOICES} entries.", where, "array_above_max_length")
    choices = [text(item, f"{where}[{index}]", MAX_CHARS) for index, item in enumerate(value)]
    return Format("choice", _bounded(orjson.dumps(choices).decode(), where), where)


def _bounded(found: str, where: str) -> str:
    if len(found) > MAX_CHARS:
        raise invalid(f"'{where}' has more than {MAX_CHARS} characters as JSON.", where, "string_above_max_length")
    return found
