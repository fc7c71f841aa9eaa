"""Where the messages of dropped blocks lay, so that a block whose Batch comes later can be read again.

Bounded; the oldest go first. Then such a block is one that lacks messages, like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .block import OpenBlock
from .keys import HASH_END
from .messages import BATCH
from .types import Partition, Record

TOMBSTONES_MAX: Final = 1024


class Tombstones:
    """The dropped blocks."""

    def __init__(self) -> None:
        self._places: dict[bytes, dict[Partition, int]] = {}
        self._reported: set[bytes] = set()

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block was dropped."""
        return block_hash in self._places

    def bury(self, block: OpenBlock) -> None:
        """Remember where a dropped block's messages begin."""
        self._places[block.hash] = dict(block.first)
        if len(self._places) > TOMBSTONES_MAX:
            self.lift(next(iter(self._places)))

    def wants_reading(self, record: Record) -> bool:
        """Note one more message of a dropped block; whether it is the first Batch of it to come."""
        block_hash = record.key[1:HASH_END]
        if record.partition >= 0:
            self._places[block_hash].setdefault((record.topic, record.partition), record.offset)
        if record.key[0] != BATCH or block_hash in self._reported:
            return False
        self._reported.add(block_hash)
        return True

    def positions(self, block_hash: bytes) -> Mapping[Partition, int]:
        """For every partition where the block's messages begin."""
        return dict(self._places[block_hash])

    def lift(self, block_hash: bytes) -> Mapping[Partition, int] | None:
        """Forget that the block was dropped; returns where its messages begin."""
        self._reported.discard(block_hash)
        return self._places.pop(block_hash, None)
