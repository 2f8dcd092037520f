"""Child processes of the proxy: the nodes with `launch:` and the relays of regions with `relay:`.

A child runs in a session of its own, so that Ctrl-C in the terminal reaches the proxy alone and the proxy stops its
children in order. It holds the read end of a pipe on stdin whose write end only the proxy has: when the proxy dies,
however it dies, the child sees the end of the pipe (`--exit-with-parent`) and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from time import monotonic

from edgeproxy.config import Config, ConfigError, NodeConfig
from edgeproxy.protocol.node.report import TOKEN_ENV
from edgeproxy.upstream.origin import Origin, parse
from edgeproxy.upstream.repeats import Repeats

STOP_S = 2.0
"""From SIGTERM to SIGKILL, all children at once."""
_LINE_BYTES = 8 * 1024
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 10.0
_LONGER_S = 2.0
"""A child that lives so much longer than it did before does not fail in the same way."""
_WELL_S = 30.0
"""A child that lived so long starts again without delay."""


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    arguments: tuple[str, ...]
    fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Relayed:
    """A node's relay: its listener is ours and is inherited, so its port is known before it runs and outlives a
    restart."""

    target: Origin
    delay_ms: float
    listener: socket.socket

    @property
    def origin(self) -> Origin:
        return Origin(self.target.scheme, "127.0.0.1", self.listener.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run for one configuration."""

    children: tuple[Child, ...]
    relays: Mapping[str, Relayed]
    environment: Mapping[str, str]

    @property
    def origins(self) -> dict[str, Origin]:
        """Node name -> the relay through which it is reached."""
        return {name: relay.origin for name, relay in self.relays.items()}


class Launcher:
    """`run()` until cancelled. Its first plan is made at once: ports are checked and the relays' listeners open."""

    def __init__(
        self,
        config: Config,
        token: str,
        logger: logging.Logger,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ConfigError where a child could not do its work: a port in use, a pattern in place of a model id."""
        self._logger = logger
        self._sleep = sleep
        self._token = token
        self._traces_to = config.traces_to
        """Of the whole life: a reload does not change where the proxy itself sends them."""
        self._group: asyncio.TaskGroup | None = None
        self._lives: dict[Child, asyncio.Task[None]] = {}
        self.children: tuple[Child, ...] = ()
        self._plan = Plan((), {}, {})
        self._plan = self.plan(config)
        self.children = self._plan.children

    @property
    def origins(self) -> Mapping[str, Origin]:
        return self._plan.origins

    async def run(self) -> None:
        """Starts every child and starts it again, after a growing wait, whenever it ends. Cancel to stop them all."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._begin()
                await asyncio.Event().wait()  # a configuration without children may be followed by one that has some
        finally:
            self.close()

    def close(self) -> None:
        """Closes the relays' listeners."""
        for relay in self._plan.relays.values():
            relay.listener.close()

    def plan(self, config: Config) -> Plan:
        """What another configuration needs; children and relays that it shares with the one in force are the same.

        Raises ConfigError, and then leaves nothing open.
        """
        children: list[Child] = []
        relays: dict[str, Relayed] = {}
        try:
            for region in config.regions:
                for node in region.nodes:
                    origin = parse(node.url)
                    if node.launch is not None:
                        child = _engine(config, node, origin, self._traces_to)
                        if child not in self._lives:
                            self._check_port(config, node, origin)
                        children.append(child)
                    if region.relay is not None:
                        relays[node.name] = self._relay(node.name, origin, region.relay.delay_ms)
                        children.append(_relay_child(node.name, relays[node.name]))
        except ConfigError:
            self.discard(Plan((), relays, {}))
            raise
        return Plan(tuple(children), relays, _environment(config, self._token))

    def discard(self, plan: Plan) -> None:
        """A plan that does not come into force."""
        for relay in plan.relays.values():
            if relay not in self._plan.relays.values():
                relay.listener.close()

    def follow(self, plan: Plan) -> Callable[[], None]:
        """Starts what is new. What is no longer needed goes on until the function returned is called."""
        before, self._plan, self.children = self._plan, plan, plan.children
        self._begin()

        def retire() -> None:
            for child in before.children:
                if child not in self.children and child in self._lives:
                    self._lives.pop(child).cancel()
            for relay in before.relays.values():
                if relay not in self._plan.relays.values():
                    relay.listener.close()

        return retire

    def _begin(self) -> None:
        if self._group is None:
            return
        for child in self.children:
            if child not in self._lives:
                self._lives[child] = self._group.create_task(self._keep(child), name=f"child {child.name}")

    def _relay(self, name: str, target: Origin, delay_ms: float) -> Relayed:
        known = self._plan.relays.get(name)
        if known is not None and (known.target, known.delay_ms) == (target, delay_ms):
            return known
        return Relayed(target, delay_ms, socket.create_server(("127.0.0.1", 0), backlog=1024))

    def _check_port(self, config: Config, node: NodeConfig, origin: Origin) -> None:
        """Raises ConfigError."""
        port = f" --port {origin.port} "
        if any(port in " ".join((*child.arguments, "")) for child in self._lives):
            raise ConfigError(
                f"{config.path}: node {node.name}: as it was it holds port {origin.port} until it has ended what "
                "it has begun; give the url of the changed one another port"
            )
        _check_port(config, node, origin)

    async def _keep(self, child: Child) -> None:
        wait = lived = 0.0
        said = Repeats(lambda line: self._logger.info("%s: %s", child.name, line))
        while True:
            if wait:
                await self._sleep(wait)
            said.begin()
            going_on = asyncio.get_running_loop().call_later(lived + _LONGER_S, said.go_on)
            started = monotonic()
            try:
                status = await self._live(child, said)
            finally:
                going_on.cancel()
            lived = monotonic() - started
            wait = 0.0 if lived >= _WELL_S else min(max(_FIRST_WAIT_S, 2 * wait), _LAST_WAIT_S)
            again = said.end(status)
            how = f"({status}) after {lived:.1f} s" + (f", the same {again + 1} times in a row" if again else "")
            self._logger.error("%s ended %s; starting it again in %g s", child.name, how, wait)

    async def _live(self, child: Child, said: Repeats) -> str:
        """One life of a child, from start to end; cancelling stops it. Returns how it ended."""
        start = asyncio.get_running_loop().create_task(self._start(child))
        try:
            process = await asyncio.shield(start)
        except OSError as error:
            return f"could not be started: {error}"
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await _stop(await start)  # half started is started
            raise
        try:
            await self._forward(process, said)
            return _ending(await process.wait())
        finally:
            await _stop(process)

    async def _start(self, child: Child) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *child.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._plan.environment,
            pass_fds=child.fds,
            start_new_session=True,
        )

    async def _forward(self, process: asyncio.subprocess.Process, said: Repeats) -> None:
        """The child's output, line by line; a line that never ends is cut."""
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.read(_LINE_BYTES):
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in filter(None, lines):
                said.line(line.decode("utf-8", "replace"))


