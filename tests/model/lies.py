"""What a producer may say of a block that is not so, and where everything that is said lies in the end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from cardinal.protocols.streams.types import Headers, Partition, Record, Routed
from cardinal.protocols.streams.wire.codec import decode, encode
from cardinal.protocols.streams.wire.messages import Batch, BatchMsg, SubBatchMsg, Update
from cardinal.transports.partitioner import fnv1a_partition
from cardinal_devkit.testing.generator import SCHEMA, TOPIC

_FAR: Final = 20


def altered(message: Routed) -> Routed:
    """Another value under the same key; messages that have none are left alone."""
    said = decode(message.key, message.value)
    if isinstance(said, BatchMsg):
        return message._replace(value=message.value + b"!")
    if isinstance(said, SubBatchMsg) and said.updates:
        return Routed(message.topic, *encode(replace(said, updates=dict.fromkeys(said.updates, b"a lie"))))
    return message


def other_batch(messages: Sequence[Routed], lie: str, source: random.Random) -> list[Routed]:
    """``inline``: a value that is another; ``more``: a count too many; ``none``: nothing where there is something.

    Arguments:
        messages: of one block, the Batch last.
        lie: which.
        source: chooses which count.

    """
    *content, sealed = messages
    batch = decode(sealed.key, sealed.value)
    counted = sorted(path for path, entry in batch.updates.items() if entry.count) if isinstance(batch, Batch) else []
    if not isinstance(batch, Batch) or (lie != "inline" and not counted):
        return list(messages)
    entries = dict(batch.updates)
    if lie == "inline":
        entries["tip"] = Update(b"a lie")
    else:
        prefix = source.choice(counted)
        entries[prefix] = Update(count=entries[prefix].count + 1 if lie == "more" else 0)
    return [*content, Routed(sealed.topic, *encode(replace(batch, updates=entries)))]


def other_place(messages: Sequence[Routed], lie: str, source: random.Random) -> list[Routed]:
    """The same content under another ``parent``, ``number`` or ``weight``.

    Arguments:
        messages: of one block, the Batch last.
        lie: which of the three.
        source: chooses how far away.

    """
    *content, sealed = messages
    batch = decode(sealed.key, sealed.value)
    if not isinstance(batch, Batch):
        return list(messages)
    match lie:
        case "parent":
            batch = replace(batch, parent=source.randbytes(32))
        case "number":
            batch = replace(batch, number=max(0, batch.number + source.choice((-_FAR, -1, 1, _FAR))))
        case _:
            batch = replace(batch, weight=batch.weight + source.choice((1, 1 << 40)))
    return [*content, Routed(sealed.topic, *encode(batch))]


class Log:
    """Records as they are appended, over all partitions."""

    def __init__(self, partitions: int) -> None:
        self.records: list[Record] = []
        self._ends: dict[Partition, int] = {}
        self._partitions = partitions
        for topic in sorted({TOPIC, *SCHEMA.values()}):
            for number in range(partitions):
                self._put(Record(topic, number, 0, b"", b""))

    def take(self, records: Iterable[Record]) -> None:
        """What producers sent, without the heartbeats of topics that are there."""
        for record in records:
            if record.key:
                self._put(record)

    def append(self, messages: Iterable[Routed], headers: Headers = ()) -> None:
        """What is sent late; without headers by nobody in particular."""
        for topic, key, value in messages:
            self._put(Record(topic, fnv1a_partition(key, self._partitions), 0, key, value, 0, headers))

    def _put(self, record: Record) -> None:
        where = (record.topic, record.partition)
        offset = self._ends.get(where, 0)
        self._ends[where] = offset + 1
        self.records.append(record._replace(offset=offset, timestamp_ms=len(self.records)))
