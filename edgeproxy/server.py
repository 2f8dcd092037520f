"""The process's life: children, probes and listeners come up together, and go down in order.

Going down: listeners stop accepting and let answers end, then the probes stop, then the children are told to end. A
second signal, or Ctrl-C, shortens the wait for answers to next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import gc
import logging
import os
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import time
from typing import Any

from edgeproxy.app import build, version
from edgeproxy.config import Config
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.listeners import Listeners, StartError
from edgeproxy.observe.log import Log
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.trace import Tracer, tracer
from edgeproxy.preflight import doubts, usable
from edgeproxy.protocol.node.report import TOKEN_ENV
from edgeproxy.readiness import until_ready
from edgeproxy.reload import Reload
from edgeproxy.upstream.follow import Follower
from edgeproxy.upstream.instruments import Instruments
from edgeproxy.upstream.launch import Launcher
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.probe import Prober
from edgeproxy.upstream.vigil import Vigil
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.inherited import Inherited
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate

_GC_THRESHOLDS = (20_000, 20, 50)
"""A request leaves no cycles behind, so that the collector has next to nothing to find; by default it would look for it
every few requests, among the objects of those that are under way."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a started proxy tells its user."""

    config: Config
    certificate: DevCertificate | None
    fleet: Fleet


class Server:
    """One proxy. `run()` it once."""

    def __init__(self, config: Config, *, state: Path, drain_s: float, log: Log, notice_s: float = 0.0) -> None:
        """`state`: folder for the development certificate and what the next process is to know. `drain_s`: how long
        SIGTERM waits for answers in progress. `notice_s`: how long before that requests are still taken, while /readyz
        says no: a load balancer's time to see.

        Raises KeysError, BindError, TlsError and ConfigError.
        """
        self._config = config
        self._state = state
        self._drain_s = drain_s
        self._notice_s = notice_s
        self._log = log
        self._keys = usable(config)
        self._token = os.environ.get(TOKEN_ENV) or secrets.token_urlsafe(32)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, announce: Callable[[Running], None]) -> None:
        """Until a signal. `announce` is called once, when every node is ready or, some seconds after the first, without
        the others. Raises StartError, ConfigError."""
        self._handle_signals()
        for warning in doubts(self._config, datetime.datetime.now(datetime.UTC)):
            self._log.say(f"Warning: {warning}")
        launcher = Launcher(self._config, self._token, logging.getLogger("edgeproxy.child"))
        fleet = Fleet.from_config(self._config, token=self._token, origins=launcher.origins)
        certificate = self._development_certificate()
        status = ReloadStatus(time())
        connections, quic = Counter[str](), QuicCounts()
        traces = self._tracer()
        built = build(
            self._config, fleet, self._keys, self._log, Random(), int(time()), status, traces, connections, quic
        )
        changed = asyncio.Event()
        prober = Prober(fleet, rng=Random(), changed=lambda node: self._node_changed(node, changed))
        certificates = self._certificates(certificate)
        status.certificate_not_after = certificates.not_after if certificates is not None else None
        say = self._log.say
        reload = Reload(self._config, fleet, launcher, prober, self._keys, self._token, say, status, certificates)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.now)
        try:
            async with (
                self._background(launcher.run()),
                self._background(prober.run()),
                self._background(Vigil(fleet, told=self._node_silent).run()),
                self._background(Follower(fleet).run()),
                self._background(reload.watch()),
                self._background(Instruments(fleet).run()),
                self._listening(built.public, built.admin, certificates, status, connections, quic),
                self._background(built.live.run()),
            ):
                await until_ready(lambda: fleet.nodes, changed, self._stop, self._log.say)
                if not self._stop.is_set():
                    gc.collect()
                    gc.freeze()  # what start-up made stays; the collector need not look at it again
                    gc.set_threshold(*_GC_THRESHOLDS)
                    announce(Running(self._config, certificate, fleet))
                await self._stop.wait()
                hurried = self._hurry.is_set()
                self._log.say(f"stopping{'' if hurried else ': answers in progress may end; Ctrl-C cuts them off'}")
        finally:
            fleet.close()
            self._log.flush()  # what has just ended is told of, in the log and in traces
            if traces is not None:
                await asyncio.to_thread(traces.close)

    def _tracer(self) -> Tracer | None:
        if self._config.traces_to is None:
            return None
        return tracer(self._config.traces_to, version(), Random())

    @contextlib.asynccontextmanager
    async def _background(self, work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Runs `work` beside the body. Should it fail, the proxy stops and the error is raised at the end."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._background_ended)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._stop.set()

    @contextlib.asynccontextmanager
    async def _listening(
        self,
        public: AsgiApp,
        admin: AsgiApp,
        certificates: Certificates | None,
        status: ReloadStatus,
        connections: Counter[str],
        quic: QuicCounts,
    ) -> AsyncIterator[None]:
        inherited = Inherited.from_environment(os.environ, os.getpid())
        limits = Limits(body_bytes=self._config.limits.body_bytes)
        listeners = Listeners(limits, inherited, self._state, connections, quic, self._config.quic)
        try:
            await listeners.start(self._config.listen, public, admin, certificates)
            yield
        finally:
            status.stopping = True
            if self._notice_s and not self._hurry.is_set():
                listeners.withdraw()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self._notice_s)
            await listeners.drain(self._drain_s, self._hurry)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, False)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, True)

    def _on_signal(self, hurried: bool) -> None:
        if hurried or self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _development_certificate(self) -> DevCertificate | None:
        if self._config.listen.https is None or self._config.tls.certificate is not None:
            return None
        try:
            return make_dev_certificate(self._state)
        except OSError as error:
            raise StartError(
                f"cannot write a development certificate to {self._state}: {error.strerror}; "
                "give another folder with --state, or name a certificate under `tls:`"
            ) from error

    def _certificates(self, development: DevCertificate | None) -> Certificates | None:
        if self._config.listen.https is None:
            return None
        tls = self._config.tls
        if tls.certificate is not None and tls.key is not None:
            return Certificates(tls.certificate, tls.key)
        assert development is not None
        renew = functools.partial(make_dev_certificate, self._state)
        return Certificates(development.certificate, development.key, renew=renew)

    def _node_silent(self, node: Node) -> None:
        event = {"event": "node_silent", "time": time(), "node": node.name, "region": node.region}
        self._log.record({**event, "in_flight": node.in_flight, "trouble": node.trouble})

    def _node_changed(self, node: Node, changed: asyncio.Event) -> None:
        if node.ready:
            distance = "" if node.rtt.srtt is None else f", {node.rtt.srtt * 1e3:.1f} ms away"
            self._log.say(f"{node.name}: ready{distance}")
        else:
            self._log.say(f"{node.name}: not ready: {node.trouble}")
        changed.set()


def serve(
    config: Config, *, state: Path, drain_s: float, announce: Callable[[Running], None], notice_s: float = 0.0
) -> None:
    """Blocks until a signal. Raises StartError, ConfigError, KeysError and BindError."""
    log = Log()

    async def run() -> None:
        await Server(config, state=state, drain_s=drain_s, log=log, notice_s=notice_s).run(announce)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    finally:
        log.finish()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


__all__ = ["Running", "Server", "StartError", "serve"]
