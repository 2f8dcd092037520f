"""The life of a node's process: listen, load, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeproxy.protocol.openai.errors import ApiError
from engine.api import NodeApp
from engine.chat import Chat
from engine.executor.base import Executor
from engine.hosts import Hosts, is_loopback
from engine.loop import EngineLoop
from engine.node import Node
from engine.step import BLOCK_TOKENS
from engine.warmup import WarmupError, warm_up

if TYPE_CHECKING:
    import uvicorn

    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

WARMUP_S = 120.0
FAILED_DRAIN_S = 1.0
"""For the errors of a failed engine to reach their clients."""
SWITCH_S = 0.0005
"""How long the engine's thread waits for the interpreter while the event loop computes; Python's default is 5 ms."""
KEEP_ALIVE_S = 3600
"""Proxies keep warm connections to their nodes."""


class StartError(RuntimeError):
    """The node cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    model: str
    """Model URI."""
    model_id: str
    host: str
    port: int
    """0: any free one."""
    threads: int
    kv_tokens: int
    slots: int = 16
    """Most sequences that run at the same time."""
    step_tokens: int = 128
    """Most tokens of one step; bounds how long a prefill chunk holds everybody else up."""
    queue: int = 64
    drain_s: float = 30.0
    allow_hosts: tuple[str, ...] = ()
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A model in memory."""

    executor: Executor
    tokenizer: Tokenizer
    template: ChatTemplate


Opener = Callable[[ServeOptions], Opened]


def open_native(options: ServeOptions) -> Opened:
    """Raises StartError, and what the readers of the model raise (ValueError)."""
    from engine.model.arch import llama_config
    from engine.model.gguf import read
    from engine.model.source import resolve
    from engine.text.template import ChatTemplate
    from engine.text.tokenizer import Tokenizer

    try:
        from engine.executor.native import NativeExecutor
    except ImportError as error:
        raise StartError(f"the native executor is not built ({error}): run scripts/install") from error
    gguf = read(resolve(options.model))
    config = llama_config(gguf)
    blocks = options.kv_tokens // BLOCK_TOKENS
    executor = NativeExecutor(
        gguf,
        config,
        threads=options.threads,
        slots=options.slots,
        blocks=blocks,
        context=min(config.context, blocks * BLOCK_TOKENS),
        step_tokens=options.step_tokens,
    )
    return Opened(executor, Tokenizer.from_gguf(gguf), ChatTemplate.from_gguf(gguf))


def serve(options: ServeOptions, opener: Opener = open_native) -> int:
    """Runs a node until a signal (0) or a failure of the engine (1). Raises StartError."""
    if options.token is None and not is_loopback(options.host):
        raise StartError(f"{options.host} can be reached from afar: set EDGEPROXY_NODE_TOKEN or bind 127.0.0.1")
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(options, opener))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve(options: ServeOptions, opener: Opener) -> int:
    signals = _Signals()
    node = Node(options.model_id)
    token = options.token.encode() if options.token is not None else None
    app = NodeApp(node, Hosts(options.host, options.allow_hosts), token)
    listener = _bind(options.host, options.port)
    server = await _listen(app, listener)
    print(f"listening on http://{_address(listener)}", flush=True)
    engine: EngineLoop | None = None
    try:
        opened = await _opened(options, opener)
        engine = EngineLoop(opened.executor, queue_length=options.queue)
        engine.start()
        chat = Chat(engine, opened.tokenizer, opened.template)
        node.attach(engine, chat)
        await _warmed(chat, options.model_id)
        node.ready()
        print(f"ready: {options.model_id} ({engine.numerics})", flush=True)
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


async def _opened(options: ServeOptions, opener: Opener) -> Opened:
    try:
        return await asyncio.to_thread(opener, options)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        raise StartError(str(error)) from error


async def _warmed(chat: Chat, model: str) -> None:
    try:
        async with asyncio.timeout(WARMUP_S):
            await warm_up(chat, model)
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
