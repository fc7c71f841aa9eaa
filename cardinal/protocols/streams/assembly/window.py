"""All blocks under assembly: what they hold together, which is overdue, and which goes when there is too much.

Rules:

1. Deadlines are counted in blocks that were completed (:meth:`OpenBlocks.progress`), never in time or numbers: numbers
   come from the wire and prove nothing.
2. Over the bounds, blocks without a Batch go first, oldest first, then the lowest numbers, down to nine tenths. What is
   read again goes last, the newest of it: as many as :attr:`Bounds.again`, so that whoever reads no more together gets
   them whole, whatever else is open.
3. The queues name blocks and do not hold them: a block may be let go long before its turn.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cardinal.protocols.streams.types import Partition

from .block import BLOCK_OVERHEAD, OpenBlock

_SLACK: Final = 1000


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a reassembler may hold.

    Attributes:
        open_bytes: bytes of open blocks, overhead included.
        open_blocks: how many blocks may be open.
        finished_bytes: bytes of completed blocks that are kept to compare late copies with.
        headless_distance: records after which a hash without a Batch no longer pins positions, nor a dropped block.

    """

    open_bytes: int = 256 << 20
    open_blocks: int = 10_000
    finished_bytes: int = 256 << 20
    headless_distance: int = 1_000_000

    @property
    def again(self) -> int:
        """How many blocks that are read again have a place before all others."""
        return max(1, self.open_blocks // 2)

    def part(self, parts: int) -> Bounds:
        """The bounds of one of ``parts`` reassemblers that share these."""
        return replace(
            self,
            open_bytes=self.open_bytes // parts,
            open_blocks=max(1, self.open_blocks // parts),
            finished_bytes=self.finished_bytes // parts,
        )


class OpenBlocks:
    """See the module.

    Arguments:
        bounds: see :class:`Bounds`.
        deadline: completed blocks after a block's first message, when it is overdue.

    """

    def __init__(self, bounds: Bounds, deadline: int) -> None:
        self._bounds = bounds
        self._deadline = deadline
        self._blocks: dict[bytes, OpenBlock] = {}
        self._completed = 0
        self._due: deque[tuple[int, bytes, int]] = deque()
        """When which block is overdue. The last member tells it from a later one of the same hash."""
        self._again = 0
        self._passed = 0
        """The chain is past blocks with a lower number."""
        self._numbers: list[tuple[int, int, bytes]] = []
        """A heap of the blocks' numbers, each with what :meth:`_still` needs."""
        self.bytes = 0
        """What they hold, overheads included."""
        self.get = self._blocks.get
        """The block with this hash, or None."""
        self.values = self._blocks.values
        """The blocks, oldest first."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether a block with this hash is open."""
        return block_hash in self._blocks

    def __iter__(self) -> Iterator[bytes]:
        """Their hashes, oldest first."""
        return iter(self._blocks)

    def open(self, block_hash: bytes, seen_at: int, begins: Mapping[Partition, int]) -> OpenBlock:
        """A block of which the first message has come.

        Arguments:
            block_hash: which.
            seen_at: how many records came before.
            begins: where its messages begin, if it is read again.

        """
        block = OpenBlock(block_hash, seen_at)
        if begins:
            block.first.update(begins)
            self._again += 1
            block.again = self._again
        self._blocks[block_hash] = block
        self.bytes += BLOCK_OVERHEAD
        self._due.append((self._completed + self._deadline, block_hash, seen_at))
        if len(self._due) > 2 * len(self._blocks) + _SLACK:
            self._due = deque(due for due in self._due if self._still(due[1], due[2]) is not None)
        return block

    def drop(self, block: OpenBlock) -> None:
        """A block that is open no longer."""
        del self._blocks[block.hash]
        self.bytes -= block.size

    def grow(self, block: OpenBlock, size: int) -> None:
        """A block holds ``size`` bytes more."""
        block.size += size
        self.bytes += size

    def numbered(self, block: OpenBlock, number: int) -> None:
        """A block's Batch has come and says its number."""
        block.late = number < self._passed
        heapq.heappush(self._numbers, (number, block.seen_at, block.hash))
        if len(self._numbers) > 2 * len(self._blocks) + _SLACK:
            self._numbers = sorted(each for each in self._numbers if self._still(each[2], each[1]) is not None)

    def progress(self) -> None:
        """One more block was completed that stands on one that is known."""
        self._completed += 1

    def overdue(self) -> Iterator[OpenBlock]:
        """The blocks whose deadline has passed, each of them once."""
        while self._due and self._due[0][0] <= self._completed:
            block = self._still(*self._due.popleft()[1:])
            if block is not None:
                yield block

    def surplus(self) -> Iterator[OpenBlock]:
        """Drops blocks until nine tenths of the bounds are kept, and says which."""
        bytes_goal, blocks_goal = self._bounds.open_bytes * 9 // 10, self._bounds.open_blocks * 9 // 10
        for block in sorted(self._blocks.values(), key=self._order):
            if self.bytes <= bytes_goal and len(self._blocks) <= blocks_goal:
                return
            self.drop(block)
            yield block

    def _order(self, block: OpenBlock) -> tuple[bool, bool, int]:
        """Who goes first."""
        if block.again > max(0, self._again - self._bounds.again):
            return True, True, block.again
        return False, block.fields is not None, block.fields.number if block.fields else block.seen_at

    def below(self, number: int) -> list[OpenBlock]:
        """The chain is past blocks with a lower number: those, oldest first; each is offered once."""
        self._passed = number
        found: list[OpenBlock] = []
        while self._numbers and self._numbers[0][0] < number:
            its_number, seen_at, block_hash = heapq.heappop(self._numbers)
            block = self._still(block_hash, seen_at)
            if block is not None and block.fields is not None and block.fields.number == its_number:
                found.append(block)
        return sorted(found, key=lambda block: block.seen_at)

    @property
    def lowest(self) -> int | None:
        """The number of the lowest block that has a Batch; None without one."""
        while self._numbers and self._still(self._numbers[0][2], self._numbers[0][1]) is None:
            heapq.heappop(self._numbers)
        return self._numbers[0][0] if self._numbers else None

    def positions(self, records: int) -> dict[Partition, int]:
        """For every partition the lowest offset that a block still needs, ``records`` after the first of all.

        A block without a Batch pins its positions for :attr:`Bounds.headless_distance` records.
        """
        lowest: dict[Partition, int] = {}
        for block in self._blocks.values():
            if not block.candidates and records - block.seen_at > self._bounds.headless_distance:
                continue
            for partition, offset in block.first.items():
                if offset < lowest.get(partition, offset + 1):
                    lowest[partition] = offset
        return lowest

    def _still(self, block_hash: bytes, seen_at: int) -> OpenBlock | None:
        block = self._blocks.get(block_hash)
        return block if block is not None and block.seen_at == seen_at else None
