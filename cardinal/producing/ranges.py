"""Every record between two offsets of some partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source

_POLL_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.2
_IDLE_SECONDS: Final = 15.0


def read_range(
    source: Source, starts: Mapping[Partition, int], ends: Mapping[Partition, int], take: Callable[[Record], None]
) -> None:
    """Give every record between these offsets to ``take``. TransportError when none comes for a while."""
    source.assign(starts)
    last = time.monotonic()
    while any(at < ends[where] for where, at in source.positions().items()):
        records = source.poll(_POLL_RECORDS, _POLL_SECONDS)
        for record in records:
            if record.offset < ends[record.topic, record.partition]:
                take(record)
        now = time.monotonic()
        if records:
            last = now
        elif now - last > _IDLE_SECONDS:
            raise TransportError(
                f"the records at the topics' end did not arrive within {_IDLE_SECONDS:.0f} s; try again"
            )
