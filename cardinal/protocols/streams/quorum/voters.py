"""What each producer of a quorum supplied, apart from the others.

Every producer has a :class:`~.reassembler.Reassembler` of its own, which gets its records alone. So a producer that
lies, floods or contradicts itself spoils its own copy and nobody else's, and uses up its own share of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cardinal.protocols.streams.assembly.block import OpenBlock
from cardinal.protocols.streams.assembly.finished import FinishedBlock
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.types import Partition

from .standings import Standings, lowest

_STANDINGS_SHARE: Final = 8
"""One part in so many of a producer's bytes is for its complete copies that wait for others."""


class Voter:
    """One producer: its blocks under assembly, and its complete copies that wait for others."""

    __slots__ = ("assembler", "held", "name", "standings")

    def __init__(self, name: str, assembler: Reassembler, standings: Standings) -> None:
        self.name = name
        self.assembler = assembler
        self.standings = standings
        self.held = assembler.held
        """What there is of a block: under assembly, or finished with; None where it is neither."""

    def open(self, block_hash: bytes) -> OpenBlock | None:
        """Its copy of a block, where that is not complete."""
        block = self.held(block_hash)
        return block if isinstance(block, OpenBlock) else None

    def room(self, block_hash: bytes) -> int:
        """How many values of a block it can take together before that could be whole; 0: one by one, below 0: any."""
        block = self.open(block_hash)
        if block is None or block.counters is None:
            return -1
        return 0 if block.careful else block.counters.outstanding or -1

    def keeps(self, block_hash: bytes) -> bool:
        """Whether the messages of its complete copy are still held."""
        block = self.held(block_hash)
        return isinstance(block, FinishedBlock) and block.held is not None

    def places(self, block_hash: bytes) -> Mapping[Partition, int]:
        """For every partition where its copy of an undecided block begins."""
        standing = self.standings.get(block_hash)
        if standing is not None:
            return standing.positions
        block = self.open(block_hash)
        return {} if block is None else block.first

    def open_positions(self) -> dict[Partition, int]:
        """The lowest offset that a copy still needs, of a block that is not whole or not decided."""
        return lowest(self.assembler.open_positions(), *(own.positions for own in self.standings))

    @property
    def held_bytes(self) -> int:
        """What all of its copies cost."""
        return self.assembler.held_bytes + self.standings.bytes


def voters_of(producers: Sequence[str], make: Callable[[Bounds], Reassembler], bounds: Bounds) -> list[Voter]:
    """One for each producer, with an equal share of the bounds; ``make`` gives a reassembler within its own."""
    own = share_of(bounds, len(producers))
    waiting = bounds.part(len(producers)).open_bytes - own.open_bytes
    return [Voter(name, make(own), Standings(own.open_blocks, waiting)) for name in producers]


def share_of(bounds: Bounds, producers: int) -> Bounds:
    """What one of so many producers may have under assembly; of blocks it may have as many that wait for others."""
    share = bounds.part(producers)
    waiting = share.open_bytes // _STANDINGS_SHARE
    return replace(share, open_bytes=share.open_bytes - waiting, open_blocks=max(1, share.open_blocks // 2))
