"""What an endpoint that generates has of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.resume import Resume
from edgeproxy.protocol.openai.chat import Completion, CompletionStream
from edgeproxy.protocol.openai.decoding import Decoding
from edgeproxy.protocol.openai.schema import chat_request
from engine.answer import Choices
from engine.chat import Chat


class Kind(NamedTuple):
    prefix: str
    """Of its answers' ids."""
    read: Callable[[dict[str, Any]], Decoding]
    open: Callable[[Chat, Any, str, Terms, Resume | None], Awaitable[Choices]]
    whole: type[Completion]
    stream: type[CompletionStream]


async def _open_chat(chat: Chat, request: Any, name: str, terms: Terms, resume: Resume | None) -> Choices:
    return await chat.open(request, name, terms, resume)


CHAT: Final = Kind("chatcmpl", chat_request, _open_chat, Completion, CompletionStream)
