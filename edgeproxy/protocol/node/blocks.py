"""Which prefixes a native node holds: the events of GET /node/v1/events, and what a router learns from them. Pure.

A node names its KV blocks by keys of token ids, which a proxy cannot compute from a text. It need not: the answer to
each request names the last full block of its prompt (`PREFIX_HEADER`), and the feed tells when that block, and then
those before it, are evicted. A block is never evicted before those that continue it, so what is left of a prompt is
always its beginning: `HeldBlocks.left` tells it.

    event: snapshot     data: {"kind": "snapshot", "run", "seq", "numerics", "block_tokens", "part", "parts", "blocks"}
    event: change       data: {"kind": "change", "run", "seq", "changes"}

`blocks` is a list of [key, parent], `changes` one of ["+" or "-", key, parent], in hex; the first block of a sequence
has an empty parent. The parts of a snapshot come one after the other and are one event of one `seq`. A reader that
comes back with `last-event-id` gets the changes since then, or a snapshot where they are not remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

PREFIX_HEADER = b"x-node-prefix"
"""Of an answer to whoever holds the node token: `KEY;blocks=N`, the prompt's last full block and how many it has."""
EVENT_BLOCKS = 4096
"""Most blocks in one event: some 300 KiB, well below what a reader of event streams takes."""
MAX_BLOCKS = 1 << 21
"""Of a node, that a reader keeps."""
MAX_EVICTED = 1 << 16
"""Evicted blocks whose predecessor a reader remembers."""
MAX_KEY_BYTES = 64

Block = tuple[bytes, bytes]
"""Key, and the key of the block before it."""
BlockChange = tuple[bool, bytes, bytes]
"""Added or removed, key, key of the block before it."""


class Prefix(NamedTuple):
    """The full blocks of a prompt."""

    tail: bytes
    """Key of the last of them."""
    blocks: int

    def encode(self) -> bytes:
        return b"%b;blocks=%d" % (self.tail.hex().encode(), self.blocks)


class Snapshot(NamedTuple):
    """One part of all blocks held, each after the one before it."""

    run: str
    """Names one life of the node: its sequence numbers mean nothing in another."""
    seq: int
    numerics: str
    block_tokens: int
    part: int
    """From 0."""
    parts: int
    blocks: Sequence[Block]

    def encode(self) -> bytes:
        view = {
            "kind": "snapshot",
            "run": self.run,
            "seq": self.seq,
            "numerics": self.numerics,
            "block_tokens": self.block_tokens,
            "part": self.part,
            "parts": self.parts,
            "blocks": [[key.hex(), parent.hex()] for key, parent in self.blocks],
        }
        whole = self.part + 1 == self.parts
        return _event(b"snapshot", view, position(self.run, self.seq) if whole else None)


class Change(NamedTuple):
    run: str
    seq: int
    changes: Sequence[BlockChange]

    def encode(self) -> bytes:
        changes = [["+" if added else "-", key.hex(), parent.hex()] for added, key, parent in self.changes]
        view = {"kind": "change", "run": self.run, "seq": self.seq, "changes": changes}
        return _event(b"change", view, position(self.run, self.seq))


class Gap(ValueError):
    """An event is missing: read the feed anew, without `last-event-id`."""


