"""The engine's thread: commands in through a mailbox, one wake of the event loop per step out.

The thread submits step n+1 before it collects step n, so that the executor never waits for Python. It blocks in the
executor while steps run and in the mailbox while there is nothing to do: an idle engine costs no CPU.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import resource
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from edgeproxy.protocol.node.blocks import BlockChange
from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.chunks import QUANTUM_S
from engine.executor.base import Executor, Limits
from engine.feed import BlockFeed
from engine.gauges import Gauges
from engine.generation import Generation
from engine.kv import IntegrityError
from engine.load import Load
from engine.scheduler import Scheduler
from engine.sequence import Delta, GenerationRequest
from engine.step import Finish

if TYPE_CHECKING:
    from engine.store import BlockStore
    from engine.tier import StoreTier

logger = logging.getLogger(__name__)


class _Add(NamedTuple):
    request: GenerationRequest
    submitted: float


class _Abort(NamedTuple):
    request_id: str


class Condemned(Exception):
    """What the executor computes must not be used; why is its argument."""


FLUSH_S = 5.0
"""For the store to be written when the engine stops."""

_Command = _Add | _Abort | Condemned | None
"""None stops the thread."""
_Events = list[tuple[str, Delta | ApiError]]


def _tier(executor: Executor, store: BlockStore | None) -> StoreTier | None:
    if store is None:
        return None
    from engine.tier import StoreTier

    return StoreTier(executor, store)


class EngineLoop:
    """Owns the executor: `start` begins the thread, `stop` ends it and closes the executor.

    All methods belong to the event loop that called `start`.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        queue_length: int = 64,
        max_wait_s: float | None = None,
        mode: Mode = Mode.GUARANTEE,
        quantum_s: float = QUANTUM_S,
        store: BlockStore | None = None,
        sleep_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_wait_s: longest expected wait that a newcomer is let in with; None for any.

        quantum_s: about how long the prefill of one step may take.

        store: where evicted blocks go; it is closed with the engine.
        sleep_s: after so long without a request, memory is given back until the next comes; None for never. Rehearsals
        are none: they neither put sleep off nor end it.
        """
        self._executor = executor
        self._clock = clock
        self.limits: Limits = executor.limits
        self.numerics = executor.numerics
        self.gauges = Gauges()
        self.feed = BlockFeed(executor.numerics, run=secrets.token_hex(8))
        self._changes: list[BlockChange] = []
        """Of the pool's index, since the event loop was told."""
        self._store = store
        self._tier = _tier(executor, store)
        self._flush_s = FLUSH_S
        self._sleep_s = sleep_s
        self._rested_since = clock()
        """When the thread last ran out of requests; rehearsals are none."""
        self._asked = False
        """A request has come since."""
        self.starting = False
        """Nobody can ask yet: rehearsals put sleep off."""
        self.sleeping = False
        """Memory of KV and activations is the system's until a request comes."""
        self.woke = asyncio.Event()
        """Set when a sleep has ended; whoever waits for it clears it."""
        self.requests = 0
        """That have come, without rehearsals."""
        self._rehearsals: set[str] = set()
        self._scheduler = Scheduler(
            self.limits,
            self.gauges,
            queue=queue_length,
            max_wait_s=max_wait_s,
            mode=mode,
            quantum_s=quantum_s,
            changed=self._changes.append,
            tier=self._tier,
        )
        self._load = self._scheduler.load()
        self._mailbox: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._emptied_at = 0
        """The step counter when the mailbox was last seen empty: what is found in it has been asked for since."""
        self._generations: dict[str, Generation] = {}
        self.busy_since: float | None = None
        """When the thread last got a step done, or something to do; None while it waits for commands."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None
        """Set when the executor failed: nothing runs any more."""
        self.failed = asyncio.Event()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, flush_s: float = FLUSH_S) -> None:
        """Ends what runs (as aborted), the thread and the executor. Waits for steps in flight. Idempotent.

        flush_s: how long the store may take to get what the pool holds.
        """
        deadline = self._clock() + flush_s
        if self._thread.is_alive():
            self._flush_s = flush_s
            self._mailbox.put(None)
            self._thread.join()
        if self._store is not None:
            self._store.close(max(0.1, deadline - self._clock()))
        self._executor.close()

    def condemn(self, cause: Exception) -> None:
        """Ends everything with an error, as if the executor had failed, and keeps nothing of what it computed.

        From any thread.
        """
        self._mailbox.put(Condemned(cause))

    @property
    def live(self) -> int:
        """Requests that have not ended, without rehearsals."""
        return len(self._generations) - len(self._rehearsals)

    def now(self) -> float:
        """The engine's clock, in seconds."""
        return self._clock()

    def load(self) -> Load:
        """As of the last step, with what was asked for since counted as waiting."""
        load = self._load
        waiting = max(load.waiting, self.live - load.running)
        return load._replace(waiting=waiting)

    def give_up(self, cause: Exception) -> None:
        """Tells everybody that the engine failed, though its thread hangs. What that may still do, nobody hears of."""
        self.failure = cause
        self._fail()

    def generate(self, request: GenerationRequest) -> Generation:
        """Queues a request; rehearsals make way for any other.

        Raises ApiError 503 where the engine has failed; other refusals come from `next`.
        """
        if self.failure is not None or not self._thread.is_alive():
            raise ApiError(503, "The engine of this node has stopped: try another node.", code="engine_failed")
        if request.request_id in self._generations:
            raise ValueError(f"request id {request.request_id} is in use")
        if request.rehearsal:
            self._rehearsals.add(request.request_id)
        else:
            self.requests += 1
            for name in self._rehearsals:
                self._mailbox.put(_Abort(name))
        now = self._clock()
        generation = Generation(now, lambda: self._mailbox.put(_Abort(request.request_id)))
        self._generations[request.request_id] = generation
        self._mailbox.put(_Add(request, now))
        return generation

    # The engine thread.

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._emit(list(self._scheduler.abort_all()))
            self._flush()
        except Exception as error:
            if not isinstance(error, Condemned):  # whoever condemned it has told
                logger.exception("the engine failed")
            elif self._store is not None:
                self._store.discard()
            self.failure = error
            self._call(self._fail)
        finally:
            self.busy_since = None

    def _flush(self, unwanted: Callable[[], bool] = lambda: False) -> None:
        """All that the pool holds goes to the store; steps in flight still belong to what was aborted."""
        if self._tier is None:
            return
        while self._scheduler.in_flight:
            self._allow()
            self._scheduler.complete(self._executor.collect(), self._clock())
        self._tier.flush(self._scheduler.idle_blocks(), self._flush_s, self._clock, unwanted)

    def _turn(self) -> bool:
        """One round: plans up to the executor's depth, commands before and after each, one result. False when told to
        stop.

        Two plans may be submitted in one round. Who leaves between them is in the first at most, and so is gone with
        the second step.
        """
        if not self._obey():
            return False
        while self._scheduler.in_flight < self._depth and (plan := self._scheduler.plan()):
            self._executor.submit(plan)
            self._allow()  # the next plan is to know what is forced
            if not self._obey():
                return False
        self._allow()
        if self._scheduler.in_flight:
            self._load = self._scheduler.load()
            result = self._executor.collect()
            now = self.busy_since = self._clock()
            events: _Events = [*self._scheduler.complete(result, now), *self._scheduler.overdue(now)]
            self._allow()
            self._emit(events)
            self._sample()
        elif not self._scheduler.idle:
            raise IntegrityError("requests are waiting or running, but no step can be planned")
        if self._scheduler.idle:
            self._scheduler.check()
        return True

    def _obey(self) -> bool:
        """Does what was asked for. False when told to stop."""
        commands = self._take()
        if None in commands:
            return False
        if commands:
            self._emit([event for command in commands if command is not None for event in self._apply(command)])
        self._emptied_at = self._scheduler.step
        return True

    def _allow(self) -> None:
        """Nothing can be collected before its masks are there."""
        for mask in self._scheduler.masks.due():
            self._executor.allow(*mask)

    @property
    def _depth(self) -> int:
        return 1 if self._scheduler.unhurried else self._executor.depth

    def _sample(self) -> None:
        utilisation = self.gauges.utilisation
        if utilisation.due:
            own = resource.getrusage(resource.RUSAGE_THREAD)
            faults = own.ru_minflt + own.ru_majflt + self._executor.page_faults()
            utilisation.sample(self._executor.worker_seconds(), faults, self.gauges.tokens)

    def _take(self) -> list[_Command]:
        """Commands that have come; waits for one where there is nothing else to do."""
        commands: list[_Command] = []
        if self._scheduler.idle:
            self.busy_since = None
            if self._asked or self.starting:
                self._asked, self._rested_since = False, self._clock()
            commands.append(self._next_command())
            self.busy_since = self._clock()
        while not self._mailbox.empty():
            commands.append(self._mailbox.get())
        return commands

    def _next_command(self) -> _Command:
        """Waits for it; sleeps after long waiting."""
        if self._sleep_s is not None and not self.sleeping:
            left_s = self._rested_since + self._sleep_s - self._clock()
            try:
                return self._mailbox.get(timeout=left_s) if left_s > 0 else self._mailbox.get_nowait()
            except queue.Empty:
                self._sleep()
        return self._mailbox.get()

    def _sleep(self) -> None:
        """The index goes with the memory; what it named may be found in the store."""
        self._flush(unwanted=lambda: not self._mailbox.empty())
        if not self._mailbox.empty():
            return
        self._scheduler.drop_idle()
        self._executor.release()
        self._load = self._scheduler.load()
        self.sleeping = True
        changes = self._changes.copy()
        self._changes.clear()
        self._call(lambda: self._deliver([], changes))

    def _wake(self) -> None:
        if self.sleeping:
            self.sleeping = False
            self._call(self.woke.set)

    def _apply(self, command: _Add | _Abort | Condemned) -> _Events:
        """Raises Condemned."""
        if isinstance(command, Condemned):
            raise command
        if isinstance(command, _Abort):
            return list(self._scheduler.abort(command.request_id, self._emptied_at))
        if not command.request.rehearsal:
            self._asked = True
            self._wake()
        elif self.sleeping:
            return [(command.request.request_id, Delta((), Finish.ABORT))]
        try:
            return list(self._scheduler.add(command.request, command.submitted))
        except ApiError as refusal:
            return [(command.request.request_id, refusal)]

    def _emit(self, events: _Events) -> None:
        """Changes of the index ride along: the event loop is not woken for them alone."""
        self._load = self._scheduler.load()
        if events:
            changes = self._changes.copy()
            self._changes.clear()
            self._call(lambda: self._deliver(events, changes))

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    # The event loop's thread again.

    def _deliver(self, events: _Events, changes: list[BlockChange]) -> None:
        self.feed.apply(changes)
        for request_id, item in events:
            generation = self._generations.get(request_id)
            if generation is None:  # given up
                continue
            generation.push(item)
            if generation.ended:
                del self._generations[request_id]
                self._rehearsals.discard(request_id)

    def _fail(self) -> None:
        for generation in self._generations.values():
            generation.push(Delta((), Finish.ERROR))
        self._generations.clear()
        self._rehearsals.clear()
        self.failed.set()
