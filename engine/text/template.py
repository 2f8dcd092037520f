"""Chat templates: jinja2 from the model file, which is untrusted input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.model.gguf import Gguf, GgufError
from engine.model.vocabulary import TemplateText

MAX_TEMPLATE_CHARS: Final = 256 << 10
MAX_OUTPUT_CHARS: Final = 16 << 20


class ChatTemplate:
    """Renders messages as the model was trained to read them, with what transformers gives its templates.

    The sandbox keeps a template from reaching anything but its arguments, and what it may write is bounded. The time
    and the memory it takes on the way are not: run a template of unknown origin in a process that may be killed.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises ValueError with the template's own message where it cannot be compiled."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has {len(source)} characters, at most {MAX_TEMPLATE_CHARS} are read")
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be compiled: {error}") from error
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> ChatTemplate:
        """Raises GgufError where the file has no template or one that cannot be compiled."""
        text = TemplateText.from_gguf(gguf)
        try:
            return cls.from_text(text)
        except ValueError as error:
            raise GgufError(f"{gguf.path}: {error}; convert the model again") from error

    @classmethod
    def from_text(cls, text: TemplateText) -> ChatTemplate:
        """Raises ValueError where it cannot be compiled."""
        return cls(text.source, bos_token=text.bos_token, eos_token=text.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Messages have `role` and `content` (text); `more`: what else the template is given.

        Raises ValueError with the template's own message.
        """
        try:
            given = {"messages": messages, "add_generation_prompt": add_generation_prompt, **self._tokens, **more}
            parts = self._template.generate(given)  # not as keywords: any name may be among them
            return _bounded(parts)
        except (
            TemplateError,
            AttributeError,
            ArithmeticError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise ValueError(f"the chat template refused these messages: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _bounded(parts: Iterable[str]) -> str:
    kept, room = [], MAX_OUTPUT_CHARS
    for part in parts:
        room -= len(part)
        if room < 0:
            raise ValueError(f"it wrote more than {MAX_OUTPUT_CHARS} characters")
        kept.append(part)
    return "".join(kept)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def within_last(rendered: str, content: str) -> str:
    """Up to the end of the last message's content, for an answer that goes on with it. Raises ValueError."""
    begins = rendered.rfind(content.strip())
    if begins < 0:
        raise ValueError("the chat template does not show the last message as it is, so that nothing can go on with it")
    whole = content.lstrip()
    kept = whole if rendered.startswith(whole, begins) else content.strip()
    return rendered[: begins + len(kept)]
