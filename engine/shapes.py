"""The form that an answer must have, as a constraint: from tools and response format, compiled in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.formats import Format
from edgeproxy.protocol.openai.tools import Tool, Tools
from engine.constraint import Constraint
from engine.opener import no_constraint
from engine.text.tokenizer import Tokenizer
from engine.text.tools.formats import ToolFormat

if TYPE_CHECKING:
    from engine.text.grammar import Grammars

Make = Callable[[], Constraint | None]


class Shapes:
    """One per engine. What it takes is loaded by the first request that needs it, and never on the event loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._grammars: Grammars | None = None
        self._lock = threading.Lock()

    async def of_format(self, form: Format | None) -> Make:
        """Raises ApiError 400 where the form cannot be followed."""
        return no_constraint if form is None else await asyncio.to_thread(self._of_format, form)

    async def of_chat(self, form: Format | None, tools: Tools, style: ToolFormat, mark_id: int | None) -> Make:
        """The same, of an answer that may or must be calls."""
        if not tools.callable:
            return await self.of_format(form)
        if form is None and not tools.enforced:
            return no_constraint
        if form is not None and form.kind != "json" and tools.mode != "required":
            raise invalid(
                f"'{form.where}' says what form the answer has, and 'tools' that it may be calls: send one of them, "
                "or a JSON schema.",
                form.where,
                "invalid_parameter_combination",
            )
        return await asyncio.to_thread(self._of_tools, form, tools, style, mark_id)

    def _of_format(self, form: Format) -> Make:
        with _refusing(form.where):
            return self._loaded().of_format(form)

    def _of_tools(self, form: Format | None, tools: Tools, style: ToolFormat, mark_id: int | None) -> Make:
        from engine.text.grammar import lark
        from engine.text.tools import enforce

        grammars = self._loaded()
        schema = None
        if form is not None and tools.mode != "required":
            self._of_format(form)  # what is wrong with it is told by its own name
            schema = json.loads(form.text)

        def compiled(usable: Sequence[Tool]) -> Make:
            grammars.check_words(json.dumps([tool.view for tool in usable], ensure_ascii=False))
            if tools.mode == "required":
                text = enforce.calls(usable, style, parallel=tools.parallel, mark_id=mark_id)
            else:
                text = enforce.calls_or_text(usable, style, parallel=tools.parallel, mark_id=mark_id, schema=schema)
            return grammars.compiled(lark(text))

        try:
            return compiled(tools.callable)
        except (ValueError, RecursionError) as error:
            for tool in tools.callable:
                with _refusing(tools.where(tool)):
                    compiled([tool])
            with _refusing("tools"):  # each can be followed, but not all of them together
                raise error

    def _loaded(self) -> Grammars:
        from engine.text.grammar import Grammars

        with self._lock:
            if self._grammars is None:
                self._grammars = Grammars(self._tokenizer)
            return self._grammars


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        cause = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise invalid(f"'{where}' cannot be followed: {cause}.", where, "unsupported_schema") from error
