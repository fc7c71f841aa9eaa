"""Window of blocks: those under assembly, their deadlines and bounds, and the recently completed ones.

Over the bounds, blocks without a Batch are evicted first, oldest first, then those farthest from the head, down to nine
tenths. Evicted last are blocks that the chain cannot advance without: parents of complete ones, and those that are
re-read for it. None is evicted for its own first message: where all others have a Batch, no further block would get
one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from cardinal.protocols.streams.lazy import BoundedDict, LazyHeap
from cardinal.protocols.streams.types import Partition, lowest

from .block import BLOCK_OVERHEAD, Candidate, OpenBlock

RECENT_MAX: Final = 100_000
"""Recently completed blocks that are recognised: numbers come from the wire and may be anything."""
_AWAITED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """Memory limits of a reassembler.

    Attributes:
        open_bytes, open_blocks: of open blocks, overhead included.
        finished_bytes: of completed blocks that are held to compare late copies with; the oldest lose theirs first.
        headless_distance: records after which a hash without a Batch no longer pins positions.
        votes: under a quorum, complete copies of each producer that wait for others, about 1 kB each.

    """

    open_bytes: int = 256 << 20
    open_blocks: int = 10_000
    finished_bytes: int = 256 << 20
    headless_distance: int = 1_000_000
    votes: int = 32_768

    def part(self, parts: int) -> Bounds:
        """The bounds of one of ``parts`` assemblers that share these."""
        return replace(
            self,
            open_bytes=self.open_bytes // parts,
            open_blocks=max(1, self.open_blocks // parts),
            finished_bytes=self.finished_bytes // parts,
            votes=max(1, self.votes // parts),
        )


def distance(number: int, head: int) -> int:
    """Blocks between one of this number and the next one of the chain; the farthest are evicted first."""
    return abs(number - head - 1)


class OpenBlocks:
    """Blocks under assembly. One is overdue when ``deadline`` blocks were completed since its first message."""

    def __init__(self, bounds: Bounds, deadline: int) -> None:
        self._bounds = bounds
        self._deadline = deadline
        self._blocks: dict[bytes, OpenBlock] = {}
        self._completed = 0
        self._due: LazyHeap[int, bytes] = LazyHeap()
        self._numbers: LazyHeap[int, bytes] = LazyHeap()
        self._awaited: BoundedDict[bytes, None] = BoundedDict(_AWAITED_MAX)
        """Hashes that complete blocks name as their parent, and that are not complete."""
        self.wanted: Container[bytes] = ()
        """Hashes of blocks that are re-read because the chain needs them."""
        self.head = -1
        """The number of the chain's head, -1 before the first."""
        self.bytes = 0
        """Bytes of all messages, overheads included."""
        self.get = self._blocks.get  # in the hot loop

    def __iter__(self) -> Iterator[OpenBlock]:
        """The blocks, oldest first."""
        return iter(self._blocks.values())

    def open(self, block_hash: bytes, seen_at: int, *, reopened: bool = False) -> OpenBlock:
        """Open a block; ``seen_at`` is the number of records that came before its first message."""
        self._blocks[block_hash] = block = OpenBlock(block_hash, seen_at, reopened)
        self.bytes += BLOCK_OVERHEAD
        self._due.put(block_hash, self._completed + self._deadline)
        return block

    def drop(self, block: OpenBlock) -> None:
        """Remove a block."""
        del self._blocks[block.hash]
        self._due.discard(block.hash)
        self._numbers.discard(block.hash)
        self.bytes -= block.size

    def grow(self, block: OpenBlock, size: int) -> None:
        """Account for ``size`` more bytes of a block."""
        block.size += size
        self.bytes += size

    def numbered(self, block: OpenBlock, number: int) -> None:
        """Note the number of a block whose Batch has come."""
        self._numbers.put(block.hash, number)

    def completed(self, block: OpenBlock, parent: bytes, *, parent_is_complete: bool) -> Iterable[OpenBlock]:
        """Remove a block that is complete; returns those that are overdue now, each once.

        A block whose parent is not held says nothing about deadlines.
        """
        self.drop(block)
        self._awaited.pop(block.hash, None)
        if not parent_is_complete:
            self._awaited[parent] = None
            if parent not in self._blocks:
                return ()
        self._completed += 1
        due = self._due.pop_below(self._completed + 1)
        return [self._blocks[block_hash] for block_hash in due] if due else ()

    @property
    def crowded(self) -> bool:
        """True when the bounds are exceeded."""
        return len(self._blocks) > self._bounds.open_blocks or self.bytes > self._bounds.open_bytes

    @property
    def fullness(self) -> float:
        """The part of the bounds that is used, 0 to 1, in number or in bytes."""
        return max(len(self._blocks) / self._bounds.open_blocks, self.bytes / self._bounds.open_bytes)

    def evict(self, newest: OpenBlock | None = None) -> Iterator[OpenBlock]:
        """Remove blocks until nine tenths of the bounds are used, but not the one just opened; yields them."""
        bytes_goal, blocks_goal = self._bounds.open_bytes * 9 // 10, max(1, self._bounds.open_blocks * 9 // 10)
        for block in sorted(self._blocks.values(), key=self._rank):
            if self.bytes <= bytes_goal and len(self._blocks) <= blocks_goal:
                return
            if block is not newest:
                self.drop(block)
                yield block

    def _rank(self, block: OpenBlock) -> tuple[bool, bool, int, int]:
        """Eviction order: see the module."""
        number = block.number
        near = 0 if number is None else -distance(number, self.head)
        needed = block.hash in self._awaited or block.hash in self.wanted
        return needed, number is not None, near, block.seen_at

    def pop_below(self, number: int) -> list[OpenBlock]:
        """Remove the blocks with a lower number; returns them, oldest first."""
        found = [self._blocks[block_hash] for block_hash in self._numbers.pop_below(number)]
        for block in found:
            self.drop(block)
        return sorted(found, key=lambda block: block.seen_at)

    def positions(self, records: int) -> dict[Partition, int]:
        """For every partition the lowest offset that a block still needs, after ``records`` records.

        A block without a Batch pins its positions for :attr:`Bounds.headless_distance` records.
        """
        distance = self._bounds.headless_distance
        needed = (block for block in self if block.candidates or records - block.seen_at <= distance)
        return lowest(*(block.first for block in needed))


