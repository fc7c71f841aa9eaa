"""Bounded reads: every record between two offsets of some partitions.

A search is a generator. It assigns the source, yields the remaining positions, and receives the next records. It never
polls and never waits: :func:`finish` runs one to its end, a reader in the background advances one poll by poll.
Completed partitions are paused.
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
"""Limit without progress: a broker may take so long to restart, or a partition to elect a leader. A client waits half
as long for one response before it retries."""


def read_range(source: Source, starts: Positions, ends: Positions, take: Callable[[Record], bool | None]) -> None:
    """Call ``take`` with every record between these offsets; raises as :func:`finish`."""
    finish(source, search_range(source, starts, ends, take))


def read_all(source: Source, watermarks: Mapping[Partition, tuple[int, int]], take: Callable[[Record], None]) -> None:
    """Call ``take`` with every record between these watermarks; raises as :func:`finish`."""
    lows = {tp: low for tp, (low, _) in watermarks.items()}
    read_range(source, lows, {tp: high for tp, (_, high) in watermarks.items()}, take)


def read_recent(source: Source, limit: int) -> list[Record]:
    """The newest records, at most ``limit`` per partition, in order of their positions; raises as :func:`finish`."""
    watermarks = source.watermarks()
    starts = {tp: max(low, high - limit) for tp, (low, high) in watermarks.items()}
    records: list[Record] = []
    read_range(source, starts, {tp: high for tp, (_, high) in watermarks.items()}, records.append)
    return sorted(records, key=lambda record: record[:3])


def search_range(
    source: Source, starts: Positions, ends: Positions, take: Callable[[Record], bool | None]
) -> Search[dict[Partition, int]]:
    """Call ``take`` with the records between these offsets; a true result ends the record's partition.

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
        UnreachableError: no progress for a minute; records beyond the ends of partitions do not count.

    """
    try:
        left, progress = next(search), time.monotonic()
        while True:
            before, left = left, search.send(source.poll(_POLL_RECORDS, _POLL_SECONDS))
            if left != before:
                progress = time.monotonic()
            elif time.monotonic() - progress > _IDLE_SECONDS:
                topic, number = min(left)
                raise UnreachableError(
                    f"the records of {topic}:{number} did not arrive within {_IDLE_SECONDS:.0f} s: "
                    "the server is unreachable, or the connection is too slow; retry",
                    address=topic,
                )
    except StopIteration as ended:
        answer: _Answer = ended.value
        return answer
