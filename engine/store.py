"""The second tier of KV: a file of blocks that outlives the node, so that a restart keeps its hot prefixes.

    header [4096] | entries [records][64] | blocks [records][block_bytes]

A block is found by its name (`kv.name_blocks`), which stands for all tokens up to its end and their salt; the file
holds no token. What is read counts only if its checksum is right, and an entry is written after its block: a node
killed while it writes, a byte flipped or a file cut short makes blocks unknown, never wrong. The file is read and not
mapped, since a mapping cut short by someone else kills its process.

Writes happen in a thread of the store's own; where they are slower than evictions, blocks are dropped. One process at a
time has the file. A failing disk ends the tier, not the node.
"""

from __future__ import annotations

import fcntl
import logging
import os
import queue
import struct
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from xxhash import xxh3_64, xxh3_64_intdigest

from engine.kv import NAME_BYTES
from engine.step import BLOCK_TOKENS

logger = logging.getLogger(__name__)

MOST_RECORDS = 1 << 16
"""Of one file: bounds the index in memory and the time to read it at start."""
QUEUED_BYTES = 32 << 20
"""Blocks that wait to be written."""
_MAGIC = b"edgekv\x00\x01"  # the last byte counts versions
_HEADER = struct.Struct("<8sQQ32s")  # magic, block bytes, records, identity; then xxh3_64 of these
_HEADER_BYTES = 4096
_ENTRY = struct.Struct("<32sQQ16x")  # name, xxh3_64 of name and block, order of use (0: empty)
_CHECKSUM = struct.Struct("<Q")


class StoreError(ValueError):
    """The store cannot be used; the message says why and what to do."""


@dataclass(slots=True, eq=False)
class _Record:
    index: int
    checksum: int
    written: bool


