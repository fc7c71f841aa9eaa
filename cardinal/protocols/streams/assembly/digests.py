"""Records and blocks without their content: for readers that decide what is complete and leave the values in place.

A Batch and a SubBatchHeader keep their value. Every other value becomes eight bytes of BLAKE2b, of the decoded content
where the bytes have no fixed order, so that differing copies are still detected; then four bytes with its size;
and, for the few requested values, a marker byte and the value itself.

A Batch whose headers name the ranges of its block's content (:mod:`~.wire.ranges`) completes that block by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final

from cardinal.errors import DecodeError
from cardinal.protocols.streams.types import BlockRef, Partition, Row
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG
from cardinal.texts import Readable

_DIGEST_SIZE: Final = 8
_KEPT_AT: Final = 12
_KEPT: Final = b"="


class Contents(Enum):
    """The values of BatchMsg and SubBatchMsg records."""

    VALUES = "values"
    """The values themselves: a completed block is a :class:`~.payload.Payload`."""

    DIGESTS = "digests"
    """Digests: a completed block is a :class:`HeaderOnly`, its content stays on the topics."""


@dataclass(frozen=True, slots=True, repr=False)
class HeaderOnly(Readable):
    """A block without its content: the Batch's own values and those that were kept, and the ranges of the content.

    ``ranges`` has for every partition the offset of the first message, and the one after the last that counts; it is
    empty where the block is not complete. ``size``: approximate bytes of the messages on the topics.
    """

    number: int
    hash: bytes
    parent: bytes
    weight: int
    values: Mapping[bytes, bytes] = field(default_factory=dict)
    ranges: Mapping[Partition, tuple[int, int]] = field(default_factory=dict)
    published_ms: int = 0
    size: int = 0

    @property
    def ref(self) -> BlockRef:
        """Number and hash."""
        return BlockRef(self.number, self.hash)


def digested(rows: Iterable[Row], keep: Collection[bytes] = ()) -> list[Row]:
    """The rows without their content, without SubBatchMsgs that do not decode: these cannot count.

    ``keep``: paths whose values are kept in addition to their digests.
    """
    out: list[Row] = []
    for row in rows:
        topic, partition, offset, key, value, time, headers = row
        kind = key[0] if key else SUB_BATCH_HEADER
        if kind in (BATCH_MSG, BATCH_DELETE_MSG):
            short = blake2b(value, digest_size=_DIGEST_SIZE).digest() + len(value).to_bytes(4)
            if keep and key[HASH_END:] in keep:
                short += _KEPT + value
            out.append((topic, partition, offset, key, short, time, headers))
        elif kind != SUB_BATCH_MSG:
            out.append(row)
        else:
            try:
                deletes, updates = avro.read_content(value)
            except DecodeError:
                continue
            ordered = avro.write_content(sorted(deletes), sorted(updates.items()))
            short = blake2b(ordered, digest_size=_DIGEST_SIZE).digest() + len(value).to_bytes(4)
            out.append((topic, partition, offset, key, short, time, headers))
    return out


def size_of(row: Row) -> int:
    """The bytes of a digested message on its topic."""
    value = row[4]
    return len(row[3]) + (len(value) if row[3][0] <= SUB_BATCH_HEADER else int.from_bytes(value[_DIGEST_SIZE:_KEPT_AT]))


def kept_value(row: Row) -> bytes | None:
    """The value of a digested message that was requested by ``keep``; None of any other."""
    return row[4][_KEPT_AT + 1 :] if row[3][0] == BATCH_MSG and len(row[4]) > _KEPT_AT else None
