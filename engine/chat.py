"""A chat request on this engine: messages to a prompt, and the answers to it."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.resume import Resume
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import Ignored
from edgeproxy.protocol.openai.schema import ChatRequest
from edgeproxy.protocol.openai.tools import Tools
from engine.answer import Choices
from engine.loop import EngineLoop
from engine.opener import Opener, Prompt, no_parser, random_seed
from engine.shapes import Shapes
from engine.text.guard import Guard
from engine.text.prompt import Draft, PromptEncoder
from engine.text.template import ChatTemplate, within_last
from engine.text.tokenizer import Tokenizer
from engine.text.tools.events import CallsOnly, Parser
from engine.text.tools.formats import format_of, taught
from engine.text.tools.marks import MISTRAL_MARK

INLINE_CHARS = 2000
"""More characters to encode, and longer prompts to render, go to a thread, so that the event loop goes on."""
INLINE_RENDER_CHARS = 32_000
REPEATS = 8
"""So often a call may come word for word where the model need not call: dice are rolled one by one, but a model that
goes round in circles would have its client run the same call until `max_tokens`."""
_READS_NAMES = re.compile(r"""message(?:\.name|\[['"]name['"]\]|\.get\(['"]name)""")


class Chat:
    """Opens answers. One per engine; belongs to the event loop."""

    def __init__(
        self,
        engine: EngineLoop,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        seeds: Callable[[], int] = random_seed,
    ) -> None:
        self.opener = Opener(engine, tokenizer, seeds)
        self.tokenizer = tokenizer
        self.encoder = PromptEncoder(tokenizer)
        self.shapes = Shapes(tokenizer)
        self._template = template
        self._guard = Guard(tokenizer.control_names)
        self._style = format_of(template.source)
        ids = {tokenizer.name_of(token): token for token in tokenizer.controls}
        self._marks = frozenset(ids[mark] for mark in self._style.marks if mark in ids)
        self._mark_id = ids.get(MISTRAL_MARK)

    async def open(self, request: ChatRequest, name: str, terms: Terms, resume: Resume | None = None) -> Choices:
        """Starts to generate, or to generate on from where another node ended.

        Raises ApiError where the messages cannot be rendered, the engine has stopped or computes otherwise than the
        node that is to be resumed.
        """
        self.opener.check(request)
        if request.tools.mode == "required":  # its answer is calls and no text that could stop
            request = replace(request, stop=(), stop_token_ids=())
        usable = request.tools.callable
        prompt = Prompt(
            await self.prompt(request, terms.salt),
            await self.shapes.of_chat(request.format, request.tools, self._style, self._mark_id),
            (lambda: self._parser(request.tools)) if usable else no_parser,
            self._marks if usable else frozenset(),
        )
        if resume is not None:
            return self.opener.resumed(request, prompt, name, terms, resume)
        return self.opener.choices(request, [prompt], name, terms, self._unshown(request))

    async def prompt(self, request: ChatRequest, salt: bytes) -> tuple[int, ...]:
        """The tokens of its messages. Raises ApiError 400."""
        try:
            if request.prompt_chars > INLINE_RENDER_CHARS:
                draft = await asyncio.to_thread(self._draft, request, salt)
            else:
                draft = self._draft(request, salt)
            prompt = await asyncio.to_thread(draft.ids) if draft.missing_chars > INLINE_CHARS else draft.ids()
        except RecursionError as error:
            where = "tools" if request.tools.given else "messages"
            raise invalid("What the chat template is to show is nested too deeply.", where, "invalid_value") from error
        except ValueError as error:
            raise invalid(f"{error}.", "messages", "invalid_messages") from error
        if not prompt:
            raise invalid("The chat template made no tokens of these messages.", "messages", "invalid_messages")
        return prompt

    def _parser(self, tools: Tools) -> Parser:
        from engine.text.tools.repeats import Repeats  # a node's start does without

        parser = self._style.parser(frozenset(tool.name for tool in tools.callable))
        return CallsOnly(Repeats(parser, 1)) if tools.mode == "required" else Repeats(parser, REPEATS)

    def _unshown(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of speakers and thoughts, where the template shows none: frameworks of agents send them, and refused,
        none would work."""
        names, thoughts = _READS_NAMES.search(self._template.source), "reasoning_content" in self._template.source
        ignored = Ignored()
        for index, message in enumerate(request.messages):
            if message.name and message.role != "tool" and not names:
                ignored.add([f"messages[{index}].name"])
            if message.reasoning and not thoughts:
                ignored.add([f"messages[{index}].reasoning_content"])
        return ignored.told()

    def _draft(self, request: ChatRequest, salt: bytes) -> Draft:
        tools = request.tools.callable
        more: dict[str, Any] = dict(request.template_kwargs)
        if self._style.template or not (tools or any(message.tool_calls for message in request.messages)):
            views = [message.view() for message in request.messages]
            more |= {"tools": [tool.view for tool in tools]} if tools else {}
        else:
            views = taught(request.messages, tools)
        (views, more), mark = self._guard.guarded((views, more))
        text = self._template.render(views, add_generation_prompt=not request.continue_final_message, more=more)
        if request.continue_final_message:
            text = within_last(text, views[-1]["content"])
        return self.encoder.draft(text, salt, mark)


def answer_id(kind: str = "chatcmpl") -> str:
    return f"{kind}-{secrets.token_hex(16)}"


def created() -> int:
    return int(time.time())
