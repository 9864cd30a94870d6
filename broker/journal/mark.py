"""The mark: how far a store was synced, kept outside the store. Only this small file lives here.

SQLite answers a damaged write-ahead log by dropping, without a word, the damaged transaction and
all that follow it. The store that is left looks sound, only shorter. So the number of the last
write that is known to be synced is kept beside the store, in a file of its own: a store that has
fewer writes than its mark has lost some.

The mark may lag behind the store, and may be missing: then it only proves less. It must never run
ahead, so it is written after the sync, never before. It is not synced itself, for the same
reason: an older mark does no harm. Two slots are written in turn, a page apart, so a torn write
costs one of them and the other one is whole.
"""

from __future__ import annotations

import logging
import os
import struct
from typing import NamedTuple
from zlib import crc32

log = logging.getLogger(__name__)

_BODY = struct.Struct("<8s16sQQ")
_CHECK = struct.Struct("<I")
_MAGIC = b"fairlead"
_SLOT_BYTES = _BODY.size + _CHECK.size
_SLOT_DISTANCE = 4096
_SLOTS = (0, _SLOT_DISTANCE)


class Synced(NamedTuple):
    """What a mark says: the store it belongs to and the last write of it that was synced."""

    store_id: bytes
    writes: int


def look(path: str) -> Synced | None:
    """What the mark of a store says, for those who do not write it. None when there is none."""
    try:
        mark = Mark(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return mark.read()
    finally:
        mark.close()


class Mark:
    """The mark file of one store, open for rewriting in place."""

    def __init__(self, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self._path = path
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._turn = 0
        self._slot = 0

    def read(self) -> Synced | None:
        """What the newest whole slot says; None when there is none. A torn slot is only logged."""
        newest: Synced | None = None
        for index, offset in enumerate(_SLOTS):
            slot = os.pread(self._fd, _SLOT_BYTES, offset)
            if not slot.strip(b"\0"):
                continue  # never written
            synced = self._parse(slot)
            if synced is None:
                log.warning("mark %s: slot %d is torn or damaged and is ignored", self._path, index)
                continue
            turn, found = synced
            if turn > self._turn:
                # The next write goes to the other slot: this one is the last that is whole.
                self._turn, self._slot, newest = turn, 1 - index, found
        return newest

    def write(self, store_id: bytes, writes: int) -> None:
        """Say that ``writes`` are synced. To be called after that sync has succeeded."""
        self._turn += 1
        body = _BODY.pack(_MAGIC, store_id, self._turn, writes)
        os.pwrite(self._fd, body + _CHECK.pack(crc32(body)), _SLOTS[self._slot])
        self._slot = 1 - self._slot

    def close(self) -> None:
        os.close(self._fd)

    @staticmethod
    def _parse(slot: bytes) -> tuple[int, Synced] | None:
        if len(slot) != _SLOT_BYTES:
            return None
        body, (check,) = slot[: _BODY.size], _CHECK.unpack(slot[_BODY.size :])
        magic, store_id, turn, writes = _BODY.unpack(body)
        if magic != _MAGIC or check != crc32(body):
            return None
        return turn, Synced(store_id, writes)