class BlockStore:
    """Least recently used blocks give way. All methods belong to one thread."""

    def __init__(self, path: Path, nbytes: int, *, numerics: str, block_bytes: int) -> None:
        """Opens or makes the file. What other numerics, another size of blocks or of the file left in it is discarded.

        nbytes: of the whole file. Raises StoreError.
        """
        self.path = path
        self._block_bytes = block_bytes
        room = (nbytes - _HEADER_BYTES) // (block_bytes + _ENTRY.size)
        self._count = min(room, MOST_RECORDS)
        if self._count < 1:
            least = _HEADER_BYTES + _ENTRY.size + block_bytes
            raise StoreError(f"a KV store of {nbytes} bytes holds no block: --kv-store-size must be at least {least}")
        if room > MOST_RECORDS:
            logger.warning(
                "%s: %d blocks are the most of one file: %d bytes of it are used", path, self._count, self._end
            )
        self._header = _header(block_bytes, self._count, numerics)
        self._index: OrderedDict[bytes, _Record] = OrderedDict()
        """By use, the next to give way first."""
        self._free: list[int] = []
        self._buffer = memoryview(bytearray(block_bytes))
        self._fd = _opened(path)
        try:
            self._read()
        except OSError as error:
            os.close(self._fd)
            raise StoreError(f"{path}: {error.strerror}: name another --kv-store, or go without") from error
        except BaseException:
            os.close(self._fd)
            raise
        self.broken = False
        self._queue: queue.Queue[tuple[bytes, _Record, bytes] | None] = queue.Queue(
            max(1, QUEUED_BYTES // block_bytes),
        )
        self._writer = threading.Thread(target=self._write, name="kv-store", daemon=True)
        self._writer.start()
        self.found = 0
        """Blocks that were read."""
        self.damaged = 0
        """Blocks whose checksum was wrong."""
        self.dropped = 0
        """Blocks that were not kept, because the disk was too slow or failed."""

    @property
    def capacity(self) -> int:
        """Blocks that it can hold."""
        return self._count

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: bytes) -> bool:
        record = self._index.get(name)
        return record is not None and record.written

    def get(self, name: bytes) -> memoryview | None:
        """The block of that name, valid until the next call; None where it is not there or not sound any more."""
        record = self._index.get(name)
        if record is None or not record.written:
            return None
        read = 0
        with suppress(OSError):
            read = os.preadv(self._fd, [self._buffer], self._place(record.index))
        if read != self._block_bytes or _checksum(name, self._buffer) != record.checksum:
            self._found_damage()
            del self._index[name]
            self._free.append(record.index)
            return None
        self._index.move_to_end(name)
        self.found += 1
        return self._buffer

    def _found_damage(self) -> None:
        if not self.damaged:  # once: a whole file may be damaged
            logger.warning(
                "%s: a block is damaged: it is forgotten and computed again, like all others found so", self.path
            )
        self.damaged += 1

    def put(self, name: bytes, block: bytes, timeout_s: float = 0.0) -> None:
        """Keeps a block; drops it where the writer has too much to do and does not catch up within timeout_s."""
        if name in self._index:
            self._index.move_to_end(name)
            return
        record = _Record(-1, _checksum(name, block), written=False)
        if self.broken or not self._enqueue(name, record, block, timeout_s):
            if not self.dropped and not self.broken:
                logger.warning("%s: the disk is slower than evictions: some blocks are not kept", self.path)
            self.dropped += 1
            return
        self._index[name] = record

    def touch(self, name: bytes) -> None:
        """Makes a block, if it is there, the one used last."""
        if name in self._index:
            self._index.move_to_end(name)

    def discard(self) -> None:
        """Nothing that it holds is to be found again, by this process or a later one; no more is kept."""
        self.broken = True
        self._index.clear()
        with suppress(OSError):
            _write_all(self._fd, _header(self._block_bytes, self._count, ""), 0)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what waits, as far as it takes no longer, and in which order blocks were used. Idempotent."""
        if self._fd < 0:
            return
        deadline = time.monotonic() + timeout_s
        with suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
            self._writer.join(max(0.0, deadline - time.monotonic()))
        if self._writer.is_alive():
            logger.warning("%s: the disk is too slow; some blocks were not written", self.path)
            return  # the descriptor is in use; the process is about to end
        try:
            self._write_entries()
        except OSError as error:
            logger.warning("%s: %s: a restarted node finds its blocks in an older order", self.path, error.strerror)
        os.close(self._fd)
        self._fd = -1

    def _enqueue(self, name: bytes, record: _Record, block: bytes, timeout_s: float) -> bool:
        if self._queue.full() and timeout_s <= 0:
            return False
        record.index = self._free.pop() if self._free else self._index.popitem(last=False)[1].index
        try:
            self._queue.put((name, record, block), timeout=max(timeout_s, 0.001))
        except queue.Full:
            self._free.append(record.index)
            return False
        return True

    def _place(self, index: int) -> int:
        return _HEADER_BYTES + self._count * _ENTRY.size + index * self._block_bytes

    @property
    def _end(self) -> int:
        return self._place(self._count)

    def _read(self) -> None:
        """Raises OSError and StoreError."""
        size = os.fstat(self._fd).st_size
        header = os.pread(self._fd, len(self._header), 0)
        if size and not header.startswith(_MAGIC[:-1]):
            raise StoreError(f"{self.path} is no KV store: name another --kv-store, or remove the file")
        if size and header != self._header:
            logger.warning("%s: %s: what it held is discarded, and it begins empty", self.path, self._unusable(header))
        if header != self._header:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, self._header, 0)
        os.ftruncate(self._fd, self._end)
        table = os.pread(self._fd, self._count * _ENTRY.size, _HEADER_BYTES)
        entries = sorted(
            (order, index, name, checksum)
            for index, (name, checksum, order) in enumerate(_ENTRY.iter_unpack(table))
            if order
        )
        for _, index, name, checksum in entries:
            self._index.pop(name, None)
            self._index[name] = _Record(index, checksum, written=True)
        used = {record.index for record in self._index.values()}
        self._free = [index for index in reversed(range(self._count)) if index not in used]
        self._order = entries[-1][0] if entries else 0

    def _unusable(self, header: bytes) -> str:
        """Why another header than ours stands for nothing that can be used."""
        if len(header) < len(self._header) or header[_HEADER.size :] != _checksum_of(header[: _HEADER.size]):
            return "its head is damaged"
        magic, block_bytes, count, identity = _HEADER.unpack_from(header)
        if magic != _MAGIC:
            return "it was written in another version's format"
        if identity != _HEADER.unpack_from(self._header)[3]:
            return "it holds KV of other numerics (another model, build or KV type)"
        if block_bytes != self._block_bytes:
            return f"its blocks have {block_bytes} bytes, and this node's {self._block_bytes}"
        return f"it has room for {count} blocks, and --kv-store-size now asks for {self._count}"

    def _write(self) -> None:
        """The writer's thread."""
        while (item := self._queue.get()) is not None:
            name, record, block = item
            if self.broken:
                continue
            try:
                _write_all(self._fd, block, self._place(record.index))
                self._order += 1
                entry = _ENTRY.pack(name, record.checksum, self._order)
                _write_all(self._fd, entry, _HEADER_BYTES + record.index * _ENTRY.size)
                record.written = True
            except OSError as error:
                self.broken = True
                logger.warning("%s: %s: the node goes on without it", self.path, error.strerror)

    def _write_entries(self) -> None:
        table = bytearray(self._count * _ENTRY.size)
        for order, (name, record) in enumerate(self._index.items(), 1):
            if record.written:
                _ENTRY.pack_into(table, record.index * _ENTRY.size, name, record.checksum, order)
        _write_all(self._fd, bytes(table), _HEADER_BYTES)


def _opened(path: Path) -> int:
    """The file, locked. Readable by its owner alone: what it holds was made of users' texts."""
    try:
        if path.exists() and not path.is_file():  # looked at first: to open a pipe or a device may already do something
            raise StoreError(f"{path} is no regular file: name another --kv-store")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}: name another --kv-store") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StoreError(f"{path} is in use by another node: give each its own --kv-store") from error
    except OSError as error:
        os.close(fd)
        raise StoreError(f"{path} cannot be locked ({error.strerror}): name a --kv-store on a local disk") from error
    return fd


def _header(block_bytes: int, count: int, numerics: str) -> bytes:
    identity = blake2b(f"{BLOCK_TOKENS} {NAME_BYTES} {numerics}".encode(), digest_size=32).digest()
    header = _HEADER.pack(_MAGIC, block_bytes, count, identity)
    return header + _checksum_of(header)


def _checksum_of(header: bytes) -> bytes:
    return _CHECKSUM.pack(xxh3_64_intdigest(header))


def _checksum(name: bytes, block: bytes | memoryview) -> int:
    checksum = xxh3_64(name)
    checksum.update(block)
    return int(checksum.intdigest())


def _write_all(fd: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(fd, left, offset)
        left, offset = left[done:], offset + done
