"""Ring of recent chunks, in memory once for all clients.

It keeps the newest chunks up to a number of bytes, and never waits for a client. Of each partition it holds everything
between ``low`` and ``high``. Used on the event loop alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.types import Partition
    from cardinal_relay.transport.protocol import Chunk

CHUNKS_MAX: Final = 16_384
"""Overhead of a chunk in memory: at the head, chunks are small and many."""

FRAME_BYTES: Final = 256 << 10
"""Bytes that close a message of records: it may hold one chunk more."""

_COMPACT: Final = 4096


class Ring:
    """Recent chunks of some partitions.

    Arguments:
        limit: bytes.

    Attributes:
        size: bytes that it holds.
        ends: the position after the newest held record, of every partition.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[Chunk] = []
        self._evicted = 0
        self._first = 0
        self._low: dict[Partition, int] = {}
        self.ends: dict[Partition, int] = {}
        self.size = 0

    @property
    def oldest_ms(self) -> int:
        """Time of the oldest record in memory; 0 where there is none."""
        return next((chunk.oldest_ms for chunk in self._chunks[self._evicted :] if chunk.count), 0)

    def restart(self, positions: Mapping[Partition, int]) -> None:
        """Remove everything, and continue from these positions of every partition."""
        self._first += len(self._chunks) - self._evicted
        self._chunks, self._evicted, self.size = [], 0, 0
        self._low, self.ends = dict(positions), dict(positions)

    def extend(self, positions: Mapping[Partition, int]) -> None:
        """Add partitions, from these positions on."""
        self._low = {**positions, **self._low}
        self.ends = {**positions, **self.ends}

    def append(self, chunks: Sequence[Chunk]) -> None:
        """Add the next chunks of its partitions."""
        for chunk in chunks:
            self._chunks.append(chunk)
            self.ends[chunk.tp] = chunk.next
            self._low.setdefault(chunk.tp, chunk.begin)
            self.size += len(chunk.data)
        while self.size > self._limit or len(self._chunks) - self._evicted > CHUNKS_MAX:
            oldest = self._chunks[self._evicted]
            self._low[oldest.tp] = oldest.next
            self.size -= len(oldest.data)
            self._evicted += 1
        # Evicted chunks are deleted together: deleting one alone would move all others.
        if self._evicted > min(_COMPACT, len(self._chunks) // 2):
            del self._chunks[: self._evicted]
            self._first += self._evicted
            self._evicted = 0

    def holds(self, positions: Mapping[Partition, int]) -> bool:
        """True if everything from these positions on is in memory, or not read yet."""
        low = self._low
        return all(tp in low and low[tp] <= position for tp, position in positions.items())

    def after(self, index: int, positions: Mapping[Partition, int]) -> tuple[list[Chunk], int] | None:
        """The next chunks beyond these positions, up to a message, and the index to continue at.

        None where not everything from these positions on is in memory.

        Arguments:
            index: the index of the search before; 0 searches all.
            positions: of the partitions to send.

        """
        if not self.holds(positions):
            return None
        at = max(index - self._first, self._evicted)
        found: list[Chunk] = []
        size = 0
        while at < len(self._chunks) and size < FRAME_BYTES:
            chunk = self._chunks[at]
            at += 1
            if positions.get(chunk.tp, chunk.next) < chunk.next:
                found.append(chunk)
                size += len(chunk.data)
        return found, at + self._first
