"""Which way of writing calls a model knows, told from its chat template, and what that takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from edgeproxy.protocol.openai.messages import Message
from edgeproxy.protocol.openai.tools import Tool
from engine.text.tools import marks
from engine.text.tools.events import Parser

View = dict[str, Any]


class ToolFormat(NamedTuple):
    name: str
    parser: Callable[[frozenset[str]], Parser]
    marks: tuple[str, ...] = ()
    """Control tokens that the parser must see in the text."""
    template: bool = True
    """The chat template itself shows tools to the model and says how to call them."""


# Each is loaded by the first request that has tools: a node's start does without.


def _hermes(names: frozenset[str]) -> Parser:
    from engine.text.tools.hermes import HermesParser

    return HermesParser(names)


def _llama(names: frozenset[str]) -> Parser:
    from engine.text.tools.llama import LlamaJsonParser

    return LlamaJsonParser(names)


def _pythonic(names: frozenset[str]) -> Parser:
    from engine.text.tools.pythonic import PythonicParser

    return PythonicParser(names)


def _mistral(names: frozenset[str]) -> Parser:
    from engine.text.tools.mistral import MistralParser

    return MistralParser(names)


HERMES: Final = ToolFormat("hermes", _hermes)
LLAMA: Final = ToolFormat("llama", _llama, (marks.LLAMA_TAG,))
PYTHONIC: Final = ToolFormat("pythonic", _pythonic, (marks.LLAMA_TAG,))
MISTRAL: Final = ToolFormat("mistral", _mistral, (marks.MISTRAL_MARK, "[ARGS]", "[CALL_ID]"))
UNTAUGHT: Final = ToolFormat("hermes", _hermes, template=False)
"""Of a template that knows no tools: Hermes' words, in the system message."""


def format_of(template: str) -> ToolFormat:
    """Of a chat template's source."""
    if "tools" not in template:
        return UNTAUGHT
    if marks.MISTRAL_MARK in template:
        return MISTRAL
    if marks.HERMES_OPEN in template:
        return HERMES
    if "func_name1(params_name1=" in template or "pythonic" in template:
        return PYTHONIC
    return LLAMA if '"parameters"' in template or marks.LLAMA_TAG in template else UNTAUGHT


def taught(messages: Sequence[Message], tools: Sequence[Tool]) -> list[View]:
    """Messages for a template that knows no tools: they and their calls told in text."""
    views = [_told(message) for message in messages]
    if not tools:
        return views
    lesson = _lesson(tools)
    if views[0]["role"] == "system":
        views[0]["content"] = f"{views[0]['content']}\n\n{lesson}".lstrip()
        return views
    return [{"role": "system", "content": lesson}, *views]


def _told(message: Message) -> View:
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
    calls = [
        f"{marks.HERMES_OPEN}\n{_json({'name': call.name, 'arguments': call.arguments})}\n{marks.HERMES_CLOSE}"
        for call in message.tool_calls
    ]
    return {"role": message.role, "content": "\n".join(filter(None, [message.content, *calls]))}


def _lesson(tools: Sequence[Tool]) -> str:
    listed = "\n".join(_json(tool.view) for tool in tools)
    return (
        f"You may call functions to answer. The functions are:\n<tools>\n{listed}\n</tools>\n"
        "To call one, answer with its name and arguments as JSON in this form, once for each call:\n"
        f'{marks.HERMES_OPEN}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n'
        f"{marks.HERMES_CLOSE}\n"
        "If no function helps, answer in plain words."
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
