"""Finds a node that goes on with a stream whose node has died, stalled or given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Protocol

from edgeproxy.gateway.account import Call
from edgeproxy.gateway.answer import Whole
from edgeproxy.gateway.attempt import Begun, Failed
from edgeproxy.gateway.continuation import SEAM
from edgeproxy.gateway.transcript import Transcript
from edgeproxy.protocol.node.resume import with_resume
from edgeproxy.protocol.openai.sse import Event
from edgeproxy.upstream.node import Node

MAX_RESUMES = 8
"""Of one stream: a request that kills its nodes must not go round the whole fleet."""
SEARCH_S = 10.0
"""How long nodes are asked again where all of them are busy or not back yet."""
PAUSE_S = 0.25
MAX_PAUSE_S = 2.0

Candidates = Callable[[], Iterable[Node]]
"""The nodes that may serve the request, as things stand when it is asked; best first."""


class Try(Protocol):
    """One request to one node, with all that has to be noted of it. Raises Failed."""

    async def __call__(self, node: Node, body: bytes, unseen: Call, /) -> Whole | Begun: ...


def successors(transcript: Transcript, died: Node, candidates: Iterable[Node]) -> Iterator[Node]:
    """Who can go on exactly: another node that computes bit for bit alike; ready ones first."""
    alike = [node for node in candidates if node is not died and node.numerics == transcript.numerics]
    yield from (node for node in alike if node.ready)
    yield from (node for node in alike if not node.ready)


def may_leave(transcript: Transcript, silent: Node, candidates: Candidates, resumes: int) -> bool:
    """Whether a stream whose node says nothing is better off elsewhere. A node that is well may only be slow: then its
    stream goes only to one where nobody waits, so that overload is not answered by moving everybody round."""
    if resumes >= MAX_RESUMES or transcript.resume() is None:
        return False
    others = [node for node in successors(transcript, silent, candidates()) if node.ready]
    return any(not silent.ready or (node.report is not None and not node.report.waiting) for node in others)


async def go_on(
    transcript: Transcript, body: bytes, died: Node, candidates: Candidates, send: Try, call: Call
) -> Begun | None:
    """The stream of the node that goes on, from what the client has not got; None where none does."""
    resume = transcript.resume()
    if resume is None or call.resumes >= MAX_RESUMES:
        return None
    continued = with_resume(body, resume)
    deadline = monotonic() + SEARCH_S
    refused: set[Node] = set()
    while True:
        pause, tried = PAUSE_S, False
        for node in successors(transcript, died, candidates()):
            if node in refused:
                continue
            tried = True
            try:
                begun = await send(node, continued, _unseen(call))
            except Failed as failed:
                pause = max(pause, failed.retry_after_s or 0.0)
                continue
            if isinstance(begun, Begun) and begun.parser is not None:
                call.resumes += 1
                return begun
            refused.add(node)  # soundly, so it will again
        now = monotonic()
        if not tried or now >= deadline:
            return None
        await asyncio.sleep(min(pause, MAX_PAUSE_S, deadline - now))


async def go_on_from_text(
    transcript: Transcript, body: bytes, died: Node, candidates: Candidates, send: Try, call: Call
) -> Begun | None:
    """As `go_on`, by a node that can do no more than continue a text. Each is asked once."""
    continued = None if transcript.said is None else transcript.said.request(body)
    if continued is None or call.resumes >= MAX_RESUMES:
        return None
    for node in list(candidates()):
        if node is died or not node.ready or not node.config.continue_final_message:
            continue
        try:
            begun = await send(node, continued, _unseen(call))
        except Failed:
            continue
        if isinstance(begun, Begun) and begun.parser is not None:
            call.resumes += 1
            transcript.goes_on_as_text()
            begun.events.insert(0, Event(b"", SEAM, comment=True))
            return begun
    return None


def _unseen(call: Call) -> Call:
    """A resume has times of its own: the ledger of the request was closed by its first content."""
    unseen = Call(call.request_id, monotonic(), call.protocol, call.client_rtt_s)
    unseen.stream, unseen.to_native, unseen.path = True, call.to_native, call.path
    return unseen