@dataclass(slots=True, eq=False)
class RecentBlock:
    """A block that was completed or abandoned lately; ``number`` is 0 where it had no Batch.

    ``held`` has its messages while they are held, ``candidate`` then the Batch of a complete one. ``reason``: why it
    was abandoned; empty where it is complete.
    """

    number: int
    held: OpenBlock | None = None
    candidate: Candidate | None = None
    reason: str = ""

    def release(self) -> int:
        """Release the messages; returns their bytes."""
        size = 0 if self.held is None else self.held.size
        self.held = self.candidate = None
        return size


R = TypeVar("R", bound=RecentBlock)


class RecentBlocks(Generic[R]):
    """Recently completed or abandoned blocks, recognised for ``window`` blocks below the head.

    A block that was far below the head when it was added is recognised until the head has risen by half a window: else
    the rest of its messages would open it again. ``max_bytes``: of their messages.
    """

    def __init__(self, window: int, max_bytes: int) -> None:
        self._window = window
        self._head = 0
        self._max_bytes = max_bytes
        self._blocks: dict[bytes, R] = {}
        self._holding: dict[bytes, R] = {}
        self._numbers: LazyHeap[int, bytes] = LazyHeap()
        self.held_bytes = 0
        """Bytes that are held for comparison."""
        self.get = self._blocks.get  # in the hot loop

    def __contains__(self, block_hash: bytes) -> bool:
        """True when a block with this hash is recognised."""
        return block_hash in self._blocks

    def add(self, block_hash: bytes, block: R) -> None:
        """Remember a block."""
        self._blocks[block_hash] = block
        self._numbers.put(block_hash, max(block.number, self._head - self._window // 2))
        if block.held is not None:
            self._holding[block_hash] = block
            self.held_bytes += block.held.size
            while self.held_bytes > self._max_bytes:
                oldest = next(iter(self._holding))
                self.held_bytes -= self._holding.pop(oldest).release()
        if len(self._blocks) > RECENT_MAX:
            self.forget(next(iter(self._blocks)))

    def head_moved(self, number: int) -> list[tuple[bytes, R]]:
        """Forget the blocks more than the window below the head; returns them by hash."""
        self._head = number
        found = [
            (block_hash, self._blocks[block_hash]) for block_hash in self._numbers.pop_below(number - self._window)
        ]
        for block_hash, _ in found:
            self.forget(block_hash)
        return found

    def forget(self, block_hash: bytes) -> None:
        """Forget a block, if it is present."""
        block = self._blocks.pop(block_hash, None)
        if block is not None:
            self._numbers.discard(block_hash)
            if self._holding.pop(block_hash, None) is not None:
                self.held_bytes -= block.release()
