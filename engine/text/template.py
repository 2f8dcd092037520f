"""Chat templates: Jinja from the model file, which is untrusted input."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from engine.model.gguf import Gguf, GgufError
from engine.model.vocabulary import TemplateText
from engine.text import plain_template

if TYPE_CHECKING:
    from engine.text.jinja import JinjaTemplate

MAX_TEMPLATE_CHARS: Final = 256 << 10
MAX_OUTPUT_CHARS: Final = 16 << 20


class ChatTemplate:
    """Renders messages as the model was trained to read them, with what transformers gives its templates.

    What a template may write is bounded. The time and the memory it takes on the way are not: run a template of
    unknown origin in a process that may be killed. Thread-safe.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises ValueError with the template's own message where it cannot be compiled."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has {len(source)} characters, at most {MAX_TEMPLATE_CHARS} are read")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._jinja: JinjaTemplate | None = None
        self._lock = threading.Lock()
        self._plain = plain_template.compiled(source)
        if self._plain is None:
            self.prepare()

    def prepare(self) -> JinjaTemplate:
        """Has jinja2 ready, which else the first messages wait for that need it. Raises ValueError."""
        from engine.text.jinja import JinjaTemplate

        with self._lock:
            if self._jinja is None:
                self._jinja = JinjaTemplate(self.source)
            return self._jinja

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
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, **self._tokens, **more}
        try:
            return self._rendered(given)
        except (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"the chat template refused these messages: {error}") from error

    def _rendered(self, given: Mapping[str, Any]) -> str:
        if self._plain is not None:
            with suppress(plain_template.Unsure):
                return _bounded(self._plain(given))
        return _bounded(self.prepare().render(given))


def _bounded(parts: Iterable[str]) -> str:
    kept, room = [], MAX_OUTPUT_CHARS
    for part in parts:
        room -= len(part)
        if room < 0:
            raise ValueError(f"it wrote more than {MAX_OUTPUT_CHARS} characters")
        kept.append(part)
    return "".join(kept)


def within_last(rendered: str, content: str) -> str:
    """Up to the end of the last message's content, for an answer that goes on with it. Raises ValueError."""
    begins = rendered.rfind(content.strip())
    if begins < 0:
        raise ValueError("the chat template does not show the last message as it is, so that nothing can go on with it")
    whole = content.lstrip()
    kept = whole if rendered.startswith(whole, begins) else content.strip()
    return rendered[: begins + len(kept)]
