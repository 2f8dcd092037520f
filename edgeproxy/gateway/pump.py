"""One node's part of a stream: from its first content to its end, or to where it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic

from edgeproxy.gateway.account import Ending, ending_of_stream
from edgeproxy.gateway.answer import Answer
from edgeproxy.gateway.attempt import Begun
from edgeproxy.gateway.timings import Timings
from edgeproxy.gateway.transcript import NodeGaveUp, Transcript
from edgeproxy.gateway.watch import ClientGone
from edgeproxy.protocol.openai.sse import DONE, Event, SseError, SseParser
from edgeproxy.upstream.h1 import UpstreamError


class Broken(Exception):
    """A stream that had begun did not come to its end. `reason` becomes a label."""

    def __init__(self, reason: str, ending: Ending | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.ending = ending
        """Of a stream whose client has got the finish reason: only what follows it is missing."""


class Quiet:
    """Notices that a node says nothing, with one timer a stream instead of one a read."""

    def __init__(self, seconds: float, stalled: Callable[[], bool]) -> None:
        """`stalled` is called after so many seconds of silence, and says whether that ended the stream."""
        self._seconds = seconds
        self._stalled = stalled
        self._timer: asyncio.TimerHandle | None = None
        self.since = inf
        """When the wait for the node began; inf while it is the client whom we wait for."""
        self.ended = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        self._arm(self._seconds)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        if seconds < inf:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = monotonic()
        left = min(self._seconds, self.since + self._seconds - now)
        if left > 0:
            self._arm(left)
        elif self._stalled():
            self.ended = True
        else:
            self.since = now
            self._arm(self._seconds)


class Pump:
    """Passes on whole events only: what a node's death leaves of one is of no use, and would spoil what follows."""

    def __init__(
        self,
        begun: Begun,
        parser: SseParser,
        transcript: Transcript,
        answer: Answer,
        stall_s: float,
        timings: Timings | None = None,
    ) -> None:
        self._begun = begun
        self._response = begun.response
        self._parser = parser
        self._transcript = transcript
        self._answer = answer
        self._stall_s = stall_s
        """Without anything but comments that say nothing."""
        self._timings = timings
        """Where the client asked for them."""
        self._done = False

    async def run(self, quiet: Quiet) -> Ending:
        """Raises Broken, ClientGone."""
        try:
            with quiet.watch():
                await self._copy(quiet)
        except OSError as error:
            raise ClientGone from error
        except SseError as error:
            raise Broken("malformed_late") from error
        except NodeGaveUp as given_up:
            if given_up.passed:
                await self._answer.begin(self._begun.headers, given_up.passed)
            raise Broken("error_late") from given_up
        except UpstreamError as error:
            ending, rest = self._ended("stalled_late" if quiet.ended else "cut_late", error), b""
        else:
            rest = self._parser.tail
            if DONE in rest:  # a server may leave out the last empty line
                ending = ending_of_stream(self._begun.recent)._replace(finished=True)
            else:
                ending = self._ended("cut_late", None)
        rest = self._transcript.missing_end() or rest
        if rest:
            await self._answer.write(rest)
        return ending

    async def _copy(self, quiet: Quiet) -> None:
        response, parser, transcript, answer = self._response, self._parser, self._transcript, self._answer
        timings, recent, foreign = self._timings, self._begun.recent, self._begun.numerics is None
        events, rest = self._to_done(self._begun.events), list[Event]()
        if timings is not None:  # what tells the usage waits until the content is handed on
            events, rest = timings.apart(events)
        await answer.begin(self._begun.headers, transcript.take(events))
        if timings is not None and rest:
            await answer.write(transcript.take([timings.in_event(event) for event in rest]))
        heard = quiet.since = monotonic()
        while data := await response.read():
            quiet.since = inf
            events = parser.feed(data)
            if foreign and (self._done or len(events) > 1):
                events = self._to_done(events)
            if timings is not None:
                events = list(map(timings.in_event, events))
            passed = transcript.take(events)
            if passed:
                await answer.pass_on(passed)
            quiet.since = monotonic()
            said = False
            for event in events:
                if not event.comment:
                    recent.append(event)
                    said = True
            if said:
                self._done = self._done or recent[-1].data == DONE
                heard = quiet.since
            elif passed and quiet.since - heard > self._stall_s:
                raise Broken("stalled_late")

    def _to_done(self, events: list[Event]) -> list[Event]:
        """What another kind of server says behind its `[DONE]` no client expects."""
        if self._begun.numerics is not None:
            return events
        if self._done:
            return [event for event in events if event.comment]
        for index, event in enumerate(events, 1):
            if event.data == DONE:
                self._done = True
                return [*events[:index], *(after for after in events[index:] if after.comment)]
        return events

    def _ended(self, reason: str, error: UpstreamError | None) -> Ending:
        """How the stream ended. Raises Broken unless it said so itself; a node that tells notes says `[DONE]` too."""
        ending = ending_of_stream(self._begun.recent)
        if ending.finished and self._transcript.resume() is None:
            return ending
        raise Broken(reason, ending if ending.finished else None) from error
