"""Events of reassembly and ordering: closed unions of values, never exceptions.

A :class:`ChainUpdate` is for every user; the others are reports for users who pass ``on_event``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol, TypeAlias

from cardinal.errors import MissingPayloadError
from cardinal.texts import Count, Readable, numbered

from .cursor import Cursor
from .payload import AnyPayload, MissingPayload
from .types import BlockRef, Finality, FinalityViolated, Partition, Position
from .wire.messages import Ping

_LISTED: Final = 3
"""Blocks of an update whose text names all of them."""


class BlockHeader(Protocol):
    """A block as ordering needs it: a Payload has these fields, and so has a planner's header without content."""

    @property
    def number(self) -> int:
        """Block number."""

    @property
    def hash(self) -> bytes:
        """32 bytes."""

    @property
    def parent(self) -> bytes:
        """32 bytes."""

    @property
    def weight(self) -> int:
        """The weight that fork choice compares."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Readable):
    """The state of a block and what it lacks.

    Attributes:
        block: its hash.
        number: its number, None before a Batch.
        state: ``open``, ``complete``, ``abandoned`` or ``unknown``; after ordering, also the state in the chain, such
            as ``delivered`` or ``removed``.
        missing_batch: whether no Batch has come.
        missing_counts: prefix to the messages that are missing under it.
        missing_headers: ids of announced sub batches whose header is missing.
        missing_parts: id of a sub batch to missing indexes, at most a hundred.
        positions: for every partition where its messages begin.
        reason: free text.

    """

    block: bytes
    number: int | None
    state: str
    missing_batch: bool = False
    missing_counts: Mapping[str, int] = field(default_factory=dict)
    missing_headers: tuple[bytes, ...] = ()
    missing_parts: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    positions: Mapping[Partition, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def lacks(self) -> str:
        """The missing messages in a few words."""
        if self.missing_batch:
            return "lacks its Batch"
        parts = len(self.missing_headers) + sum(map(len, self.missing_parts.values()))
        messages = sum(self.missing_counts.values()) + parts
        return f"lacks {Count(messages, 'message')}"

    @property
    def summary(self) -> str:
        """Its state in a few words."""
        if self.state == "removed":
            return f"left the chain {self.reason}".rstrip()
        return f"is {self.state}{f': {self.reason}' if self.reason else ''}"

    def __str__(self) -> str:
        unknown = "is not on the topics" if any(self.block) else "is no block: a first block names it as its parent"
        texts = {"open": self.lacks, "unknown": unknown}
        return f"block {numbered(self.number, f'0x{self.block.hex()}')} {texts.get(self.state) or self.summary}"


def reorg_at(number: int) -> str:
    """The reason of a block that left the chain; ``number``: the lowest one that its reorg replaced."""
    return f"in the reorg at {number}"


@dataclass(frozen=True, slots=True, repr=False)
class Completed(Readable):
    """A block of which every tracked message was read.

    Attributes:
        payload: the block; content merged from all of its messages.
        positions: for every partition the lowest offset of a message of this block that was seen.
        published_ms: the time of its Batch's record.
        size: bytes of its messages, with what holding them costs.

    """

    payload: BlockHeader
    positions: Mapping[Partition, int]
    published_ms: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Divergence(Readable):
    """Two copies of one (block, key) that differ: producers disagree.

    ``kept`` and ``seen`` are raw values; ``positions`` are their positions, None for a kept copy whose position
    is no longer held because its block was completed.
    """

    block: bytes
    key: bytes
    kept: bytes
    seen: bytes
    positions: tuple[Position | None, Position]


@dataclass(frozen=True, slots=True, repr=False)
class Surplus(Readable):
    """A message beyond what its block's Batch counts or announces; it is not part of the block."""

    block: bytes
    key: bytes
    position: Position


@dataclass(frozen=True, slots=True, repr=False)
class Overflow(Readable):
    """A block evicted to stay within the bounds; ``positions`` are the first offsets of its messages.

    Nothing else is held of it: records that come later, or that are re-read, open it again. ``parent``: of a complete
    block that waited for others, or stood on a side branch.
    """

    block: bytes
    number: int | None
    positions: Mapping[Partition, int]
    reason: str
    parent: bytes = b""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """An overdue open block and what it lacks, so that a node or an archive can supply it."""

    explanation: Explanation


@dataclass(frozen=True, slots=True, repr=False)
class Superseded(Readable):
    """A block's first Batch could not be completed in time, and another Batch of the same hash was."""

    block: bytes
    number: int
    first: Position
    delivered: Position


@dataclass(frozen=True, slots=True, repr=False)
class Quarantined(Readable):
    """A block that was refused, or abandoned while the chain waited for it. The stream continues without it.

    ``header`` is its Batch's, None without a Batch: with it, the blocks above this one can still be delivered.
    """

    block: bytes
    number: int | None
    reason: str
    header: BlockHeader | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Rejected(Readable):
    """A record that is no message, or no message that its block can use; it is ignored."""

    position: Position
    key: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ReorgBegan:
    """A producer opened a reorg channel above this ancestor."""

    ancestor: BlockRef
    position: Position


@dataclass(frozen=True, slots=True)
class ReorgEnded:
    """A reorg channel's last message."""

    ancestor: BlockRef
    position: Position


@dataclass(frozen=True, slots=True)
class PingSeen:
    """A producer's ping was read."""

    ping: Ping
    position: Position


@dataclass(frozen=True, slots=True)
class Stale:
    """A block farther below the head than the reorg threshold, or outside another bound: the chain did not need it.

    ``producer``: the sender of the copy, under a quorum of which too few agreed; copies of other producers still count.
    """

    block: BlockRef
    reason: str
    producer: str | None = None


