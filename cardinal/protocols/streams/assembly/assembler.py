"""Assembler: the interface of whatever makes blocks out of records, for every policy.

:class:`~.reassembler.Reassembler` is the policy ``first``,
:class:`~cardinal.protocols.streams.quorum.reassembler.QuorumReassembler` is ``quorum:k``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from cardinal.protocols.streams.events import Explanation, Header, ReassemblyEvent
from cardinal.protocols.streams.types import Partition, Routed, Row

from .evicted import Link


class Assembler(Protocol):
    """Blocks under assembly."""

    def receive(self, records: Iterable[Row]) -> list[ReassemblyEvent]:
        """Take records in the order read; returns what came of them, in order."""
        ...

    def supply(self, messages: Iterable[Routed]) -> list[ReassemblyEvent]:
        """Take messages that a node or an archive had."""
        ...

    def abandon(self, block_hash: bytes, reason: str) -> list[ReassemblyEvent]:
        """Wait no longer for an open block: Quarantined, with a header where its Batch is known."""
        ...

    def forget(self, block_hash: bytes) -> None:
        """Forget that a block was completed or abandoned: its records, read again, assemble it again."""
        ...

    def reread(self, begin: Mapping[Partition, int], wanted: Container[bytes]) -> None:
        """Records are read again from ``begin`` on, because these blocks are wanted."""
        ...

    def head_moved(self, number: int) -> list[ReassemblyEvent]:
        """Drop what lies too far below the chain's head, which is at ``number``."""
        ...

    def open_blocks(self) -> list[bytes]:
        """The hashes of the open blocks, oldest first."""
        ...

    def open_positions(self) -> dict[Partition, int]:
        """For every partition the lowest offset that an open block still needs, or a lower one."""
        ...

    def header_of(self, block_hash: bytes) -> Header | None:
        """The header that the Batch of an open block gives; None without a Batch, or where it is not open."""
        ...

    def links_of(self, block_hash: bytes) -> set[Link]:
        """Parent and number as any Batch of an open block gives them."""
        ...

    def headers(self) -> list[Header]:
        """The headers of all open blocks whose Batch is there."""
        ...

    def number_of(self, block_hash: bytes) -> int | None:
        """The number that a Batch gives to a block, open or recently completed; None where that is not known."""
        ...

    def explain(self, block_hash: bytes) -> Explanation:
        """The state of a block and what it lacks."""
        ...

    @property
    def fullness(self) -> float:
        """The part of the bounds on open blocks that is used, 0 to 1, in number or in bytes."""
        ...

    @property
    def lowest_open(self) -> int | None:
        """The number of the lowest open block that has a Batch; None without one."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of all that is held."""
        ...
