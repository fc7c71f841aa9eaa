"""The messages of Cardinal Streams 1.0.0. This file is their definition; `codec` encodes and decodes them.

========================  ====  =========================  ==================================================
message                   type  key after the block hash   sent by a producer
========================  ====  =========================  ==================================================
:class:`Batch`            0x00                             last of its block, when all else is acknowledged
:class:`SubBatchHeader`   0x01  batch id                   once for every sub batch that the Batch announces
:class:`SubBatchMsg`      0x02  batch id, index            once for every index below the header's count
:class:`BatchMsg`         0x03  path                       once for every counted value
:class:`BatchDeleteMsg`   0x04  path                       once for every counted delete
:class:`Reorg`            0x05                             first on a reorg channel; hash of the ancestor
:class:`ReorgComplete`    0x06                             last on a reorg channel
:class:`Ping`             0xff  (producer id, no hash)     while the producer is healthy
:class:`Heartbeat`              (empty key)                once for every partition of a new topic
========================  ====  =========================  ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from cardinal.protocols.streams.types import NO_ID
from cardinal.texts import Readable

BATCH = 0x00
SUB_BATCH_HEADER = 0x01
SUB_BATCH_MSG = 0x02
BATCH_MSG = 0x03
BATCH_DELETE_MSG = 0x04
REORG = 0x05
REORG_COMPLETE = 0x06
PING = 0xFF


@dataclass(frozen=True, slots=True, repr=False)
class Update(Readable):
    """One entry of a Batch: a value, a count of messages under this prefix, a delete, or a sub batch's id."""

    value: bytes = b""
    count: int = 0
    delete: bool = False
    sub_batch: bytes = NO_ID


@dataclass(frozen=True, slots=True, repr=False)
class Batch(Readable):
    """A block's header, its own entries, and the messages that make up the rest of it."""

    hash: bytes
    number: int
    weight: int
    parent: bytes
    updates: Mapping[str, Update] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, repr=False)
class SubBatchHeader(Readable):
    """The number of messages of a sub batch (``schemas/SPEC.md``, section 2.2)."""

    hash: bytes
    batch_id: bytes
    count: int


@dataclass(frozen=True, slots=True, repr=False)
class SubBatchMsg(Readable):
    """One part of a sub batch: deletes (prefixes) and updates (``schemas/SPEC.md``, section 2.3)."""

    hash: bytes
    batch_id: bytes
    index: int
    deletes: tuple[str, ...] = ()
    updates: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, repr=False)
class BatchMsg(Readable):
    """One counted value (``schemas/SPEC.md``, section 2.4)."""

    hash: bytes
    path: str
    value: bytes


@dataclass(frozen=True, slots=True, repr=False)
class BatchDeleteMsg(Readable):
    """One counted delete (``schemas/SPEC.md``, section 2.5)."""

    hash: bytes
    path: str


@dataclass(frozen=True, slots=True, repr=False)
class Reorg(Readable):
    """A reorg channel opens: the common ancestor's hash and number (``schemas/SPEC.md``, section 2.6)."""

    hash: bytes
    number: int


@dataclass(frozen=True, slots=True, repr=False)
class ReorgComplete(Readable):
    """The last message of a reorg channel (``schemas/SPEC.md``, section 2.6)."""

    hash: bytes
    number: int


@dataclass(frozen=True, slots=True, repr=False)
class Ping(Readable):
    """A producer is alive. ``utc_offset_seconds`` None means UTC itself, 0 another zone at offset zero."""

    producer_id: bytes
    unix_seconds: int
    nanoseconds: int = 0
    utc_offset_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A record without a key: it moves a partition's position and carries nothing else."""


Message: TypeAlias = (
    Batch | SubBatchHeader | SubBatchMsg | BatchMsg | BatchDeleteMsg | Reorg | ReorgComplete | Ping | Heartbeat
)
