"""The newest records of a topic, for a producer that begins: what was published last, and whether it is whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError

from .source import KafkaSource

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Record

    from .settings import KafkaSettings

_RECENT_SECONDS: Final = 10.0
_POLL_RECORDS: Final = 10_000


def read_recent(settings: KafkaSettings, topic: str, limit: int) -> list[Record]:
    """The newest records of a topic, at most ``limit`` a partition, in order of their positions."""
    source = KafkaSource(settings, [topic])
    try:
        marks = source.watermarks()
        source.assign({partition: max(low, high - limit) for partition, (low, high) in marks.items()})
        records: list[Record] = []
        deadline = time.monotonic() + _RECENT_SECONDS
        while any(at < marks[partition][1] for partition, at in source.positions().items()):
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"the newest records of {topic} did not arrive within {_RECENT_SECONDS:.0f} s: the server is away, "
                    "or the line is too slow; try again",
                    address=settings.address,
                )
            records += source.poll(_POLL_RECORDS, 0.1)
        return sorted(records, key=lambda record: record[:3])
    finally:
        source.close()
