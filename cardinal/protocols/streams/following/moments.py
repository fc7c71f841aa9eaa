"""What is written down of one moment of a stream, so that its cursor can be made later.

Only what is never changed afterwards is kept: places, floors, names. What changes is looked up when a cursor is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from cardinal.protocols.streams.assembly.assembler import Assembler
from cardinal.protocols.streams.types import BlockRef, FinalityViolated, Partition, short

OPEN_MAX: Final = 64
"""Of so many open blocks a cursor says the names."""
_OPEN_EVERY: Final = 8


class Held:
    """A block that is held.

    Attributes:
        ref, weight: of the block.
        places: for every partition where its messages begin; none where a node supplied them, or before they are read
            again after a resume, whose floors cover them.
        known: whether floors can be made of that; not of what was forgotten and is needed again.
        missing: whether it was delivered without its content.
        disputed: whether its Batch is.
        supplied: whether nothing of it is on the topics.

    """

    __slots__ = ("disputed", "known", "missing", "places", "ref", "supplied", "weight")

    def __init__(
        self, ref: BlockRef, weight: int, places: Mapping[Partition, int] | None, *, missing: bool = False
    ) -> None:
        self.ref = ref
        self.weight = weight
        self.places = places or {}
        self.known = places is not None
        self.missing = missing
        self.disputed = self.supplied = False

    def found(self, weight: int, places: Mapping[Partition, int]) -> None:
        """It is read again."""
        self.weight, self.places, self.known = weight, places, True


class Listed:
    """A list that only grows, as far as it went at that moment."""

    __slots__ = ("_count", "_entries")

    def __init__(self, entries: Sequence[tuple[int, bytes]] = (), count: int = 0) -> None:
        self._entries, self._count = entries, count

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The entries of then."""
        return islice(self._entries, self._count)


class OpenThen:
    """The open blocks as they were when last looked at, and where the reading stood then.

    A block that was opened later begins at or above that, so that this stays a safe answer. Blocks that are ``old`` are
    not waited for, and not named.
    """

    def __init__(
        self, reassembler: Assembler, following: Mapping[Partition, int], records: int, old: Collection[bytes]
    ) -> None:
        blocks = [block for block in reassembler.open_blocks() if block not in old]
        self.count = len(blocks)
        self.prefixes = frozenset(short(block) for block in blocks[:OPEN_MAX])
        self.records = records
        floor = reassembler.open_positions()
        self.floor = {p: min(offset, floor.get(p, offset)) for p, offset in following.items()}

    def worth(self) -> int:
        """After how many records to look again: of many open blocks, when that costs little beside reading them."""
        return max(self.count, _OPEN_EVERY * (self.count - OPEN_MAX))


class Standing:
    """Where the reading stood after one step. Only what is never changed afterwards is kept.

    Attributes:
        updates: the updates of the step so far.
        finished: number and short hash of finished blocks, in order; more of them than any cursor needs.
        cut: the same of blocks that hung on the chain below a floor, with that floor instead of their number.
        left: where the messages begin of what was let go after the first of them.
        channels_before: the channels that were open when the first of them was given out.
        cut_before: how much of ``cut`` there was then.

    """

    __slots__ = (
        "channels",
        "channels_before",
        "cut",
        "cut_before",
        "finished",
        "floor",
        "left",
        "next",
        "open",
        "updates",
        "violation",
    )

    def __init__(self, channels_before: tuple[BlockRef, ...] = (), cut_before: int = 0) -> None:
        self.updates = 0
        self.finished = Listed()
        self.cut = Listed()
        self.left: dict[Partition, int] = {}
        self.channels_before = channels_before
        self.cut_before = cut_before
        self.next: dict[Partition, int] = {}
        self.floor: dict[Partition, int] = {}
        self.open: frozenset[bytes] = frozenset()
        self.channels: tuple[BlockRef, ...] = ()
        self.violation: FinalityViolated | None = None

    def closed(self) -> list[BlockRef]:
        """The channels that were done with after the first update."""
        return [ancestor for ancestor in self.channels_before if ancestor not in self.channels]


def lower(floor: dict[Partition, int], places: Mapping[Partition, int]) -> None:
    """Let a floor reach down to these places."""
    for partition, offset in places.items():
        floor[partition] = min(offset, floor.get(partition, offset))
