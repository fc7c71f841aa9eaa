"""When a reader that wants everything begins: not above blocks that are about to come.

A stream begins with the lowest block of a linked chain (:mod:`.start`). But partitions are read one ahead of
the other, so lower blocks may be unread although they are there; and a producer whose broker was away may have written
a block before its parent, which comes a moment later. Beginning above them would lose them for good.

Rules:

1. Lower blocks that are complete and not linked, or that are not complete, leave a doubt: something is missing between.
   So do blocks that were dropped for want of room: nobody knows their numbers.
2. Without doubt the stream begins when its reader has caught up.
3. Before that it begins with a chain that is longer than the threshold, when every partition has been read as far as
   the candidate's Batch and a little farther, by the time of the records; or when half of the room for blocks that wait
   is taken. A fast producer writes more in that little time than there is room for, and what is dropped then has to be
   read again.
4. In doubt it waits for what is missing: until a chain is several thresholds long, or until whoever reads says that
   nothing comes any more. So a hole at the edge of what retention has left holds nothing up for long. Dropped blocks
   are there and will be read again, so that the length of a chain does not end the wait for them. Nor does the lack of
   room, where the reader has caught up: what has to go for them is read again as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cardinal.protocols.streams.types import Partition, Row

from .start import Candidate

_FARTHER_MS: Final = 2_000
"""As far as a reader lets its partitions run apart (:mod:`cardinal.transports.pace`)."""

_THRESHOLDS: Final = 4


class Patience:
    """See the module. ``threshold``: blocks."""

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._times: dict[Partition, int] = {}
        self._published: dict[bytes, int] = {}
        self._look_at = 0
        self.exhausted = False
        """Whoever reads has said that nothing comes any more."""

    def read(self, records: Iterable[Row]) -> None:
        """These records were read."""
        times = self._times
        for record in records:
            times[record[0], record[1]] = record[5]

    def completed(self, block_hash: bytes, published_ms: int) -> None:
        """A block is complete; when its Batch was written."""
        self._published[block_hash] = published_ms

    def looks(self, *, caught_up: bool, dropped: bool) -> bool:
        """Whether to look for a candidate now.

        Before the reader has caught up that is done when the blocks have grown by a sixteenth, so that the work, which
        grows with them, stays linear. Afterwards there is nothing to look for while dropped blocks are still to come.
        """
        if caught_up:
            return self.exhausted or not dropped
        blocks = len(self._published)
        if blocks < self._look_at:
            return False
        self._look_at = blocks + blocks // 16
        return True

    def doubts(self, candidate: Candidate, lowest_open: int | None) -> bool:
        """Whether something is missing below the candidate; ``lowest_open`` is the lowest incomplete block's number."""
        below = candidate.start.number
        return candidate.lowest < below or (lowest_open is not None and lowest_open < below)

    def begins(
        self,
        candidate: Candidate,
        lowest_open: int | None,
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        *,
        caught_up: bool,
        crowded: bool = False,
        dropped: bool = False,
    ) -> bool:
        """Whether to begin with this candidate now.

        Arguments:
            candidate: what the stream would begin with.
            lowest_open: the number of the lowest block that is not complete.
            positions: the next offset of every partition.
            ends: the watermarks that are known.
            caught_up: whether everything that was there has been read.
            crowded: whether blocks that wait take half of their room.
            dropped: whether there are blocks that were dropped and are not whole yet.

        """
        if self.exhausted and caught_up:
            return True
        doubt = dropped or self.doubts(candidate, lowest_open)
        if caught_up and not doubt:
            return True
        enough = self._threshold * (_THRESHOLDS if doubt else 1)
        if candidate.length <= enough:
            return False
        return crowded or (not dropped and self._read_past(candidate, positions, ends))

    def _read_past(
        self, candidate: Candidate, positions: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> bool:
        until = self._published.get(candidate.start.hash, 0) + _FARTHER_MS
        return all(
            self._times.get(where, 0) >= until or (where in ends and at >= ends[where])
            for where, at in positions.items()
        )
