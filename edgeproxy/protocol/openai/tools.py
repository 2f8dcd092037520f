"""Tools of a chat request: what the model may call, and whether it must. Never quotes what the client sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from edgeproxy.protocol.openai.checks import Json, boolean, listed, required, text, wrong_type
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import Ignored

MAX_TOOLS = 128
MAX_NAME = 64
MAX_DESCRIPTION = 1 << 14
MODES = ("none", "auto", "required")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MEMBERS = frozenset({"name", "description", "parameters", "strict"})
_NOTHING: Json = {"type": "object", "properties": {}, "additionalProperties": False}
"""Of a function without parameters."""


class Tool(NamedTuple):
    name: str
    parameters: Json
    """JSON schema of its arguments, an object."""
    strict: bool
    """Arguments must follow the schema also where the model need not call."""
    view: Json
    """As the client wrote it, for templates."""


class Tools(NamedTuple):
    """What of its tools an answer may use."""

    given: tuple[Tool, ...] = ()
    """All of the request: templates show them."""
    mode: Literal["none", "auto", "required"] = "none"
    names: frozenset[str] = frozenset()
    """That may be called."""
    parallel: bool = True
    """More than one call in an answer."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        return () if self.mode == "none" else tuple(tool for tool in self.given if tool.name in self.names)

    def where(self, tool: Tool) -> str:
        """The field of the schema of one of them."""
        index = next(index for index, given in enumerate(self.given) if given is tool)
        return f"tools[{index}].function.parameters"

    @property
    def enforced(self) -> bool:
        """Whether plain sampling cannot promise what was asked for."""
        usable = self.callable
        return self.mode == "required" or (bool(usable) and (not self.parallel or any(tool.strict for tool in usable)))


def tools_of(present: Json, ignored: Ignored) -> Tools:
    """Raises ApiError 400."""
    given = _given(present.get("tools"), ignored)
    parallel = present.get("parallel_tool_calls") is None or boolean(present, "parallel_tool_calls")
    choice = present.get("tool_choice")
    if not given:
        if choice not in (None, "none", "auto"):
            cause = "'tool_choice' asks for a call, but there are no tools: send some."
            raise invalid(cause, "tool_choice", "invalid_parameter_combination")
        return Tools(parallel=parallel)
    known = frozenset(tool.name for tool in given)
    if len(known) < len(given):
        raise invalid("'tools' has two functions of one name.", "tools", "invalid_value")
    if choice is None or choice in MODES:
        return Tools(given, choice or "auto", known, parallel)
    return _chosen(choice, given, known, parallel, ignored)


def _given(value: Any, ignored: Ignored) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("tools", "a list of tools", value)
    if len(value) > MAX_TOOLS:
        raise invalid(f"'tools' has more than {MAX_TOOLS} entries.", "tools", "array_above_max_length")
    return tuple(_tool(item, f"tools[{index}]", ignored) for index, item in enumerate(value))


def _tool(value: Any, where: str, ignored: Ignored) -> Tool:
    function = _function_of(value, where, ignored)
    inside = f"{where}.function."
    present = {name: item for name, item in function.items() if item is not None and name in _MEMBERS}
    ignored.add(inside + name for name, item in function.items() if item is not None and name not in _MEMBERS)
    if "description" in present and present["description"] != "":
        text(present["description"], inside + "description", MAX_DESCRIPTION)
    parameters = present.get("parameters", _NOTHING)
    if not isinstance(parameters, dict):
        raise wrong_type(inside + "parameters", "an object", parameters)
    if parameters.get("type", "object") != "object":
        raise invalid(f"'{inside}parameters' must be a schema of type object.", inside + "parameters", "invalid_value")
    return Tool(
        tool_name(present, inside),
        parameters,
        boolean(present, "strict", inside),
        {"type": "function", "function": {name: item for name, item in present.items() if name != "strict"}},
    )


def tool_name(present: Json, inside: str) -> str:
    name = text(required(present, "name", inside), f"{inside}name", MAX_NAME)
    if not _NAME.fullmatch(name):
        raise invalid(f"'{inside}name' has other characters than A-Z a-z 0-9 _ - .", f"{inside}name", "invalid_value")
    return name


def _function_of(value: Any, where: str, ignored: Ignored) -> Json:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    if required(value, "type", f"{where}.") != "function":
        raise invalid(f"'{where}.type' must be function.", f"{where}.type", "invalid_value")
    function = required(value, "function", f"{where}.")
    if not isinstance(function, dict):
        raise wrong_type(f"{where}.function", "an object", function)
    ignored.add(
        f"{where}.{name}" for name, item in value.items() if name not in ("type", "function") and item is not None
    )
    return function


def _chosen(choice: Any, given: tuple[Tool, ...], known: frozenset[str], parallel: bool, ignored: Ignored) -> Tools:
    """One function by name, or a part of all."""
    if not isinstance(choice, Mapping):
        raise invalid(f"'tool_choice' must be one of {', '.join(MODES)}, or an object.", "tool_choice", "invalid_value")
    if choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), given, known, parallel, ignored)
    name = _function_of(choice, "tool_choice", ignored).get("name")
    return Tools(given, "required", frozenset({_known(name, known, "tool_choice.function.name")}), parallel=False)


def _allowed(value: Any, given: tuple[Tool, ...], known: frozenset[str], parallel: bool, ignored: Ignored) -> Tools:
    where = "tool_choice.allowed_tools"
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    mode, tools = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise invalid(f"'{where}.mode' must be auto or required.", f"{where}.mode", "invalid_value")
    names = [
        _known(_function_of(tool, f"{where}.tools[{index}]", ignored).get("name"), known, f"{where}.tools[{index}]")
        for index, tool in enumerate(listed(tools, f"{where}.tools", "a list of tools"))
    ]
    return Tools(given, mode, frozenset(names), parallel)


def _known(name: Any, known: frozenset[str], where: str) -> str:
    if not isinstance(name, str) or name not in known:
        raise invalid(f"'{where}' names no function of tools.", where, "invalid_value")
    return name
