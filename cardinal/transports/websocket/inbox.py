"""Receive buffer of a client: bounded, in order within each partition, without gaps or duplicates.

Rules:

1. Every byte received counts against the window until it is delivered, evicted or ignored; a server that sends more
   than its credit is refused.
2. The chunks of a partition are contiguous. Records that were received before are ignored; a gap is refused.
3. Chunks of a paused partition are retained, so that they are not sent twice. When they exceed half of the window, the
   largest partition is evicted and re-read from its position.
4. Received records survive a connection: the next one continues after them.

The connection's thread adds, the reader's thread takes, under a lock. No I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

from cardinal.errors import CardinalError, RemoteProtocolError

from .protocol import ReceivedChunk, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record


@dataclass(slots=True)
class _Entry:
    """A chunk, its number in the order of arrival, and its undelivered records once they are decoded."""

    chunk: ReceivedChunk
    number: int
    records: list[Record] | None = None
    at: int = 0

    @property
    def size(self) -> int:
        return len(self.chunk.content)


@dataclass(slots=True)
class _Partition:
    """Progress of an assigned partition.

    Attributes:
        position: the next offset to deliver; ``received``: the next one that the server sends.
        read: the id of the READ that named its offset last.
        named: true if the next READ has to name its offset.
        paused: true if it is neither delivered nor sent.
        entries: its undelivered chunks.

    """

    position: int
    received: int
    read: int
    named: bool = False
    paused: bool = False
    entries: deque[_Entry] = field(default_factory=deque)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)


class Inbox:
    """Receive buffer of a source.

    Arguments:
        window: bytes that may be in flight or undelivered.
        chunk_max: bytes that a chunk may have when it is uncompressed.

    """

    def __init__(self, window: int, chunk_max: int) -> None:
        self._window = window
        self._chunk_max = chunk_max
        self._changed = threading.Condition()
        self._partitions: dict[Partition, _Partition] = {}
        self._received = 0
        self._credit = self._grantable = 0
        self._unread = False
        self._error: CardinalError | None = None
        self._ended: CardinalError | None = None

    # --- for the reader ----------------------------------------------------------------------------------------

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        with self._changed:
            return {tp: state.position for tp, state in self._partitions.items()}

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing of exactly these partitions."""
        paused = frozenset(partitions)
        with self._changed:
            for tp, state in self._partitions.items():
                if state.paused == (tp in paused):
                    continue
                state.paused = not state.paused
                self._unread = True
                if state.entries:
                    # Only the counted bytes stay in memory.
                    state.entries[0].records, state.entries[0].at = None, 0
            self._evict()

    def take(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records; empty after ``timeout`` seconds without any.

        Raises:
            CardinalError: the reading or the connection ended; raised after the records before that.

        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                records = self._deliver(limit)
                # The reading's end is repeated until the next assignment, the connection's end for ever.
                if not records and (error := self._error or self._ended):
                    raise error.with_traceback(None)
                left = deadline - time.monotonic()
                if records or left <= 0:
                    return records
                self._changed.wait(left)

    @property
    def due(self) -> bool:
        """True if the connection has a READ or credit to send."""
        return self._unread or self._due() > 0

    # --- for the connection --------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Partition, int], read: int) -> None:
        """Read these partitions from the READ with this id on; records received before are discarded."""
        with self._changed:
            self._grantable += sum(state.size for state in self._partitions.values())
            self._partitions = {tp: _Partition(position, position, read) for tp, position in positions.items()}
            self._unread, self._error = False, None

    def connected(self) -> None:
        """Begin a new connection: the next READ names all offsets, and no credit is granted yet."""
        with self._changed:
            for state in self._partitions.values():
                state.named = True
            self._unread = bool(self._partitions)
            self._error = None  # a server that still cannot read from there repeats it
            self._credit = 0
            self._grantable = max(0, self._window - sum(state.size for state in self._partitions.values()))

    def reading(self, read: int) -> dict[Partition, int | None] | None:
        """The positions that the READ with this id names; None where no READ is due."""
        with self._changed:
            if not self._unread:
                return None
            self._unread = False
            positions: dict[Partition, int | None] = {}
            for tp, state in self._partitions.items():
                if state.paused:
                    continue
                positions[tp] = state.received if state.named else None
                if state.named:
                    state.named, state.read = False, read
            return positions

    def add(self, read: int, chunks: Sequence[ReceivedChunk], size: int) -> None:
        """Accept a records message of ``size`` bytes.

        Raises:
            RemoteProtocolError: it exceeds the credit, or omits records.

        """
        with self._changed:
            if self._credit <= 0:
                raise RemoteProtocolError(f"the server sent {size} bytes beyond its credit")
            self._credit -= size
            self._grantable += size
            for chunk in chunks:
                state = self._partitions.get(chunk.tp)
                if state is None or state.named or read < state.read or chunk.next <= state.received:
                    continue
                if chunk.begin > state.received:
                    raise RemoteProtocolError(
                        f"the server left out the records from {state.received} to {chunk.begin} of "
                        f"{chunk.tp[0]}:{chunk.tp[1]}"
                    )
                state.received = chunk.next
                self._received += 1
                state.entries.append(_Entry(chunk, self._received))
                self._grantable -= len(chunk.content)
            self._evict()
            self._changed.notify_all()

    def grant(self) -> int:
        """The credit to grant now, counted as granted; 0 until it is worth a message."""
        with self._changed:
            due = self._due()
            self._grantable -= due
            self._credit += due
            return due

    def fail(self, error: CardinalError) -> None:
        """End the reading: :meth:`take` raises this until the next assignment."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def end(self, error: CardinalError) -> None:
        """End the source: :meth:`take` raises this from now on."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------------------------------------

    def _deliver(self, limit: int) -> list[Record]:
        """Records of the chunks that came first, of partitions that are not paused."""
        records: list[Record] = []
        states = [state for state in self._partitions.values() if state.entries and not state.paused]
        ready = [(state.entries[0].number, state) for state in states]
        heapify(ready)  # numbers differ: partitions are not compared
        while ready and len(records) < limit:
            state = ready[0][1]
            entry = state.entries[0]
            if entry.records is None:
                decoded = decode_records(entry.chunk, self._chunk_max)
                if entry.chunk.begin < state.position:
                    decoded = [record for record in decoded if record.offset >= state.position]
                entry.records = decoded
            part = entry.records[entry.at : entry.at + limit - len(records)]
            records += part
            entry.at += len(part)
            if entry.at == len(entry.records):
                state.position = entry.chunk.next
                self._grantable += entry.size
                state.entries.popleft()
                if state.entries:
                    heapreplace(ready, (state.entries[0].number, state))
                else:
                    heappop(ready)
            elif part:
                state.position = part[-1].offset + 1
        return records

    def _evict(self) -> None:
        held = {tp: state.size for tp, state in self._partitions.items() if state.paused}
        while sum(held.values()) * 2 > self._window:
            largest = max(held, key=held.__getitem__)
            self._grantable += held.pop(largest)
            state = self._partitions[largest]
            state.entries.clear()
            state.received, state.named = state.position, True

    def _due(self) -> int:
        few = self._grantable * 4 < self._window and self._credit > self._window // 4
        return 0 if few else self._grantable
