"""The life of a node's process: listen, load, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engine import startup
from engine.admission import Mode
from engine.api import NodeApp
from engine.chat import Chat
from engine.chunks import QUANTUM_S
from engine.hosts import Hosts, is_loopback
from engine.listener import Listener
from engine.loop import FLUSH_S, EngineLoop
from engine.node import STALL_S, Node
from engine.rehearsal import Rehearsal
from engine.startup import Opened, Start, StartError

if TYPE_CHECKING:
    from engine.executor.base import Executor
    from engine.gpu.monitor import Monitor
    from engine.integrity import WeightsCheck
    from engine.traces import Traces


FAILED_DRAIN_S = 1.0
"""For the errors of a failed engine to reach their clients."""
SWITCH_S = 0.0005
"""How long the engine's thread waits for the interpreter while the event loop computes; Python's default is 5 ms."""
QUIET_S = 1.0
"""How long connections wait for an answer while the node starts."""
STALLED = 70
"""Exit status of a process whose engine hangs: EX_SOFTWARE of sysexits(3)."""


class ServeOptions(NamedTuple):
    model_id: str
    host: str
    port: int
    """0: any free one."""
    queue: int = 64
    max_wait_s: float = 3.0
    """Longest expected wait of a request that must wait for a place."""
    drain_s: float = 30.0
    """For what runs when the node is told to end, and for the KV store to be written."""
    quantum_s: float = QUANTUM_S
    admission: Mode = Mode.GUARANTEE
    kv_store: Path | None = None
    kv_store_bytes: int = 1 << 30
    sleep_s: float | None = None
    stall_s: float = STALL_S
    """Without progress for so long the node is not ready, for twice as long its process ends."""
    traces_to: str | None = None
    """URL of an OpenTelemetry collector."""
    allow_hosts: tuple[str, ...] = ()
    token: str | None = None


def serve(options: ServeOptions, start: Start) -> int:
    """Runs a node until a signal (0) or a failure of the engine or its GPU (1). Raises StartError.

    start: has begun already, and goes on while this module is loaded and listens.
    """
    if options.token is None and not is_loopback(options.host):
        raise StartError(f"{options.host} can be reached from afar: set EDGEPROXY_NODE_TOKEN or bind 127.0.0.1")
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(options, start))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(options: ServeOptions, start: Start) -> int:
    signals = _Signals()
    node = Node(options.model_id, options.stall_s)
    token = options.token.encode() if options.token is not None else None
    traces = _traces(options)
    app = NodeApp(node, Hosts(options.host, options.allow_hosts), token, traces=traces)
    bound = _bind(options.host, options.port)
    address = _address(bound)
    print(f"starting on http://{address}", flush=True)
    ready = asyncio.Event()
    answering = asyncio.create_task(_answering(app, bound, ready))
    engine: EngineLoop | None = None
    watch: asyncio.Task[None] | None = None
    check: WeightsCheck | None = None
    gpu = _GpuWatch(None)
    flush_s = min(FLUSH_S, options.drain_s / 2) if options.kv_store else 0.0
    try:
        await _first(_ended(start), signals.stop.wait())
        if signals.stop.is_set():
            return 0
        opened = start.result()
        engine = _engine(options, opened.executor)
        engine.start()
        gpu = _GpuWatch(opened.monitor)
        node.attach(engine, Chat(engine, opened.text.tokenizer, opened.text.template), opened.monitor)
        watch = asyncio.create_task(_end_if_stalled(node, engine, app, options.stall_s))
        gpu.start(engine)
        ends = (signals.stop, engine.failed, gpu.failed)
        rehearsal = Rehearsal(engine, opened.text)
        if opened.settles:
            await _first(rehearsal.run(alone=True), *(end.wait() for end in ends))
            start.phases.append(("rehearsal", sum(rehearsal.rounds)))
        if not any(end.is_set() for end in ends):
            rehearsals = asyncio.create_task(rehearsal.keep_warm())
            node.ready()
            ready.set()
            await answering
            took = _took(start, opened.executor)
            print(f"ready: {options.model_id} ({engine.numerics}) on http://{address} {took}", flush=True)
            if traces is not None:
                traces.started(start.began, start.phases, engine.numerics)
            if residency := await asyncio.to_thread(opened.executor.residency):
                print(residency, flush=True)
            check = _weights_check(opened, engine, start.cache)
            await _first(*(end.wait() for end in ends))
            rehearsals.cancel()
        gpu.tell()
        node.drain()
        failed = engine.failed.is_set()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAILED_DRAIN_S if failed else options.drain_s - flush_s):
                await _first(app.quiet(), signals.hurry.wait())
        if app.busy and not failed:
            why = "told to end a second time" if signals.hurry.is_set() else f"--drain-s {options.drain_s:g} is over"
            print(f"{why}: requests cut before their end: {app.busy}", file=sys.stderr, flush=True)
        return 1 if engine.failed.is_set() or gpu.failed.is_set() else 0
    finally:
        if check is not None:
            check.stop()
        if engine is not None:
            await asyncio.to_thread(engine.stop, flush_s)  # the event loop goes on watching it
        if watch is not None:
            watch.cancel()
        await asyncio.to_thread(gpu.close)
        ready.set()
        await (await answering).close()
        if traces is not None:
            await asyncio.to_thread(traces.close)


def _traces(options: ServeOptions) -> Traces | None:
    """Raises StartError."""
    if options.traces_to is None:
        return None
    from engine.traces import traces  # OpenTelemetry takes longer to load than all else

    return traces(options.traces_to, options.model_id)


def _weights_check(opened: Opened, engine: EngineLoop, cache: Path) -> WeightsCheck | None:
    if opened.image is None:
        return None
    from engine.integrity import guard

    check = guard(opened.image, opened.executor, engine, cache)
    check.start()
    return check


def _engine(options: ServeOptions, executor: Executor) -> EngineLoop:
    """Raises StartError."""
    store = None
    if options.kv_store is not None:
        from engine.store import BlockStore, StoreError

        try:
            store = BlockStore(
                options.kv_store,
                options.kv_store_bytes,
                numerics=executor.numerics,
                block_bytes=executor.block_bytes,
            )
        except StoreError as error:
            raise StartError(str(error)) from error
    return EngineLoop(
        executor,
        queue_length=options.queue,
        max_wait_s=options.max_wait_s,
        mode=options.admission,
        quantum_s=options.quantum_s,
        store=store,
        sleep_s=options.sleep_s,
    )


async def _end_if_stalled(node: Node, engine: EngineLoop, app: NodeApp, stall_s: float) -> None:
    """Ends the process, for its supervisor to start another: a thread that hangs in a kernel cannot be ended alone."""
    while (stalled := node.stalled_s()) < 2 * stall_s:  # noqa: ASYNC110 - state of another thread
        await asyncio.sleep(stall_s / 4)
    print(f"the engine got nothing done for {stalled:.0f} s: the process ends", file=sys.stderr, flush=True)
    engine.give_up(RuntimeError("the engine hangs"))
    node.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(FAILED_DRAIN_S):
            await app.quiet()
            await asyncio.sleep(0.01)  # a turn of the loop sends what was written in the one before
    os._exit(STALLED)


async def _ended(start: Start) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    start.then(lambda: _call(loop, ended.set))
    await ended.wait()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the node was told to stop while it started
        loop.call_soon_threadsafe(function)


async def _answering(app: NodeApp, bound: socket.socket, ready: asyncio.Event) -> Listener:
    """Begins to answer when the node is ready, or after a second.

    Until then connections wait in the socket's backlog: a client that retries would take the interpreter from the
    start that it waits for.
    """
    listener = Listener(app)
    with suppress(TimeoutError):
        async with asyncio.timeout(QUIET_S):
            await ready.wait()
    await listener.start(bound)
    return listener


def _took(start: Start, executor: Executor) -> str:
    """What of the start came one after the other; and then what the executor tells of its own part."""
    phases, own = _told(start.phases), _told(executor.phases())
    return f"after {startup.process_age() * 1000:.0f} ms: {phases}{f' ({own})' if own else ''}"


def _told(phases: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in phases)


class _GpuWatch:
    """What the node's end has to do with its GPU, if it is on one."""

    def __init__(self, monitor: Monitor | None) -> None:
        self._monitor = monitor
        self.failed = asyncio.Event()
        """Nothing more is to be computed on it."""

    def start(self, engine: EngineLoop) -> None:
        """Tells what was found at start, and watches from now on."""
        if self._monitor is None:
            return
        for note in self._monitor.notes:
            print(note, file=sys.stderr, flush=True)
        loop = asyncio.get_running_loop()
        use = engine.gauges.utilisation
        self._monitor.start(lambda: use.busy_s, lambda: _call(loop, self.failed.set), engine.now)

    def tell(self) -> None:
        """Why the node drains, where that is the GPU."""
        if self._monitor is not None and self.failed.is_set():
            print(f"draining: {self._monitor.fault}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()


class _Signals:
    """SIGTERM or SIGINT: drain and end. A second one: do not wait for what runs."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}; name another --port") from error


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
