"""Receive buffer of a client, and what the server has to know of it: bounded, in order, without gaps or duplicates.

Rules:

1. Every byte received counts against the window until it is delivered, evicted or ignored; a server that sends more
   than its credit is refused.
2. The chunks of a partition are contiguous. Records that were received before are ignored; a gap is refused.
3. Chunks of a paused partition are retained, so that they are not sent twice. When they exceed half of the window, they
   are evicted and read again.
4. Received records survive a connection: the next one continues after them.

The connection's thread adds, the reader's thread takes, under a lock. No I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardinal.errors import CardinalError, RemoteProtocolError

from .protocol import Credit, Pause, Read, ReceivedChunk, decode_records, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record

    from .protocol import Request


@dataclass(slots=True)
class _Entry:
    """A chunk, and its records once they are decoded; ``at``: the first undelivered one."""

    chunk: ReceivedChunk
    records: list[Record] | None = None
    at: int = 0

    @property
    def size(self) -> int:
        return len(self.chunk.content)


@dataclass(slots=True)
class _Partition:
    """An assigned partition: the next offset to deliver, and the next one to receive."""

    position: int
    received: int


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
        self._paused: frozenset[Partition] = frozenset()
        self._entries: deque[_Entry] = deque()
        self._held = self._credit = 0
        self._read = 0  # the id of the READ that the server has to follow
        self._read_due = self._pause_due = False
        self._error: CardinalError | None = None
        self._ended: CardinalError | None = None

    # --- for the reader ----------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions, and no other; records received before are discarded."""
        with self._changed:
            self._partitions = {tp: _Partition(position, position) for tp, position in positions.items()}
            self._paused, self._error = frozenset(), None
            self._entries.clear()
            self._held = 0
            self._read_again()

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        with self._changed:
            return {tp: state.position for tp, state in self._partitions.items()}

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing of exactly these partitions."""
        with self._changed:
            paused = self._partitions.keys() & partitions
            if paused == self._paused:
                return
            self._paused, self._pause_due = frozenset(paused), True
            for entry in self._entries:
                if entry.records is not None and entry.chunk.tp in paused:
                    entry.records, entry.at = None, 0  # only the counted bytes stay in memory
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
        """True if there are :meth:`requests` to send."""
        return self._read_due or self._pause_due or self._grantable * 4 >= self._window

    # --- for the connection --------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Begin a new connection: the server knows nothing yet, and has no credit."""
        with self._changed:
            self._credit = 0
            self._error = None  # a server that still cannot read from there repeats it
            self._read_again()

    def requests(self) -> list[Request]:
        """The requests to send now, in this order; they count as sent."""
        with self._changed:
            requests: list[Request] = []
            if self._read_due and self._partitions:
                requests.append(Read(self._read, rows({tp: one.received for tp, one in self._partitions.items()})))
            if self._pause_due:
                requests.append(Pause(tuple(self._paused)))
            if (size := self._grantable) * 4 >= self._window:
                requests.append(Credit(size))
                self._credit += size
            self._read_due = self._pause_due = False
            return requests

    def add(self, read: int, chunks: Sequence[ReceivedChunk], size: int) -> None:
        """Accept a records message of ``size`` bytes.

        Raises:
            RemoteProtocolError: it exceeds the credit, or omits records.

        """
        with self._changed:
            if self._credit <= 0:
                raise RemoteProtocolError(f"the server sent {size} bytes beyond its credit")
            self._credit -= size
            for chunk in chunks if read == self._read else ():
                state = self._partitions.get(chunk.tp)
                if state is None or chunk.next <= state.received:
                    continue
                if chunk.begin > state.received:
                    raise RemoteProtocolError(
                        f"the server left out the records from {state.received} to {chunk.begin} of "
                        f"{chunk.tp[0]}:{chunk.tp[1]}"
                    )
                state.received = chunk.next
                self._entries.append(_Entry(chunk))
                self._held += len(chunk.content)
            self._evict()
            self._changed.notify_all()

    def fail(self, read: int, error: CardinalError) -> None:
        """End the reading of a READ: :meth:`take` raises this until the next assignment."""
        with self._changed:
            if read == self._read:
                self._error = error
                self._changed.notify_all()

    def end(self, error: CardinalError) -> None:
        """End the source: :meth:`take` raises this from now on."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    # --- inside ------------------------------------------------------------------------------------------------

    @property
    def _grantable(self) -> int:
        return self._window - self._held - self._credit

    def _read_again(self) -> None:
        self._read += 1
        self._read_due, self._pause_due = True, bool(self._paused)

    def _deliver(self, limit: int) -> list[Record]:
        """Records of the chunks that came first, of partitions that are not paused."""
        records: list[Record] = []
        skipped: list[_Entry] = []
        while self._entries and len(records) < limit:
            entry = self._entries.popleft()
            if entry.chunk.tp in self._paused:
                skipped.append(entry)
                continue
            state = self._partitions[entry.chunk.tp]
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
                self._held -= entry.size
            else:
                state.position = part[-1].offset + 1
                self._entries.appendleft(entry)
        self._entries.extendleft(reversed(skipped))
        return records

    def _evict(self) -> None:
        if not self._paused:
            return
        if 2 * sum(one.size for one in self._entries if one.chunk.tp in self._paused) <= self._window:
            return
        self._entries = deque(one for one in self._entries if one.chunk.tp not in self._paused)
        self._held = sum(one.size for one in self._entries)
        for tp in self._paused:
            self._partitions[tp].received = self._partitions[tp].position
        self._read_again()
