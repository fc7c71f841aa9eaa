"""Every record between two offsets of some partitions.

Rules:

1. A search is a generator. It assigns the source; by every ``yield`` it gives the positions of what is left to be read,
   and takes the next records. It never polls and never waits: :func:`finish` runs one to its end, and who reads beside
   a stream advances one by a poll at a time.
2. A partition of which enough was read is paused, so that it is not read further while others are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import Partition, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Source

_Answer = TypeVar("_Answer")
Positions: TypeAlias = Mapping[Partition, int]
Search: TypeAlias = Generator[Positions, Sequence[Record], _Answer]

_POLL_RECORDS: Final = 2_000
_POLL_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 60.0
"""Without a record although there are some: so long a broker may take to start again, or a partition to find a leader.
A client waits half as long for one answer, and then asks again."""


def read_range(source: Source, starts: Positions, ends: Positions, take: Callable[[Record], bool | None]) -> None:
    """Give every record between these offsets to ``take``; raises as :func:`finish`."""
    finish(source, search_range(source, starts, ends, take))


def read_all(source: Source, marks: Mapping[Partition, tuple[int, int]], take: Callable[[Record], None]) -> None:
    """Give every record between these watermarks to ``take``; raises as :func:`finish`."""
    read_range(source, {tp: low for tp, (low, _) in marks.items()}, {tp: high for tp, (_, high) in marks.items()}, take)


def search_range(
    source: Source, starts: Positions, ends: Positions, take: Callable[[Record], bool | None]
) -> Search[dict[Partition, int]]:
    """Give the records between these offsets to ``take``, until it returns that it is enough of a record's partition.

    Returns:
        The offset up to which every partition was read.

    """
    left = {tp: at for tp, at in starts.items() if at < ends[tp]}
    if not left:
        return dict(starts)
    source.assign(left)
    apart = not source.capabilities.single_log
    enough: set[Partition] = set()
    while left:
        for record in (yield left):
            if record.offset < ends[record.topic, record.partition] and take(record):
                enough.add((record.topic, record.partition))
        positions = source.positions()
        before, left = left, {tp: at for tp, at in positions.items() if at < ends[tp] and tp not in enough}
        if apart and left and left.keys() != before.keys():
            source.pause(positions.keys() - left.keys())
    return {**starts, **source.positions()}


def finish(source: Source, search: Search[_Answer]) -> _Answer:
    """Run a search to its end.

    Raises:
        UnreachableError: the records do not arrive. What comes beyond the ends of other partitions does not count.

    """
    try:
        left, heard = next(search), time.monotonic()
        while True:
            before, left = left, search.send(source.poll(_POLL_RECORDS, _POLL_SECONDS))
            if left != before:
                heard = time.monotonic()
            elif time.monotonic() - heard > _IDLE_SECONDS:
                topic, number = min(left)
                raise UnreachableError(
                    f"the records of {topic}:{number} did not arrive within {_IDLE_SECONDS:.0f} s: "
                    "the server is away, or the line is too slow; try again",
                    address=topic,
                )
    except StopIteration as ended:
        answer: _Answer = ended.value
        return answer
