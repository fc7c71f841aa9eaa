"""Looking for Batches on the default topic, in steps: whoever takes them polls.

Rules:

1. A look is a generator. It assigns the source and asks for the next records by every ``yield``; it never polls and
   never waits for a record. Who runs it does, and minds the time: to the end (:func:`finish`), or a poll at a time
   beside a stream (:mod:`.older`).
2. Batches lie in nearly the order of their numbers, so a number's place is found by halving.
3. A partition of which enough was read is paused, so that it is not read on while others are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from cardinal.errors import DecodeError, UnreachableError
from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.base import OneOrderSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.url import Topics

_Answer = TypeVar("_Answer")
Look: TypeAlias = Generator[None, Sequence[Record], _Answer]

POLL_RECORDS: Final = 1_000
_POLL_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 60.0
"""Without a record although there are some. A client waits half as long for one answer, and then asks again."""
_NEAR: Final = 64
"""Offsets: below this distance reading on is quicker than halving."""
_APART: Final = 16
"""Blocks for each partition of the Batches within which one is sure to come in every partition."""


@dataclass(frozen=True, slots=True)
class Found:
    """A Batch on its topic."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    record: Record


def batch_of(record: Record) -> Found | None:
    """What a record says, where it is a Batch."""
    if len(record.key) != HASH_END or record.key[0] != BATCH:
        return None
    try:
        fields = avro.read_batch(record.value)
    except DecodeError:
        return None
    return Found(fields.number, record.key[1:], fields.parent, fields.weight, record)


def marks_of_batches(source: Source, app: Topics) -> dict[Partition, tuple[int, int]]:
    """Start and end of every partition of the default topic."""
    return {where: marks for where, marks in source.watermarks().items() if where[0] == app.default_topic}


def out_of_order(threshold: int, partitions: int) -> int:
    """By how many blocks Batches of several partitions, and of producers that follow one another, are out of order."""
    return threshold + _APART * partitions


def finish(source: Source, look: Look[_Answer]) -> _Answer:
    """Take all steps of a look, and give its answer.

    Raises:
        UnreachableError: the records do not arrive.

    """
    try:
        next(look)
        heard = time.monotonic()
        while True:
            records = source.poll(POLL_RECORDS, _POLL_SECONDS)
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > _IDLE_SECONDS:
                raise UnreachableError(
                    f"the default topic's records did not arrive within {_IDLE_SECONDS:.0f} s: "
                    "the server is away, or the line is too slow; try again",
                    address=min(source.positions())[0],
                )
            look.send(records)
    except StopIteration as ended:
        answer: _Answer = ended.value
        return answer


def batches_from(source: Source, marks: Mapping[Partition, tuple[int, int]], number: int) -> Look[dict[Partition, int]]:
    """For every partition an offset below which no Batch of this number or a higher one lies.

    Found by halving: right where Batches lie in the order of their numbers, and too low by little where a reorg or a
    repair has mixed them.
    """
    low = {where: first for where, (first, _) in marks.items()}
    high = {where: end for where, (_, end) in marks.items()}
    while wide := [where for where in low if high[where] - low[where] > _NEAR]:
        middle = {where: (low[where] + high[where]) // 2 for where in wide}
        first = yield from _first_numbers(source, middle, high)
        for where in wide:
            if first.get(where, number) < number:
                low[where] = middle[where]
            else:
                high[where] = middle[where]
    return low


def read_batches(
    source: Source, begin: Mapping[Partition, int], end: Mapping[Partition, int], take: Callable[[Found], bool]
) -> Look[dict[Partition, int]]:
    """Give every Batch of these ranges to ``take``, until it says of one that it is enough of its partition.

    The answer: how far every partition was read.
    """

    def take_record(record: Record) -> bool:
        batch = batch_of(record)
        return batch is not None and take(batch)

    return (yield from _read(source, begin, end, take_record))


def _first_numbers(
    source: Source, begin: Mapping[Partition, int], end: Mapping[Partition, int]
) -> Look[dict[Partition, int]]:
    """The number of the first Batch in each of these ranges."""
    first: dict[Partition, int] = {}

    def take(record: Record) -> bool:
        where = (record.topic, record.partition)
        if where not in first and record.offset < end[where] and (batch := batch_of(record)) is not None:
            first[where] = batch.number
        return where in first

    yield from _read(source, begin, end, take)
    return first


def _read(
    source: Source, begin: Mapping[Partition, int], end: Mapping[Partition, int], take: Callable[[Record], bool]
) -> Look[dict[Partition, int]]:
    left = {where for where, at in begin.items() if at < end[where]}
    if not left:
        return dict(begin)
    source.assign({where: begin[where] for where in left})
    apart = not (isinstance(source, OneOrderSource) and source.one_order)
    enough: set[Partition] = set()
    while left:
        for record in (yield):
            if take(record):
                enough.add((record.topic, record.partition))
        positions = source.positions()
        before, left = left, {where for where, at in positions.items() if at < end[where]} - enough
        if apart and left and left != before:
            source.pause(positions.keys() - left)
    return {**begin, **source.positions()}
