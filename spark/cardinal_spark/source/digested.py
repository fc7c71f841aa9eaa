"""Records without their content, and what of them a planner can use at all.

Rules:

1. Whether a record is used is a function of the record alone: what does not decode, what no tracked entry can count,
   pings and heartbeats are left out before anything is counted.
2. A Batch and a SubBatchHeader keep their value. Every other value becomes eight bytes that stand for it (see
   :mod:`cardinal.protocols.streams.assembly.digests`) and four with its size; behind these the few values that are
   asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from cardinal.errors import DecodeError
from cardinal.protocols.streams.assembly.counters import Tracked
from cardinal.protocols.streams.assembly.digests import DIGEST_SIZE, digest, without_content
from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END, ID_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_DELETE_MSG, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG

_SIZE_BYTES: Final = 4
_OVERHEAD: Final = 24
"""Bytes that a record takes on the broker beside key and value, about."""


_KEPT_AT: Final = DIGEST_SIZE + _SIZE_BYTES


def size_of(record: Record) -> int:
    """The bytes of a digested record as it lies on its topic, about."""
    kept = record.key[0] <= SUB_BATCH_HEADER
    value = len(record.value) if kept else int.from_bytes(record.value[DIGEST_SIZE:_KEPT_AT])
    return len(record.key) + value + _OVERHEAD


def kept_value(record: Record) -> bytes:
    """The value of a digested BatchMsg whose path is one of those kept."""
    return record.value[_KEPT_AT:]


class Digester:
    """Takes the content out of records and leaves out those that cannot count.

    Arguments:
        tracked: as in Reassembler.
        keep: paths whose values are kept.

    """

    def __init__(self, tracked: Sequence[str] | None, keep: Collection[bytes] = ()) -> None:
        self._tracked = None if tracked is None else Tracked(tracked)
        self._keep = frozenset(keep)

    def __call__(self, records: Iterable[Record]) -> list[Record]:
        """The usable records, in order, without their content."""
        out: list[Record] = []
        tracked, keep = self._tracked, self._keep
        for record in records:
            topic, partition, offset, key, value, *_ = record
            if len(key) < HASH_END or (kind := key[0]) > BATCH_DELETE_MSG:
                continue
            if kind >= BATCH_MSG:
                path = key[HASH_END:]
                if tracked is None or tracked.may_belong(path):
                    kept = value if path in keep else b""
                    out.append(Record(topic, partition, offset, key, _short(digest(value), value) + kept))
            elif kind == BATCH:
                if _is_batch(record):
                    out.append(Record(topic, partition, offset, key, value, record.timestamp_ms))
            elif (used := _sub_batch(record)) is not None:
                out.append(used)
        return out


def _short(short: bytes, value: bytes) -> bytes:
    return short + min(len(value), (1 << 8 * _SIZE_BYTES) - 1).to_bytes(_SIZE_BYTES)


def _is_batch(record: Record) -> bool:
    if len(record.key) != HASH_END:
        return False
    try:
        fields = avro.read_batch(record.value)
    except DecodeError:
        return False
    return all(entry.count >= 0 for entry in fields.entries.values())


def _sub_batch(record: Record) -> Record | None:
    try:
        if record.key[0] == SUB_BATCH_MSG:
            sub_batch_index(record.key)
            short = without_content(record)
            return Record(*record[:4], _short(short.value, record.value))
        usable = len(record.key) == ID_END and avro.read_int(record.value) >= 0
    except DecodeError:
        return None
    return Record(*record[:5]) if usable else None
