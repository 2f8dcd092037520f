"""Tool calls as grammars in llguidance's Lark: what an answer may be where calls are not left to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from edgeproxy.protocol.openai.checks import Json
from edgeproxy.protocol.openai.tools import Tool
from engine.text.recursion import check_ends
from engine.text.schema import exact, references
from engine.text.tools.formats import ToolFormat
from engine.text.tools.marks import HERMES_CLOSE as CLOSE
from engine.text.tools.marks import HERMES_OPEN as OPEN
from engine.text.tools.marks import MISTRAL_MARK as MARK

_TEXT: Final = r"/(.|\n)*/"
_NO_CALL: Final = r"/([^{\[ \n\r\t<](.|\n)*)?/"
"""Text that no parser takes for the beginning of a call."""


def calls(tools: Sequence[Tool], style: ToolFormat, *, parallel: bool, mark_id: int | None) -> str:
    """A grammar of one call or several, and nothing else. `mark_id`: of Mistral's control token, where it has one."""
    return f"start: calls\n{_calls(tools, style, parallel, mark_id)}"


def calls_or_text(
    tools: Sequence[Tool], style: ToolFormat, *, parallel: bool, mark_id: int | None, schema: Json | None = None
) -> str:
    """The same, or text; after text too, where a mark tells calls from it. `schema`: of the text, which is JSON."""
    rules = _calls(tools, style, parallel, mark_id)
    if schema is not None:
        return f"start: calls | answer\nanswer: {_json(exact(schema))}\n{rules}"
    if style.name == "hermes":
        more = '("\\n" call)*' if parallel else ""
        return (
            f"start: text | leads {_quoted(chr(10))} call_json {_quoted(chr(10) + CLOSE)} {more}\n"
            f"text: {_TEXT}\nleads[lazy]: /(.|\\n)*{OPEN}/\n{_call_rules(tools, style)}"
        )
    return f"start: calls | text\ntext: {_NO_CALL}\n{rules}"


def _calls(tools: Sequence[Tool], style: ToolFormat, parallel: bool, mark_id: int | None) -> str:
    more = {"hermes": '("\\n" call)*', "llama": '("; " call)*', "pythonic": '(", " call)*', "mistral": '(", " call)*'}
    several = f"call {more[style.name]}" if parallel else "call"
    if style.name == "pythonic":
        several = f'"[" {several} "]"'
    if style.name == "mistral":
        mark = _quoted(MARK) if mark_id is None else f"<[{mark_id}]>"
        several = f'{mark} "[" {several} "]"'
    return f"calls: {several}\n{_call_rules(tools, style)}"


def _call_rules(tools: Sequence[Tool], style: ToolFormat) -> str:
    if style.name == "pythonic":
        rules = [_pythonic(f"call_{index}", tool) for index, tool in enumerate(tools)]
        return f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}\n" + "".join(rules)
    key = "parameters" if style.name == "llama" else "arguments"
    names = " | ".join(f"call_{index}" for index in range(len(tools)))
    wrapped = (
        f"{_quoted(OPEN + chr(10))} call_json {_quoted(chr(10) + CLOSE)}" if style.name == "hermes" else "call_json"
    )
    heads = [_quoted(f'{{"name": {json.dumps(tool.name)}, "{key}": ') for tool in tools]
    rules = [
        f'call_{index}: {head} {_json(arguments_of(tool))} "}}"\n'
        for index, (head, tool) in enumerate(zip(heads, tools, strict=True))
    ]
    return f"call: {wrapped}\ncall_json: {names}\n{''.join(rules)}"


def _pythonic(rule: str, tool: Tool) -> str:
    """Its required arguments in their order, then any of the others in theirs, each a schema by itself."""
    schema = arguments_of(tool)
    if not all(str(name).startswith(("#/$defs/", "#/definitions/")) for name in references(schema)):
        raise ValueError("this model writes arguments one by one: a '$ref' must name what is in '$defs'")
    properties: dict[str, Any] = schema.get("properties") or {}
    needed = [name for name in schema.get("required", ()) if name in properties]
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    parts: list[str] = []
    for name in [*needed, *(name for name in properties if name not in needed)]:
        value = {**properties[name], **shared} if isinstance(properties[name], dict) else {}
        written = f"{_quoted((', ' if parts else '') + name + '=')} {_json(value)}"
        parts.append(written if name in needed or not needed else f"({written})?")
    return f"{rule}: {_quoted(tool.name + '(')} {' '.join(parts)} {_quoted(')')}\n"


def arguments_of(tool: Tool) -> Json:
    """Its schema, of an object in any case, and with no other members than it names, unless it asks for others itself:
    a small model that may make up names does little else. Raises ValueError where nobody could follow it exactly."""
    schema: Json = {**tool.parameters, "type": "object"}
    check_ends(schema)
    schema = exact(schema)
    return schema if "properties" not in schema else {"additionalProperties": False, **schema}


def _quoted(text: str) -> str:
    return json.dumps(text)


def _json(schema: Json) -> str:
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
