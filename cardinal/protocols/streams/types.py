"""The small values that every part of the streams protocol uses.

Units and shapes, here and in the complete package: a hash is 32 ``bytes``; numbers, weights and offsets are ``int``;
a path is ``str`` (UTF-8 on the wire, bytes that are not UTF-8 kept by ``surrogateescape``); times are
milliseconds since 1970 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from cardinal.texts import Readable, named_text

HASH_SIZE = 32
"""Bytes in a block hash, a sub batch id and a producer id (``schemas/SPEC.md``, section 1)."""

NO_ID = bytes(HASH_SIZE)
"""Thirty-two zero bytes: "no sub batch" in an update."""

SHORT = 8
"""Bytes that cursors keep of a hash."""


def short(block_hash: bytes) -> bytes:
    """Eight bytes that identify a hash. Not its own: proof of work makes many of these equal on a whole chain."""
    return blake2b(block_hash, digest_size=SHORT).digest()


Headers: TypeAlias = tuple[tuple[str, bytes], ...]
"""A record's headers, in their order; names may repeat."""

Row: TypeAlias = tuple[str, int, int, bytes, bytes, int, Headers]
"""The fields of a :class:`Record` in any tuple: a Record is one.

A reader of blocks with a hundred thousand messages passes plain tuples. They are made in half the time, and Python's
collector, which tracks a NamedTuple for as long as it lives, untracks a plain tuple of such values at its first pass.
"""

Partition: TypeAlias = tuple[str, int]
"""A topic and a partition number."""

Position: TypeAlias = tuple[str, int, int]
"""Position of a record: topic, partition, offset. Positions are compared as tuples."""


@dataclass(frozen=True, slots=True, repr=False)
class BlockRef(Readable):
    """A block by number and hash."""

    number: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Finality:
    """The highest block numbers that a node called safe and finalized; None where it has not said."""

    safe: int | None = None
    finalized: int | None = None


@dataclass(frozen=True, slots=True)
class FinalityViolated:
    """A heavier chain would remove a block that was announced as final. Latched until the stream is restarted."""

    tip: BlockRef
    finalized: int

    def __str__(self) -> str:
        return (
            f"a heavier chain with block {self.tip.number} (0x{self.tip.hash.hex()}) would remove the finalized block "
            f"{self.finalized}: it is withheld, unless on_finality_violation is 'follow'"
        )


class Record(NamedTuple):
    """One message as a transport delivers it.

    ``key`` is empty for a heartbeat. ``timestamp_ms`` is the broker's append time where topics are created by
    Cardinal. ``headers`` keep their order and may repeat.
    """

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    timestamp_ms: int = 0
    headers: Headers = ()

    def __repr__(self) -> str:
        return named_text(self)


class Routed(NamedTuple):
    """One message on its way out: the topic that it belongs on, its key and its value."""

    topic: str
    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return named_text(self)


PRODUCER_HEADER = "cardinal-producer"
"""BlockHeader on every record of ours: the configured id of the producer, UTF-8."""

SEALED_HEADER = "cardinal-sealed"
"""BlockHeader on a Batch whose block was complete on the topics before the Batch was sent."""

ORIGIN_HEADER = "cardinal-origin"
"""Header on a heartbeat of the default topic: the origin from which the weights of a new stream count."""

ENDED_HEADER = "cardinal-ended"
"""Header on the last ping of a producer that ended cleanly."""

ANONYMOUS = b"anonymous"
"""The producer of a record without a producer header."""


def is_sealed(headers: Headers) -> bool:
    """True when a Batch's headers hold the seal."""
    return any(name == SEALED_HEADER for name, _ in headers)


def producer_of(headers: Headers) -> bytes:
    """The id of the producer that wrote a record with these headers; Kafka's headers may have no value at all."""
    for name, value in headers:
        if name == PRODUCER_HEADER:
            return value or b""
    return ANONYMOUS


def lowest(*positions: Mapping[Partition, int]) -> dict[Partition, int]:
    """For every partition the lowest of these offsets."""
    found: dict[Partition, int] = {}
    for each in positions:
        for partition, offset in each.items():
            if offset < found.get(partition, offset + 1):
                found[partition] = offset
    return found


def path_expression(source: str, flags: int = 0) -> re.Pattern[str]:
    r"""A compiled expression over paths, whose classes (``\d``, ``\w``, ``\s``, ``\b``) match ASCII, as in Go.

    Raises:
        re.error: it does not compile.

    """
    try:
        return re.compile(source, flags | re.ASCII)
    except ValueError as error:  # of "(?u)", which requests the opposite
        raise re.error(str(error), source) from None


def path_bytes(path: str) -> bytes:
    """The bytes of a path on the wire."""
    return path.encode("utf-8", "surrogateescape")


def path_text(raw: bytes) -> str:
    """The path that these bytes spell; bytes that are not UTF-8 become lone surrogates."""
    return raw.decode("utf-8", "surrogateescape")
