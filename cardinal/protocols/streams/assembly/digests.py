"""Records and blocks without their content: for readers that decide what is complete and leave the values in place.

A Batch and a SubBatchHeader keep their value; every other value becomes eight bytes of BLAKE2b, of the decoded
content where the bytes have no fixed order, so that differing copies are still seen to differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG, SUB_BATCH_MSG

DIGEST_SIZE = 8


class Contents(Enum):
    """The values of BatchMsg and SubBatchMsg records."""

    VALUES = "values"
    """The values themselves: a completed block is a :class:`~.payload.Payload`."""

    DIGESTS = "digests"
    """Digests: a completed block is a :class:`HeaderOnly`, its content stays where it is."""


@dataclass(frozen=True, slots=True)
class HeaderOnly:
    """A block without its content; ``marks`` holds the values of the Batch's own entries."""

    number: int
    hash: bytes
    parent: bytes
    weight: int
    marks: Mapping[bytes, bytes]


def digest(value: bytes) -> bytes:
    """Eight bytes that stand for a value."""
    return blake2b(value, digest_size=DIGEST_SIZE).digest()


def without_content(record: Record) -> Record:
    """The record with its content replaced by a digest.

    Raises:
        DecodeError: a SubBatchMsg whose value does not decode; it cannot count.

    """
    kind = record.key[0] if record.key else None
    if kind in (BATCH_MSG, BATCH_DELETE_MSG):
        return record._replace(value=digest(record.value))
    if kind == SUB_BATCH_MSG:
        deletes, updates = avro.read_content(record.value)
        return record._replace(value=digest(avro.write_content(sorted(deletes), sorted(updates.items()))))
    return record
