"""Messages and readers of the transport contract."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rooms import DEADLINE, Names, with_key

from cardinal.protocols.streams.types import Routed

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Record
    from cardinal.transports import Source


def block(app: Names, name: int, messages: int = 10) -> tuple[list[Routed], Routed]:
    block_hash = name.to_bytes(32, "big")
    content = [
        Routed(
            app.other if index % 2 else app.default_topic, b"\x03" + block_hash + b"p/%d" % index, b"value %d" % index
        )
        for index in range(messages)
    ]
    return content, Routed(app.default_topic, b"\x00" + block_hash, b"batch")


def read(source: Source, count: int, limit: int = 100) -> list[Record]:
    """Exactly ``count`` records with a key, and nothing after them."""
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        found += with_key(source.poll(limit, 0.2))
    found += with_key(source.poll(limit, 0.05))
    assert len(found) == count
    return found


def read_to_the_end(source: Source) -> list[Record]:
    """Everything below the watermarks, heartbeats too."""
    ends = {partition: high for partition, (_, high) in source.watermarks().items()}
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while any(at < ends[partition] for partition, at in source.positions().items()):
        assert time.monotonic() < deadline, f"{source.positions()} of {ends}"
        found += source.poll(100, 0.2)
    return found


def read_partition(source: Source, where: tuple[str, int], end: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + DEADLINE
    while source.positions()[where] < end:
        assert time.monotonic() < deadline
        found += source.poll(100, 0.2)
    return found