@dataclass(frozen=True, slots=True)
class ReorgAbandoned:
    """A reorg channel that made no progress, or whose blocks cannot replace the chain; its blocks were dropped."""

    ancestor: BlockRef
    reason: str


@dataclass(frozen=True, slots=True)
class ForkBelowStart:
    """A heavier chain leaves below the first block of this reader.

    ``start``: that block, or the delivered one below it with which a follower was configured. A
    :class:`~cardinal.Consumer` begins anew with the heavier chain, unless a finalized block was delivered.
    """

    tip: BlockRef
    start: BlockRef

    def __str__(self) -> str:
        return (
            f"a heavier chain with block {self.tip.number} (0x{self.tip.hash.hex()}) leaves below block "
            f"{self.start.number}, where this reader began"
        )


@dataclass(frozen=True, slots=True)
class BeganAbove:
    """The stream begins with ``start``, above blocks that no Batch links to its chain, down to number ``lowest``.

    Retention has expired a part of what is between, or it was never there.
    """

    start: BlockRef
    lowest: int


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A producer that is not one of those which count for a quorum; reported once for each, with its first record.

    ``producer`` is the beginning of its id. Of a stream's first 64 such producers only.
    """

    producer: str
    position: Position


ReassemblyEvent: TypeAlias = (
    Completed
    | Divergence
    | Surplus
    | Overflow
    | Incomplete
    | Superseded
    | Quarantined
    | Rejected
    | Stale
    | ReorgBegan
    | ReorgEnded
    | PingSeen
    | Untrusted
)
OrderingEvent: TypeAlias = (
    Stale | Quarantined | Overflow | ReorgAbandoned | ForkBelowStart | BeganAbove | FinalityViolated
)
Event: TypeAlias = ReassemblyEvent | OrderingEvent


class Change(Enum):
    """Effect of an update on the chain."""

    EXTEND = "extend"
    REORG = "reorg"
    REVERT = "revert"


@dataclass(frozen=True, slots=True, repr=False)
class ChainUpdate:
    """One step of the chain: blocks removed, newest first, then blocks added, oldest first.

    A reorg is exactly one update. Every removed and every added block takes the next sequence number.

    Attributes:
        seq: the number of the last block of this update within its lineage.
        first_seq: the number of its first block.
        removed: newest first, the order in which to undo.
        added: oldest first, the order in which to apply.
        finality: the finality marks after this update, None where the application has none.

    Invariants:
        ``seq - first_seq + 1 == len(removed) + len(added)``; the parent of ``added[0]`` is the parent of
        ``removed[-1]`` where both exist, unless ``removed`` is everything that was delivered and the stream begins anew
        (:class:`~cardinal.ForkBelowStart`); ``update`` then ``update.inverted()`` is a no-op on the list of blocks.

    """

    seq: int
    removed: tuple[AnyPayload, ...]
    added: tuple[AnyPayload, ...]
    finality: Finality | None = None
    _cursor: Callable[[], Cursor] | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash((self.seq, len(self.removed), tuple(block.hash for block in self.added)))

    def __repr__(self) -> str:
        steps = " ".join(filter(None, (_steps("-", self.removed), _steps("+", self.added))))
        return f"<ChainUpdate {self.first_seq}..{self.seq} {steps}>"

    def __reduce__(self) -> tuple[Callable[..., ChainUpdate], tuple[object, ...]]:
        cursor = None if self._cursor is None else self._cursor()
        return _update, (self.seq, self.removed, self.added, self.finality, cursor)

    @property
    def first_seq(self) -> int:
        """The sequence number of the update's first block."""
        return self.seq - len(self.removed) - len(self.added) + 1

    @property
    def change(self) -> Change:
        """The effect on the chain: an extension, a replacement, or a removal only."""
        if not self.removed:
            return Change.EXTEND
        return Change.REORG if self.added else Change.REVERT

    @property
    def cursor(self) -> Cursor:
        """The cursor that resumes after this update. Built on request; LookupError for an update made by hand."""
        if self._cursor is None:
            raise LookupError("this update did not come from a consumer and has no cursor")
        return self._cursor()

    def with_cursor(self, cursor: Callable[[], Cursor]) -> ChainUpdate:
        """The same update with a function that builds its cursor."""
        return replace(self, _cursor=cursor)

    def inverted(self) -> ChainUpdate:
        """The update that undoes this one. MissingPayloadError where a block's content is missing."""
        for block in (*self.removed, *self.added):
            if isinstance(block, MissingPayload):
                raise MissingPayloadError(
                    f"the content of block {block.number} ({block.hash.hex()}) can no longer be read, "
                    "so its update cannot be inverted",
                    number=block.number,
                    block_hash=block.hash,
                )
        return ChainUpdate(
            self.seq + len(self.removed) + len(self.added), self.added[::-1], self.removed[::-1], self.finality
        )


def _steps(sign: str, blocks: tuple[AnyPayload, ...]) -> str:
    """The blocks; of many the first, the last and their number."""
    many = len(blocks) > _LISTED
    named = [f"{sign}{one.number}:{one.hash[:4].hex()}" for one in (blocks[:: len(blocks) - 1] if many else blocks)]
    return f"{named[0]} … {named[1]} ({len(blocks)} blocks)" if many else " ".join(named)


def _update(
    seq: int,
    removed: tuple[AnyPayload, ...],
    added: tuple[AnyPayload, ...],
    finality: Finality | None,
    cursor: Cursor | None,
) -> ChainUpdate:
    """An update that was pickled, with the cursor that it had."""
    return ChainUpdate(seq, removed, added, finality, None if cursor is None else lambda: cursor)
