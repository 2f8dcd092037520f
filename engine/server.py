"""The life of a node's process: listen, load, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edgeproxy.protocol.openai.errors import ApiError
from engine import startup
from engine.api import NodeApp
from engine.chat import Chat
from engine.hosts import Hosts, is_loopback
from engine.loop import EngineLoop
from engine.model.image import Progress
from engine.node import Node
from engine.startup import ModelOptions, Phases, StartError
from engine.warmup import WarmupError, warm_up

if TYPE_CHECKING:
    import uvicorn

T = TypeVar("T")

WARMUP_S = 120.0
FAILED_DRAIN_S = 1.0
"""For the errors of a failed engine to reach their clients."""
SWITCH_S = 0.0005
"""How long the engine's thread waits for the interpreter while the event loop computes; Python's default is 5 ms."""
KEEP_ALIVE_S = 3600
"""Proxies keep warm connections to their nodes."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    model: ModelOptions
    model_id: str
    host: str
    port: int
    """0: any free one."""
    queue: int = 64
    drain_s: float = 30.0
    allow_hosts: tuple[str, ...] = ()
    token: str | None = None


def serve(options: ServeOptions, progress: Progress) -> int:
    """Runs a node until a signal (0) or a failure of the engine (1). Raises StartError.

    progress: told how far the packing of the model has come, if it must be packed; called in another thread.
    """
    if options.token is None and not is_loopback(options.host):
        raise StartError(f"{options.host} can be reached from afar: set EDGEPROXY_NODE_TOKEN or bind 127.0.0.1")
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(options, progress))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(options: ServeOptions, progress: Progress) -> int:
    signals = _Signals()
    phases = Phases()
    phases.add("exec and imports", startup.process_age())
    node = Node(options.model_id)
    token = options.token.encode() if options.token is not None else None
    app = NodeApp(node, Hosts(options.host, options.allow_hosts), token)
    with phases.phase("listen"):
        listener = _bind(options.host, options.port)
        server = await _listen(app, listener)
    print(f"listening on http://{_address(listener)}", flush=True)
    engine: EngineLoop | None = None
    try:
        image = await _started(phases, "image", startup.open_image, options.model, progress)
        text = asyncio.create_task(_started(phases, "tokenizer and template", startup.open_text, image))
        text.add_done_callback(_retrieved)
        executor = await _started(phases, "map and arena", startup.open_executor, image, options.model)
        engine = EngineLoop(executor, queue_length=options.queue)
        engine.start()
        with phases.phase("warm-up"):
            await _warmed(engine)
        texts = await text
        node.attach(engine, Chat(engine, texts.tokenizer, texts.template))
        node.ready()
        print(
            f"ready: {options.model_id} ({engine.numerics}) after {startup.process_age():.2f} s: {phases}", flush=True
        )
        await _first(signals.stop.wait(), engine.failed.wait())
        node.drain()
        drain_s = FAILED_DRAIN_S if engine.failed.is_set() else options.drain_s
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await _first(app.quiet(), signals.hurry.wait())
        return 1 if engine.failed.is_set() else 0
    finally:
        if engine is not None:
            engine.stop()
        await server.shutdown([listener])


async def _started(phases: Phases, name: str, function: Callable[..., T], *arguments: Any) -> T:
    """A part of the start, in a thread. Raises StartError."""
    try:
        with phases.phase(name):
            return await asyncio.to_thread(function, *arguments)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        raise StartError(str(error)) from error


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Where the start has failed already, nobody asks how this ended."""
    if not task.cancelled():
        task.exception()


async def _warmed(engine: EngineLoop) -> None:
    try:
        async with asyncio.timeout(WARMUP_S):
            await warm_up(engine)
    except TimeoutError as error:
        raise StartError(f"no token came out within {WARMUP_S:.0f} s of warm-up") from error
    except (WarmupError, ApiError) as error:
        raise StartError(f"the warm-up failed: {error}") from error


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


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _listen(app: NodeApp, listener: socket.socket) -> uvicorn.Server:
    """uvicorn's listener without its run loop: that one wakes ten times a second and takes the signals."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([listener])
    return server
