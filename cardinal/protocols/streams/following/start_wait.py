"""Start time of a reader that wants everything: it does not begin above blocks that are about to come.

Partitions are read one ahead of the other, and a producer whose broker was unreachable may have written a block before
its parent. Beginning above such blocks would lose them for good. So the stream begins when everything was read, or when
every partition was read two seconds past the candidate's Batch, by the time of the records, and the candidate's chain
is longer than a threshold. Blocks below the candidate that no Batch links to it leave a doubt: then the chain has to be
four thresholds long, or the driver has waited long enough. Where waiting blocks use half of their capacity the stream
does not wait for a longer chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cardinal.protocols.streams.ordering.start import StartCandidate
from cardinal.protocols.streams.types import Partition, Row

_PAST_MS: Final = 2_000
"""The lead that a reader allows a partition."""
_DOUBTFUL: Final = 4
_GROWTH: Final = 16


class StartWait:
    """The wait before a stream begins. ``threshold``: blocks."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._times: dict[Partition, int] = {}
        self._published: dict[bytes, int] = {}
        self._look_at = 0

    def read(self, records: Iterable[Row]) -> None:
        """Note the times up to which partitions were read."""
        times = self._times
        for record in records:
            times[record[0], record[1]] = record[5]

    def completed(self, block_hash: bytes, published_ms: int) -> None:
        """Note the time of a complete block's Batch."""
        self._published[block_hash] = published_ms

    def looks(self, *, caught_up: bool) -> bool:
        """True when a search for a candidate is due: until everything is read, when the blocks grew by a sixteenth.

        The cost of a search is the number of blocks, so that all searches together stay linear.
        """
        blocks = len(self._published)
        if not caught_up and blocks < self._look_at:
            return False
        self._look_at = blocks + blocks // _GROWTH + 1
        return blocks > 0

    def begins(
        self,
        candidate: StartCandidate,
        unread: Mapping[Partition, int],
        *,
        doubt: bool,
        crowded: bool,
        caught_up: bool,
        waited: bool,
    ) -> bool:
        """True when the stream begins with this candidate now; ``unread`` partitions have such positions.

        ``doubt``: there are blocks below it that are not linked to it. ``crowded``: half of the capacity for waiting
        blocks is used. ``waited``: the driver has waited long enough for missing blocks.
        """
        if caught_up and (waited or not doubt):
            return True
        if candidate.length <= self._threshold * (_DOUBTFUL if doubt else 1) and not crowded:
            return False
        until = self._published.get(candidate.start.hash, 0) + (0 if crowded else _PAST_MS)
        return all(self._times.get(partition, 0) >= until for partition in unread)
