"""The second tier as the tables see it (`tables.Tier`): blocks go from the executor's KV to a file and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.executor.base import Executor
from engine.store import BlockStore

logger = logging.getLogger(__name__)


class StoreTier:
    """Between an executor's KV and a file. Belongs to the engine's thread."""

    def __init__(self, executor: Executor, store: BlockStore) -> None:
        self._executor = executor
        self._store = store

    def holds(self, name: bytes) -> bool:
        return name in self._store

    def load(self, name: bytes, block: int) -> bool:
        content = self._store.get(name)
        if content is None:
            return False
        self._executor.write_block(block, content)
        return True

    def evicted(self, name: bytes, block: int) -> None:
        self._keep(name, block, 0.0)

    def flush(
        self,
        contents: Sequence[tuple[bytes, int]],
        seconds: float,
        clock: Callable[[], float],
        unwanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keeps all of `contents`, the least recently used first, as far as there is room and time.

        unwanted: asked before each block; where it says so, the rest is left.
        """
        kept = contents[-self._store.capacity :]
        deadline = clock() + seconds
        for done, (name, block) in enumerate(reversed(kept)):  # time that runs out costs what was used least
            left = deadline - clock()
            if left <= 0:
                logger.warning(
                    "%s: no time was left for %d of %d blocks: they are lost",
                    self._store.path,
                    len(kept) - done,
                    len(kept),
                )
            if left <= 0 or unwanted():
                break
            self._keep(name, block, left)
        for name, _ in kept:
            self._store.touch(name)

    def _keep(self, name: bytes, block: int, timeout_s: float) -> None:
        if name in self._store:
            self._store.touch(name)
        else:
            self._store.put(name, self._executor.read_block(block), timeout_s)
