"""Every record between two offsets of some partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source

_POLL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.2
_IDLE_SECONDS: Final = 60.0
"""Without a record although there are some: so long a broker may take to start again, or a partition to find a leader.
A client waits half as long for one answer, and then asks again."""


def read_range(
    source: Source, starts: Mapping[Partition, int], ends: Mapping[Partition, int], take: Callable[[Record], None]
) -> None:
    """Give every record between these offsets to ``take``.

    Raises:
        UnreachableError: they do not arrive. What comes beyond the ends of other partitions does not count.

    """
    source.assign(starts)
    before: dict[Partition, int] = {}
    heard = time.monotonic()
    while left := {where: at for where, at in source.positions().items() if at < ends[where]}:
        now = time.monotonic()
        if left != before:
            before, heard = left, now
        elif now - heard > _IDLE_SECONDS:
            topic, number = min(left)
            raise UnreachableError(
                f"the records of {topic}:{number} did not arrive within {_IDLE_SECONDS:.0f} s: "
                "the server is away, or the line is too slow; try again",
                address=topic,
            )
        for record in source.poll(_POLL_RECORDS, _POLL_SECONDS):
            if record.offset < ends[record.topic, record.partition]:
                take(record)
