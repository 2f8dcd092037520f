"""Reads regions.yaml, keys and certificate again while requests go on: at SIGHUP, and when one of them has changed.

A file that cannot be used is told of and changes nothing. Nodes that are reached as they were and serve
what they did keep their connections and all that is known of them; a node that is gone ends what it has begun.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from time import time

from edgeproxy.access.keys import Keys, KeysError
from edgeproxy.config import Config, ConfigError
from edgeproxy.config_file import load
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.upstream.launch import Launcher
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.probe import Prober
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.tls import TlsError

POLL_S = 2.0
DRAIN_S = 600.0
"""How long a node that is gone may take to end what it has begun."""
_DRAIN_POLL_S = 0.25
_LIVE = ("regions", "path")
"""Fields of the configuration that a reload brings into force; others need a new start."""

Stamp = tuple[tuple[int, int, int] | None, ...]


class Reload:
    """One per server. `watch()` it until cancelled; `now()` at a signal."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        launcher: Launcher,
        prober: Prober,
        keys: Keys,
        token: str,
        say: Callable[[str], None],
        status: ReloadStatus,
        certificates: Certificates | None = None,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._launcher = launcher
        self._prober = prober
        self._keys = keys
        self._token = token
        self._say = say
        self._certificates = certificates
        self._drains: set[asyncio.Task[None]] = set()
        self._stamp = self._stamps()
        self._status = status

    async def watch(self, poll_s: float = POLL_S) -> None:
        """Looks at the files' times and sizes: that works on every file system, and for files that are replaced. A file
        that is being written is left to settle: half of it may be a sound configuration, of half the regions."""
        before = self._stamp
        while True:
            await asyncio.sleep(poll_s)
            found = self._stamps()
            if found == before and found != self._stamp:
                self.now()
            before = found

    def now(self) -> None:
        """Each file for itself: a key that is withdrawn is withdrawn, whatever else is wrong."""
        self._stamp = self._stamps()
        done: list[str] = []
        errors: list[str] = []
        for reload in (self._reload_keys, self._reload_certificates, self._reload_config):
            try:
                done += reload()
            except (ConfigError, KeysError, TlsError) as error:
                errors.append(str(error))
        status = self._status
        status.error = "; ".join(errors) or None
        if errors:
            status.failures += 1
            self._say(f"not reloaded, what was in force stays: {status.error}")
        else:
            status.reloads += 1
            status.loaded_at = time()
        if done:
            self._say(f"reloaded: {', '.join(done)}")

    def _reload_keys(self) -> list[str]:
        if not self._keys.required:
            return []
        self._keys.reload()
        return ["keys"]

    def _reload_certificates(self) -> list[str]:
        if self._certificates is None:
            return []
        done = self._certificates.reload(datetime.datetime.now(datetime.UTC))
        self._status.certificate_not_after = self._certificates.not_after
        return done

    def _reload_config(self) -> list[str]:
        config = load(self._config.path)
        plan = self._launcher.plan(config)
        try:
            planned = self._fleet.planned(config, token=self._token, origins=plan.origins)
        except ConfigError:
            self._launcher.discard(plan)
            raise
        before, changed = self._fleet.nodes, planned.changed
        retire = self._launcher.follow(plan)
        gone = self._fleet.follow(planned)
        self._prober.follow()
        task = asyncio.get_running_loop().create_task(self._drain(gone, retire))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)
        self._status.needs_restart = restart = tuple(
            item.name
            for item in fields(Config)
            if item.name not in _LIVE and getattr(config, item.name) != getattr(self._config, item.name)
        )
        return _told(before, planned.nodes, gone, changed, restart)

    async def _drain(self, gone: tuple[Node, ...], retire: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                while any(node.in_flight for node in gone):  # noqa: ASYNC110  # no event: requests only count up and down
                    await asyncio.sleep(_DRAIN_POLL_S)
        except TimeoutError:
            self._say(f"cut off what {', '.join(node.name for node in gone if node.in_flight)} had not ended")
        finally:
            for node in gone:
                node.pool.close()
            retire()

    def _stamps(self) -> Stamp:
        files = [self._config.path, *([self._config.keys] if self._config.keys is not None else [])]
        if self._certificates is not None:
            files += self._certificates.files
        return tuple(map(_stamp, files))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _told(
    before: tuple[Node, ...],
    after: tuple[Node, ...],
    gone: tuple[Node, ...],
    changed: tuple[Node, ...],
    restart: tuple[str, ...],
) -> list[str]:
    new = [node for node in after if node not in before]
    words = [f"{len(after)} nodes"]
    words += [f"new: {', '.join(node.name for node in new)}"] if new else []
    words += [f"gone: {', '.join(node.name for node in gone)}"] if gone else []
    words += [f"kept, with other settings: {', '.join(node.name for node in changed)}"] if changed else []
    words += [f"at the next start only: {', '.join(restart)}"] if restart else []
    return words
