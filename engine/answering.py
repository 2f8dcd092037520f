"""Answers as HTTP bodies: whole, or as a stream of events with the notes that let another node go on with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from edgeproxy.protocol.node.resume import Resume, encode_note
from edgeproxy.protocol.openai.chat import (
    Call,
    Choice,
    Completion,
    CompletionStream,
    FinishReason,
    TokenLogprob,
    error_event,
)
from edgeproxy.protocol.openai.errors import ApiError
from engine.answer import Choices, Opening
from engine.http import Exchange, Headers
from engine.text.reader import Piece
from engine.text.tools.events import Arguments, CallStart


@dataclass(slots=True)
class _Whole:
    """One answer as far as it has come."""

    text: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    """Name and arguments."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason = "stop"

    def add(self, piece: Piece) -> None:
        self.logprobs += piece.logprobs
        self.finish = piece.finish or self.finish
        for event in piece.events:
            if isinstance(event, CallStart):
                self.calls.append((event.name, []))
            elif isinstance(event, Arguments):
                self.calls[event.call][1].append(event.text)
            else:
                self.text.append(event)

    def choice(self, *, told: bool) -> Choice:
        calls = tuple(Call(call_id(), name, "".join(parts)) for name, parts in self.calls)
        return Choice("".join(self.text), self.finish, self.logprobs if told else None, calls)


async def whole(choices: Choices, first: tuple[int, Piece], form: Completion, *, told: bool) -> bytes:
    """`first`: what came first. `told`: with log-probabilities. Raises ApiError."""
    found = [_Whole() for _ in range(choices.count)]
    index, piece = first
    found[index].add(piece)
    while not choices.done:
        index, piece = await choices.next()
        found[index].add(piece)
    return form.whole([one.choice(told=told) for one in found], choices.usage())


class Stream:
    """The events of a streamed answer."""

    def __init__(
        self, choices: Choices, form: CompletionStream, *, told: bool, notes: Notes | None, resume: Resume | None
    ) -> None:
        self._choices = choices
        self._form = form
        self._told = told
        self._notes = notes
        self._resume = resume
        self._begun = set(range(choices.count)) if resume is not None else set[int]()

    async def send(
        self, exchange: Exchange, headers: Headers, first: tuple[int, Piece], late: Callable[[], Headers]
    ) -> None:
        """Headers and all events. Status and headers waited for the first piece, so that a refusal has its own. `late`:
        of the headers what is told when all else is done, for it tells how long that took."""
        events = self._events(*first)
        await exchange.start(200, headers, late)
        while not self._choices.done:
            if events:
                await exchange.write(events, more=True)
            try:
                events = self._events(*await self._choices.next())
            except ApiError as error:
                exchange.failure = error
                await exchange.write(error_event(error), more=False)
                return
        if self._form.include_usage:
            events += self._form.usage(self._choices.usage())
        await exchange.write(events + self._form.done(), more=False)

    def _events(self, index: int, piece: Piece) -> bytes:
        form, told = self._form, piece.logprobs if self._told else None
        events = b""
        if index not in self._begun:
            self._begun.add(index)
            events += form.role(index)
        if self._notes is not None:
            events += self._notes.before(piece)
        for event in piece.events:
            if isinstance(event, CallStart):
                events += form.call(event.call, call_id(), event.name, index)
            elif isinstance(event, Arguments):
                events += form.arguments(event.call, event.text, index)
            else:
                events += form.text(event, told, index)
                told = None
        if piece.finish is not None and not (self._resume is not None and self._resume.finished):
            events += form.finish(piece.finish, told, index)
        elif told:
            events += form.text("", told, index)
        return events


class Notes:
    """The comment lines of one stream (`edgeproxy.protocol.node.resume`)."""

    def __init__(self, opening: Opening | None, chars: int = 0, again: int = 0) -> None:
        """`opening`: of a stream that begins here. `chars`: what the client has got of one that does not, of whose
        tokens the first `again` are sampled again and noted already."""
        self._opening = opening
        self._chars = chars
        self._again = again

    def before(self, piece: Piece) -> bytes:
        opening, self._opening = self._opening, None
        line = encode_note(self._chars, piece.ids[self._again :], opening)
        self._again = max(self._again - len(piece.ids), 0)
        self._chars += piece.size
        return line


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
