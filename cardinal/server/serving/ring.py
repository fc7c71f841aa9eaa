"""Recent records, in memory once for all clients.

Rules:

1. It keeps the newest chunks, at most so many bytes and so many chunks. It never waits for a client.
2. Of each partition it holds everything between ``low`` and ``high``, and nothing else.
3. Chunks are encoded once; every client is sent the same bytes.
4. Where records that were read are there no longer, or are others (a topic made anew, a log cut short), it begins anew
   and says so: offsets that were named before mean nothing after that (:attr:`Ring.losses`, :meth:`Ring.lost`).

One thread fills it, another reads; a lock stands between them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.websocket.chunks import Chunk

Places: TypeAlias = "Mapping[Partition, tuple[int, int]]"
"""A position, and the limit that it is beyond, of partitions."""

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

    Attributes:
        size: bytes that it holds.
        losses: how often it had to begin anew because of records that are others now.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._chunks: list[Chunk] = []
        self._dropped = 0
        self._first = 0
        self._low: dict[Partition, int] = {}
        self._high: dict[Partition, int] = {}
        self._lost: dict[str, tuple[int, Places]] = {}
        self.size = 0
        self.losses = 0

    def begin(self, positions: Mapping[Partition, int], lost: Places = MappingProxyType({})) -> None:
        """Hold nothing any more, and go on from these positions.

        Arguments:
            positions: of every partition.
            lost: where it stood, and where the partition ends now, of those of which other records were read before.

        """
        with self._lock:
            if lost:
                self.losses += 1
                for topic in {topic for topic, _ in lost}:
                    self._lost[topic] = (
                        self.losses,
                        {where: both for where, both in lost.items() if where[0] == topic},
                    )
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

    def lost(self, since: Mapping[Partition, int]) -> dict[Partition, tuple[int, int]]:
        """What was lost of the topics of these partitions, since the ring had had so many losses."""
        with self._lock:
            behind = {where[0] for where, seen in since.items() if self._lost.get(where[0], (0,))[0] > seen}
            return {where: both for topic in behind for where, both in self._lost[topic][1].items()}

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
