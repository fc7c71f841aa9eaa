"""Older records once more: blocks that were dropped are read again, many of them in one pass over the topics.

Rules:

1. A pass takes every block that waits to be read again, up to a bound, and reads each record at most once: from where
   the first of the blocks begins to where the reading stood when the last of them was asked for.
2. It ends sooner when all of its blocks are whole. Where none of those that are left begins for a while, it goes on
   where the next one does.
3. It gives out no more blocks, and no more bytes of them, before they are whole than there is room for: a block that
   would begin beyond that waits for the next pass. There is always room for one.
4. Partitions are kept in step: one that brought nothing that was wanted for long waits for the others, so that blocks
   that are whole early end the pass before it was read far beyond them in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError
from cardinal.protocols.streams.assembly.block import BATCH_OVERHEAD, BLOCK_OVERHEAD, MESSAGE_OVERHEAD
from cardinal.protocols.streams.quorum.standings import lowest
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.base import OneOrderSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source

BLOCKS_MAX: Final = 4_096
"""Of one pass."""


@dataclass(frozen=True, slots=True)
class Room:
    """What blocks that are read again may hold together before they are whole: their number, and bytes that they cost.

    Holding a small message costs several times its bytes: counted without that, what is read again would be dropped for
    want of room as it was the first time.
    """

    blocks: int = BLOCKS_MAX
    bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Where the records of one block lie that are to be read again: from these offsets up to those."""

    begin: Mapping[Partition, int]
    end: Mapping[Partition, int]

    def over(self, other: Span) -> Span:
        """Both, where a block was asked for twice."""
        return Span(lowest(self.begin, other.begin), _highest(self.end, other.end))


