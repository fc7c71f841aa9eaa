"""What a follower needs of whoever makes blocks out of records: one shape for every policy.

:class:`~.reassembler.Reassembler` is the policy ``first``, :class:`~.reassembler.QuorumReassembler` is ``quorum:k``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.types import Partition, Routed, Row

from .block import Explanation


class Assembler(Protocol):
    """Blocks under assembly."""

    def receive(self, records: Iterable[Row]) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order."""
        ...

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had."""
        ...

    def give_up(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block."""
        ...

    def reread(self, block_hash: bytes, known: Mapping[Partition, int] | None = None) -> Mapping[Partition, int] | None:
        """Hold a block again that was dropped or finished; where to read it from, None where that is not known here.

        ``known`` is where it begins, if somebody else knows it.
        """
        ...

    def resumed(self, until: Mapping[Partition, int], waited: Collection[bytes]) -> frozenset[bytes]:
        """What was delivered before is read again; returns the hashes of the parts of old blocks.

        What is open and began below ``until``, and has none of these short names, is part of a block that was done with
        before: nobody waits for the rest, and when the chain is past it, it is stale.
        """
        ...

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """The chain's head is at ``number``: what lies too far below it is let go."""
        ...

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs, or a dropped one, or one lower."""
        ...

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        ...

    def dropped_blocks(self) -> Collection[bytes]:
        """The hashes of the blocks that were dropped and can be read again, oldest first."""
        ...

    def dropped(self, block_hash: bytes) -> bool:
        """Whether this is one of :meth:`dropped_blocks`."""
        ...

    @property
    def recovers(self) -> bool:
        """Whether there are blocks that were dropped and are not whole yet, read again or not."""
        ...

    @property
    def fullness(self) -> float:
        """How much of the room for open blocks is taken, 0 to 1, in number or in bytes."""
        ...

    @property
    def lowest_open(self) -> int | None:
        """The number of the lowest open block that has a Batch; None without one."""
        ...

    def done_blocks(self) -> list[tuple[int, bytes]]:
        """Number and hash of the blocks that are finished with and still recognised."""
        ...

    @property
    def held_bytes(self) -> int:
        """What is held, in bytes."""
        ...

    def ignore(self, names: Iterable[bytes]) -> None:
        """Treat blocks whose hash has one of these short names (:func:`~.types.short`) as done."""
        ...

    def number_of(self, block_hash: bytes) -> int | None:
        """The number that a Batch gives to this block, while that is remembered; None where it is not."""
        ...

    def explain(self, block_hash: bytes) -> Explanation:
        """What this block waits for, or what became of it."""
        ...
