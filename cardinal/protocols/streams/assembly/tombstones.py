"""Where the messages of dropped blocks lay, so that a block whose Batch comes later can be read again.

Bounded; the oldest go first. Then such a block is one that lacks messages, like any other.

A dropped block is still needed until it is whole or given up, or the chain is past it: a stream that is resumed has to
find its messages. So they hold back where that begins to read, but for a set distance in records at most: many of these
blocks are what somebody left half written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from cardinal.protocols.streams.following.floors import FadingPins
from cardinal.protocols.streams.types import Partition, Position, Record
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH

from .block import OpenBlock

TOMBSTONES_MAX: Final = 32_768
"""Each takes 0.6 to 1.4 kB (6 to 20 partitions, measured), and three times all blocks that may be open have a place.

One that is forgotten cannot be told from one that lost messages: of 2,002 dropped blocks a bound of 1,024 made 978
without content.
"""
_BATCHES: Final = 4
"""Of one block, each of which asks for it to be read again."""
_NOWHERE: Final = MappingProxyType[Partition, int]({})


class Tombstones:
    """The dropped blocks.

    Arguments:
        distance: records after which they hold nothing back any more.

    """

    def __init__(self, distance: int) -> None:
        self._pins = FadingPins(distance)
        self.lowest = self._pins.lowest
        """Where the messages of what is needed begin in every partition, so many records after the first of all."""
        self.passed = self._pins.passed
        """The chain is past blocks with a lower number: they are needed no longer."""
        self._places: dict[bytes, dict[Partition, int]] = {}
        self._reported: set[bytes] = set()
        self._batches: dict[bytes, set[Position]] = {}
        self._read_again: dict[bytes, Mapping[Partition, int]] = {}

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block was dropped."""
        return block_hash in self._places

    def blocks(self) -> Collection[bytes]:
        """The dropped blocks, oldest first."""
        return self._places.keys()

    @property
    def pending(self) -> bool:
        """Whether there are dropped blocks that are not whole, or that are being read again."""
        return bool(self._places or self._read_again)

    def bury(self, block: OpenBlock) -> None:
        """Remember where a dropped block's messages begin."""
        places = self._places[block.hash] = dict(block.first)
        self._pins.put(block.hash, places, None if block.fields is None else block.fields.number)
        if len(self._places) > TOMBSTONES_MAX:
            self.lift(next(iter(self._places)))

    def wants_reading(self, record: Record) -> bool:
        """Note one more message of a dropped block; whether it is a Batch of it that has not come before.

        One that is dropped again while it is read again is not asked for at once: for want of room it might be dropped
        for ever.
        """
        block_hash = record.key[1:HASH_END]
        places, where = self._places[block_hash], (record.topic, record.partition)
        if record.partition >= 0 and where not in places:
            places[where] = record.offset
            if block_hash in self._pins:
                self._pins.reach(where, record.offset)
        if record.key[0] != BATCH:
            return False
        known = self._batches.setdefault(block_hash, set())
        if record[:3] in known or len(known) >= _BATCHES:
            return False
        known.add(record[:3])
        if block_hash in self._reported:
            return False
        self._reported.add(block_hash)
        return True

    def positions(self, block_hash: bytes) -> Mapping[Partition, int]:
        """For every partition where the block's messages begin."""
        return dict(self._places[block_hash])

    def lift(self, block_hash: bytes, known: Mapping[Partition, int] | None = None) -> Mapping[Partition, int] | None:
        """Forget that the block was dropped; returns where its messages begin.

        Arguments:
            block_hash: whose messages are read again now.
            known: where they begin, if somebody else knows it.

        """
        self._reported.discard(block_hash)
        found = self._places.pop(block_hash, None)
        if places := known or found:
            self._read_again[block_hash] = places
            self._pins.put(block_hash, places)
            if len(self._read_again) > TOMBSTONES_MAX:
                self.settled(next(iter(self._read_again)))
        else:
            self._batches.pop(block_hash, None)
        return found

    def begins(self, block_hash: bytes) -> Mapping[Partition, int]:
        """Where a block begins whose messages are read again: it may be dropped once more before all of them are."""
        return self._read_again.get(block_hash, _NOWHERE)

    def settled(self, block_hash: bytes) -> None:
        """A block is whole, given up, or needed no longer."""
        self._pins.discard(block_hash)
        self._read_again.pop(block_hash, None)
        self._batches.pop(block_hash, None)