class Again:
    """The blocks to be read again. It belongs to one thread at a time.

    Arguments:
        open_source: opens the topics once more, at every pass.
        room: see :class:`Room`.

    """

    def __init__(self, open_source: Callable[[], Source], room: Room) -> None:
        self._open = open_source
        self._room = room
        self._waiting: dict[bytes, Span] = {}
        self._pass: Pass | None = None

    def __bool__(self) -> bool:
        """Whether there is something to read."""
        return self._pass is not None or bool(self._waiting)

    def add(self, block_hash: bytes, begin: Mapping[Partition, int], positions: Mapping[Partition, int]) -> None:
        """Read a block from these offsets on, as far as the reading stands."""
        known = {where: offset for where, offset in begin.items() if offset < positions.get(where, 0)}
        span = Span(known, {where: positions[where] for where in known})
        waiting = self._waiting.get(block_hash)
        self._waiting[block_hash] = span if waiting is None else span.over(waiting)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """The next records of the blocks, of ``limit`` that were read at most; empty where there are none.

        Raises:
            CardinalError: what opening and reading a source raises.

        """
        try:
            if self._pass is None:
                if not self._waiting:
                    return []
                self._pass = self._begin()
            now = self._pass
            found = now.poll(limit, timeout)
        except CursorExpiredError:
            if self._pass is not None:
                self._pass.put_off |= self._pass.spans
                self._end(self._pass)
            return []
        if now.at_end:
            self._end(now)
        return found

    def end(self, is_whole: Callable[[bytes], bool]) -> None:
        """Read no more of the blocks that are whole by now: what follows up to the present may be all of the topics.

        Arguments:
            is_whole: asked of the blocks of which the last poll gave records, while their pass goes on.

        """
        if self._pass is None:
            return
        for block_hash in self._pass.given:
            if is_whole(block_hash):
                self._pass.drop(block_hash)
                self._waiting.pop(block_hash, None)
        self._pass.given.clear()
        if not self._pass.spans:
            self._end(self._pass)

    def close(self) -> None:
        """Release the connection, if there is one. May be called twice."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _begin(self) -> Pass:
        source = self._open()
        try:
            chosen = dict(islice(self._waiting.items(), BLOCKS_MAX))
            begun = Pass(source, chosen, self._room)
        except BaseException:
            source.close()
            raise
        for block_hash in chosen:
            del self._waiting[block_hash]
        return begun

    def _end(self, ended: Pass) -> None:
        """What there was no room for comes first in the next one."""
        for block_hash, span in self._waiting.items():
            begun = ended.put_off.get(block_hash)
            ended.put_off[block_hash] = span if begun is None else span.over(begun)
        self._waiting = ended.put_off
        self.close()


class Pass:
    """One reading of the topics for several blocks.

    Arguments:
        source: what to read; closed with the pass.
        spans: where each of the blocks lies.
        room: for those that are not whole.

    Attributes:
        spans: the blocks that are not whole.
        given: the blocks of which the last poll gave records.
        put_off: those that there was no room for.

    """

    def __init__(self, source: Source, spans: Mapping[bytes, Span], room: Room) -> None:
        self.spans = dict(spans)
        self.given: set[bytes] = set()
        self.put_off: dict[bytes, Span] = {}
        self._source = source
        self._room = room
        self._apart = not (isinstance(source, OneOrderSource) and source.one_order)
        self._bytes = 0
        self._begun: dict[bytes, int] = {}
        self._ends = _highest(*(span.end for span in spans.values()))
        self._next: dict[Partition, int] | None = None
        self._in_vain: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        lows = source.watermarks()
        begin = self._where_next()
        self._assign({where: max(at, lows[where][0]) for where, at in begin.items() if where in lows})

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """See :meth:`Again.poll`."""
        self.given.clear()
        left = sum(max(0, self._ends[where] - at) for where, at in self._source.positions().items())
        records = self._source.poll(max(1, min(limit, left)), timeout)
        found = [record for record in records if self._wants(record)]
        if not found and records:
            self._skip(limit)
        if self._apart:
            self._keep_in_step(limit)
        return found

    @property
    def at_end(self) -> bool:
        """Whether nothing is left to read."""
        return not self.spans or all(at >= self._ends[where] for where, at in self._source.positions().items())

    def drop(self, block_hash: bytes) -> None:
        """A block is whole."""
        del self.spans[block_hash]
        self._next = None
        self._bytes -= self._begun.pop(block_hash)

    def close(self) -> None:
        """Release the connection."""
        self._source.close()

    # --- inside ----------------------------------------------------------------------------------------------

    def _wants(self, record: Record) -> bool:
        """Whether this is a record of one of the blocks; it is noted."""
        block_hash, where = record.key[1:HASH_END], (record.topic, record.partition)
        span = self.spans.get(block_hash)
        if span is None:
            self._in_vain[where] = self._in_vain.get(where, 0) + 1
            return False
        begun = self._begun.get(block_hash)
        if begun is None and self._begun and self._is_full():
            self.put_off[block_hash] = self.spans.pop(block_hash)
            self._next = None
            return False
        size = len(record.key) + len(record.value) + MESSAGE_OVERHEAD
        size += (BLOCK_OVERHEAD if begun is None else 0) + (BATCH_OVERHEAD if record.key[0] == BATCH else 0)
        self._begun[block_hash] = size + (begun or 0)
        self._bytes += size
        self._in_vain[where] = 0
        self.given.add(block_hash)
        return True

    def _is_full(self) -> bool:
        return len(self._begun) >= self._room.blocks or self._bytes >= self._room.bytes

    def _skip(self, limit: int) -> None:
        """Where the blocks that are left begin farther on than the next poll would come, go there."""
        positions, begin = self._source.positions(), self._where_next()
        onward = {where: max(at, begin.get(where, self._ends[where])) for where, at in positions.items()}
        if any(onward[where] - at > limit for where, at in positions.items()):
            self._assign(onward)

    def _where_next(self) -> dict[Partition, int]:
        """Where the first of the blocks that are left begins in every partition; found anew when there are fewer."""
        if self._next is None:
            self._next = lowest(*(span.begin for span in self.spans.values()))
        return self._next

    def _assign(self, positions: Mapping[Partition, int]) -> None:
        self._source.assign(positions)
        self._paused = set()
        self._in_vain = {}

    def _keep_in_step(self, limit: int) -> None:
        positions = self._source.positions()
        left = {where for where, at in positions.items() if at < self._ends[where]}
        ahead = {where for where in left if self._in_vain.get(where, 0) >= limit}
        if ahead == left:
            self._in_vain, ahead = {}, set()
        paused = ahead | (positions.keys() - left)
        if paused != self._paused:
            self._paused = paused
            self._source.pause(paused)


def _highest(*places: Mapping[Partition, int]) -> dict[Partition, int]:
    """For every partition the highest of these offsets."""
    found: dict[Partition, int] = {}
    for each in places:
        for partition, offset in each.items():
            found[partition] = max(offset, found.get(partition, offset))
    return found
