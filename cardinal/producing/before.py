"""What stands before the topics' tails: a few records at growing distances from the default topic's end.

A tail that holds nothing but blocks that were sent again long after their time, as a repair of a long range does, looks
like the end of a stream that is shorter than it is. What stood before it says how high the stream was by then.

Rules:

1. The first distance is right before the tails, each next one is twice as far, and the last one is where retention
   begins: so many as the logarithm of what is kept. Batches spread evenly over partitions, so it is enough to look at
   each distance in two of them, and in one look each partition is read at another distance.
2. A look is at so few records that it may find no Batch, and retention may overtake the last one. Then it says nothing.
3. All looks may miss the blocks that are higher than what was sent again. Then these are fewer than those were, and to
   send them again as well does no harm.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError
from cardinal.producing.found import batch_of
from cardinal.producing.ranges import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source

_RECORDS: Final = 64
_MORE: Final = 2
_TWICE: Final = 2


class Before:
    """See the module.

    Arguments:
        source: reads the default topic; it is assigned anew.
        marks: where each partition of the default topic begins and ends.
        tail: how many records of each are read in any case.

    Raises:
        UnreachableError: the records do not arrive.

    """

    def __init__(self, source: Source, marks: Mapping[Partition, tuple[int, int]], tail: int) -> None:
        self._highest: dict[tuple[Partition, int], int] = {}
        """The highest number, by the partition and the distance from its end at which it was found."""
        longer = {where: (low, high) for where, (low, high) in marks.items() if high - tail > low}
        for starts in _looks(longer, tail):
            with contextlib.suppress(CursorExpiredError):
                self._look(source, starts, marks)

    def number(self, tails: Mapping[Partition, int]) -> int:
        """The highest number that stood somewhere before these tails, given in records from the end; 0: none is known.

        It counts for all partitions: where one was, the others were nearly.
        """
        return max((number for (where, at), number in self._highest.items() if at > tails[where]), default=0)

    def distance(self, tail: int) -> int:
        """How far from the end the highest block of those before this tail lies, in any partition; 0: none is known."""
        beyond = [(number, -at) for (_, at), number in self._highest.items() if at > tail]
        return -max(beyond)[1] if beyond else 0

    def _look(
        self, source: Source, starts: Mapping[Partition, int], marks: Mapping[Partition, tuple[int, int]]
    ) -> None:
        def take(record: Record) -> None:
            if (batch := batch_of(record)) is not None:
                where = (record.topic, record.partition)
                place = where, marks[where][1] - starts[where]
                self._highest[place] = max(batch.number, self._highest.get(place, 0))

        read_range(source, starts, {where: min(at + _RECORDS, marks[where][1]) for where, at in starts.items()}, take)


def _looks(longer: Mapping[Partition, tuple[int, int]], tail: int) -> Iterator[dict[Partition, int]]:
    """Where to read each partition from, one look after the other."""
    kept = max((high - low for low, high in longer.values()), default=0)
    distances = [tail + _RECORDS]
    while distances[-1] < kept:
        tail *= _MORE
        distances.append(tail)
    places: list[list[int]] = [[] for _ in longer]
    for turn in range(min(_TWICE, len(places))):
        for index, distance in enumerate(distances):
            places[(index + turn) % len(places)].append(distance)
    for look in range(max(map(len, places), default=0)):
        yield {
            where: max(low, high - distances[look])
            for (where, (low, high)), distances in zip(longer.items(), places, strict=True)
            if look < len(distances)
        }