class HeldBlocks:
    """What one node holds, as far as its feed told. Bounded, whatever the node says."""

    def __init__(self) -> None:
        self._run = ""
        self._seq = -1
        self._part = 0
        """The part of a snapshot that is to come next."""
        self._staged: dict[bytes, bytes] = {}
        self._parents: dict[bytes, bytes] = {}
        self._evicted: OrderedDict[bytes, bytes] = OrderedDict()
        """Key to the key of the block before, the first evicted first."""
        self.block_tokens = 0
        self.numerics = ""

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, key: bytes) -> bool:
        return key in self._parents

    @property
    def position(self) -> str | None:
        """For `last-event-id`; None before the first snapshot is whole."""
        return position(self._run, self._seq) if self._run else None

    @property
    def whole(self) -> bool:
        """No part of a snapshot is still to come."""
        return self._part == 0

    def apply(self, event: Snapshot | Change) -> None:
        """Raises Gap where an event is missing before this one, ValueError for more blocks than a node has."""
        if isinstance(event, Snapshot):
            self._stage(event)
            return
        if event.run != self._run or event.seq != self._seq + 1:
            raise Gap(f"the feed went from {self.position} to {position(event.run, event.seq)}")
        for added, key, parent in event.changes:
            if added:
                self._parents[key] = parent
                self._evicted.pop(key, None)
            else:
                self._evict(key, parent)
        if len(self._parents) > MAX_BLOCKS:
            raise ValueError(f"a node tells of more than {MAX_BLOCKS} blocks")
        self._seq = event.seq

    def left(self, prefix: Prefix) -> Prefix | None:
        """What is held of the blocks of a prompt: always its beginning. None for nothing, and where it is not known."""
        key, blocks = prefix.tail, prefix.blocks
        while blocks > 0 and key not in self._parents:
            key, blocks = self._evicted.get(key, b""), blocks - 1
        return Prefix(key, blocks) if blocks > 0 else None

    def _stage(self, part: Snapshot) -> None:
        if part.part == 0:
            self._staged, self._part = {}, 0
        if part.part != self._part:
            raise Gap(f"part {part.part} of a snapshot came instead of {self._part}")
        self._staged.update(part.blocks)
        if len(self._staged) > MAX_BLOCKS:
            raise ValueError(f"a node tells of more than {MAX_BLOCKS} blocks")
        self._part += 1
        if self._part < part.parts:
            return
        before, self._parents, self._staged, self._part = self._parents, self._staged, {}, 0
        for key, parent in before.items():
            if key not in self._parents:
                self._remember(key, parent)
        self._run, self._seq = part.run, part.seq
        self.numerics, self.block_tokens = part.numerics, part.block_tokens

    def _evict(self, key: bytes, parent: bytes) -> None:
        if self._parents.pop(key, None) is not None:
            self._remember(key, parent)

    def _remember(self, key: bytes, parent: bytes) -> None:
        self._evicted[key] = parent
        if len(self._evicted) > MAX_EVICTED:
            self._evicted.popitem(last=False)


def position(run: str, seq: int) -> str:
    """An event's `id`."""
    return f"{run}-{seq}"


def decode(data: bytes) -> Snapshot | Change:
    """An event's data. Raises ValueError on anything that a sound node would not send."""
    try:
        value: Any = orjson.loads(data)
        if value["kind"] == "change":
            changes = [(_ADDED[sign], _key(key), _parent(parent)) for sign, key, parent in value["changes"]]
            return Change(_text(value["run"]), _count(value["seq"]), changes)
        if value["kind"] != "snapshot":
            raise ValueError("of a kind that is not known")
        return Snapshot(
            run=_text(value["run"]),
            seq=_count(value["seq"]),
            numerics=_text(value["numerics"]),
            block_tokens=_count(value["block_tokens"]),
            part=_count(value["part"]),
            parts=_count(value["parts"]),
            blocks=[(_key(key), _parent(parent)) for key, parent in value["blocks"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an event of a node's feed cannot be read: {error}") from error


def decode_prefix(raw: bytes) -> Prefix:
    """Raises ValueError."""
    key, separator, count = raw.partition(b";blocks=")
    if not separator or not count.isdigit() or len(count) > 9:
        raise ValueError("a node's prefix is not KEY;blocks=N")
    return Prefix(_key(key.decode("ascii", "replace")), int(count))


_ADDED = {"+": True, "-": False}


def _event(name: bytes, data: dict[str, Any], identity: str | None) -> bytes:
    known = b"" if identity is None else b"id: %b\n" % identity.encode()
    return b"event: %b\n%bdata: %b\n\n" % (name, known, orjson.dumps(data))


def _key(value: Any) -> bytes:
    key = bytes.fromhex(value)
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has {len(key)} bytes")
    return key


def _parent(value: Any) -> bytes:
    return _key(value) if value != "" else b""


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1024:
        raise ValueError("a name is no short string")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a number is no count")
    return value
