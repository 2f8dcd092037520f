"""The messages of a chat request. Never quotes what the client sent."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from edgeproxy.protocol.openai.checks import Json, listed, required, text, wrong_type
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import MESSAGE_HONOURED, MESSAGE_UNSUPPORTED, Ignored, refuse_unsupported

MAX_MESSAGES = 4096
MAX_PROMPT_CHARS = 1 << 20
MAX_NAME_CHARS = 256
MAX_CALLS = 128

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role in the request -> role in the template: `developer` is OpenAI's newer word for `system`."""

_OF_ONE_ROLE = {
    "tool_call_id": "tool",
    "tool_calls": "assistant",
    "reasoning_content": "assistant",
    "refusal": "assistant",
}


class ToolCall(NamedTuple):
    """One that the model made earlier in the chat."""

    id: str
    name: str
    arguments: Any
    """The value that its JSON says; the text itself where that is none."""
    chars: int
    """Of name and arguments as sent."""


class Message(NamedTuple):
    role: str
    """As templates take it."""
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    """What the model thought before it answered, as it was told beside the content."""

    @property
    def chars(self) -> int:
        return len(self.content) + len(self.reasoning) + sum(call.chars for call in self.tool_calls)

    def view(self) -> dict[str, Any]:
        """For templates, which look for what is there."""
        found: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            found["name"] = self.name
        if self.reasoning:
            found["reasoning_content"] = self.reasoning
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            found["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return found


def messages_of(value: Any, ignored: Ignored) -> tuple[Message, ...]:
    """Raises ApiError 400."""
    if not isinstance(value, list):
        raise wrong_type("messages", "a list of messages", value)
    if not value:
        raise invalid("'messages' is empty: send at least one message.", "messages", "empty_array")
    if len(value) > MAX_MESSAGES:
        raise invalid(
            f"'messages' has {len(value)} entries, at most {MAX_MESSAGES} are taken.",
            "messages",
            "array_above_max_length",
        )
    messages = tuple(_message(item, f"messages[{index}]", ignored) for index, item in enumerate(value))
    if sum(message.chars for message in messages) > MAX_PROMPT_CHARS:
        raise invalid(
            f"The messages have more than {MAX_PROMPT_CHARS} characters together: shorten them.",
            "messages",
            "context_length_exceeded",
        )
    return messages


def _message(value: Any, where: str, ignored: Ignored) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    present = {name: item for name, item in value.items() if item is not None}
    ignored.add(refuse_unsupported(present, MESSAGE_HONOURED, MESSAGE_UNSUPPORTED, f"{where}."))
    role = required(present, "role", f"{where}.")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"'{where}.role' must be one of {', '.join(ROLES)}.", f"{where}.role", "invalid_value")
    for field, only in _OF_ONE_ROLE.items():
        if role != only and present.get(field):
            raise invalid(f"'{where}.{field}' is for role {only} only.", f"{where}.{field}", "invalid_value")
    if role == "tool":
        required(present, "tool_call_id", f"{where}.")
    calls = _calls(present.get("tool_calls"), f"{where}.tool_calls", ignored)
    refusal = _said(present, "refusal", where)
    content = present.get("content") if calls or refusal else required(present, "content", f"{where}.")
    said = "" if content is None else _content(content, f"{where}.content", role, ignored)
    return Message(
        ROLES[role],
        "\n".join(filter(None, [said, refusal])) if refusal else said,
        _name(present, "name", where),
        calls,
        _name(present, "tool_call_id", where),
        _said(present, "reasoning_content", where),
    )


def _said(present: Json, field: str, where: str) -> str:
    """What an answer had beside its content, as clients send it back."""
    value = present.get(field, "")
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{field}", "a string", value)
    return value


def _name(present: Json, field: str, where: str) -> str | None:
    value = present.get(field)
    return None if value is None else text(value, f"{where}.{field}", MAX_NAME_CHARS)


def _calls(value: Any, where: str, ignored: Ignored) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(where, "a list of tool calls", value)
    if len(value) > MAX_CALLS:
        raise invalid(f"'{where}' has more than {MAX_CALLS} entries.", where, "array_above_max_length")
    return tuple(_call(item, f"{where}[{index}]", ignored) for index, item in enumerate(value))


def _call(value: Any, where: str, ignored: Ignored) -> ToolCall:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    if value.get("type") not in (None, "function"):
        raise invalid(f"'{where}.type' must be function.", f"{where}.type", "invalid_value")
    function = required(value, "function", f"{where}.")
    if not isinstance(function, dict):
        raise wrong_type(f"{where}.function", "an object", function)
    name = text(required(function, "name", f"{where}.function."), f"{where}.function.name", MAX_NAME_CHARS)
    arguments = function.get("arguments")
    if arguments is None:
        arguments = "{}"
    if not isinstance(arguments, str):
        raise wrong_type(f"{where}.function.arguments", "a string of JSON", arguments)
    ignored.add(f"{where}.{name}" for name in value if name not in ("id", "type", "function", "index"))
    ignored.add(f"{where}.function.{name}" for name in function if name not in ("name", "arguments"))
    identity = text(required(value, "id", f"{where}."), f"{where}.id", MAX_NAME_CHARS)
    return ToolCall(identity, name, _value_of(arguments), len(name) + len(arguments))


def _value_of(arguments: str) -> Any:
    """Templates want the object; what a model got wrong is shown to it as it was."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _content(value: Any, where: str, role: str, ignored: Ignored) -> str:
    if isinstance(value, str):
        return value
    parts = listed(value, where, "a string or a list of text parts")
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    return "\n".join(_part(part, f"{where}[{index}]", kinds, ignored) for index, part in enumerate(parts))


def _part(value: Any, where: str, kinds: tuple[str, ...], ignored: Ignored) -> str:
    """`kinds`: of parts that hold their text under their own name."""
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    kind = required(value, "type", f"{where}.")
    if kind not in kinds:
        raise invalid(f"'{where}' is not text: this model reads text parts only.", where, "unsupported_content_type")
    found = required(value, kind, f"{where}.")
    if not isinstance(found, str):
        raise wrong_type(f"{where}.{kind}", "a string", found)
    ignored.add(f"{where}.{name}" for name in value if name not in ("type", kind))
    return found
