"""Recent records, in memory once for all clients.

Rules:

1. It keeps the newest chunks, at most so many bytes and so many chunks. It never waits for a client.
2. Of each partition it holds everything between ``low`` and ``high``, and nothing else.
3. Chunks are encoded once; every client is sent the same bytes.

One thread fills it, another reads; a lock stands between them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.websocket.chunks import Chunk

CHUNKS_MAX: Final = 16_384
"""A stream at its head comes in many small chunks; each costs more than its bytes."""

FRAME_BYTES: Final = 256 << 10
"""Content from which on a frame is sent: a chunk more may be in it."""

_COMPACT: Final = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks to send, and where to look on."""

    chunks: tuple[Chunk, ...]
    place: int


class Ring:
    """See the module.

    Arguments:
        limit: bytes.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._chunks: list[Chunk] = []
        self._dropped = 0
        self._first = 0
        self._low: dict[Partition, int] = {}
        self._high: dict[Partition, int] = {}
        self.size = 0

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Hold nothing any more, and go on from these positions."""
        with self._lock:
            self._first += len(self._chunks) - self._dropped
            self._chunks, self._dropped, self.size = [], 0, 0
            self._low, self._high = dict(positions), dict(positions)

    def add(self, positions: Mapping[Partition, int]) -> None:
        """Further partitions, from these positions on."""
        with self._lock:
            for where, position in positions.items():
                self._low.setdefault(where, position)
                self._high.setdefault(where, position)

    def append(self, chunks: Sequence[Chunk]) -> None:
        """The next chunks of its partitions."""
        with self._lock:
            for chunk in chunks:
                self._chunks.append(chunk)
                self._high[chunk.where] = chunk.next
                self._low.setdefault(chunk.where, chunk.begin)
                self.size += len(chunk.data)
            while self.size > self._limit or len(self._chunks) - self._dropped > CHUNKS_MAX:
                oldest = self._chunks[self._dropped]
                self._low[oldest.where] = oldest.next
                self.size -= len(oldest.data)
                self._first += 1
                self._dropped += 1
            # Chunks that were dropped are forgotten together: to forget each alone would move all others each time.
            if self._dropped > min(_COMPACT, len(self._chunks) // 2):
                del self._chunks[: self._dropped]
                self._dropped = 0

    def ends(self) -> dict[Partition, int]:
        """The position after what is held, of every partition."""
        with self._lock:
            return dict(self._high)

    def holds(self, positions: Mapping[Partition, int]) -> bool:
        """Whether everything from these positions on is here."""
        with self._lock:
            return self._holds(positions)

    def covers(self, where: Partition, position: int) -> bool:
        """Whether a position is between the begin and the end of what is here."""
        with self._lock:
            return where in self._low and self._low[where] <= position <= self._high[where]

    def after(self, place: int, positions: Mapping[Partition, int]) -> Found | None:
        """The next chunks that these positions have not passed, up to a frame; None where not all of them are here.

        Arguments:
            place: where the look before ended; 0: look through all.
            positions: of the partitions that are wanted.

        """
        with self._lock:
            if not self._holds(positions):
                return None
            place = max(place, self._first)
            index = place - self._first + self._dropped
            found: list[Chunk] = []
            size = 0
            while index < len(self._chunks) and size < FRAME_BYTES:
                chunk = self._chunks[index]
                index += 1
                if positions.get(chunk.where, chunk.next) < chunk.next:
                    found.append(chunk)
                    size += len(chunk.data)
            return Found(tuple(found), index - self._dropped + self._first)

    def _holds(self, positions: Mapping[Partition, int]) -> bool:
        low = self._low
        return all(where in low and low[where] <= position for where, position in positions.items())