def check_children(config: Config) -> None:
    """Raises ConfigError where a node could not be launched as the configuration has it."""
    for region in config.regions:
        for node in region.nodes:
            if node.launch is not None:
                _engine(config, node, parse(node.url), config.traces_to)


def _engine(config: Config, node: NodeConfig, origin: Origin, traces_to: str | None) -> Child:
    launch = node.launch
    assert launch is not None
    if len(node.models) != 1 or node.models[0].endswith("*"):
        raise ConfigError(
            f"{config.path}: node {node.name} is launched with one model and names {', '.join(node.models)}; "
            "give it exactly one model id"
        )
    arguments = [sys.executable, "-m", "engine", "serve", "--model", launch.source, "--model-id", node.models[0]]
    arguments += ["--host", origin.host, "--port", str(origin.port), "--exit-with-parent"]
    for field in fields(launch):
        if field.name != "source" and (value := getattr(launch, field.name)) is not None:
            arguments += ["--" + field.name.replace("_", "-"), str(value)]
    if traces_to is not None:
        arguments += ["--traces-to", traces_to]
    return Child(node.name, tuple(arguments))


def _relay_child(name: str, relay: Relayed) -> Child:
    fd = relay.listener.fileno()
    arguments = (sys.executable, "-m", "edgeproxy.sim.relay", "--listen", f"fd:{fd}", "--exit-with-parent")
    target = ("--to", f"{relay.target.host}:{relay.target.port}", "--delay-ms", f"{relay.delay_ms:g}")
    return Child(f"{name}-relay", arguments + target, (fd,))


def _check_port(config: Config, node: NodeConfig, origin: Origin) -> None:
    family = socket.AF_INET6 if ":" in origin.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((origin.host, origin.port))
        except OSError as error:
            cause = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
            raise ConfigError(
                f"{config.path}: node {node.name}: port {origin.port} on {origin.host} {cause}; "
                "stop what listens there (another edgeproxy?) or give the node's url another port"
            ) from error


def _environment(config: Config, token: str) -> dict[str, str]:
    """The proxy's own, with the node token and without the keys of other nodes."""
    secret = {node.api_key_env for region in config.regions for node in region.nodes}
    return {name: value for name, value in os.environ.items() if name not in secret} | {TOKEN_ENV: token}


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its session is its own: what it started goes with it
        await process.wait()


def _ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
