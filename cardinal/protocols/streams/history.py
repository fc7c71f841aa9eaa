"""Which blocks were delivered, far below what the fork graph holds: hashes only, for reorgs through a channel.

The blocks stand one number after another; where a chain skips a number, the history begins anew there. It is bounded,
and can be extended downwards from older Batches by parent links (:meth:`History.recall`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cardinal.errors import DecodeError

from .avro import read_batch
from .keys import HASH_END
from .messages import BATCH
from .types import BlockRef, Record


class History:
    """The delivered chain. ``most``: blocks that are remembered at least; 1.25 times as many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first = 0
        self._hashes: list[bytes] = []

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._hashes)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block is one of them. Looks at every one: for whoever asks about a single block."""
        return block_hash in self._hashes

    @property
    def lowest(self) -> BlockRef | None:
        """The lowest block that is remembered."""
        return BlockRef(self._first, self._hashes[0]) if self._hashes else None

    def at(self, number: int) -> bytes | None:
        """The hash of the delivered block with this number."""
        index = number - self._first
        return self._hashes[index] if 0 <= index < len(self._hashes) else None

    def upwards(self, number: int) -> Iterator[BlockRef]:
        """The delivered blocks from this number on."""
        for index in range(number - self._first, len(self._hashes)):
            yield BlockRef(self._first + index, self._hashes[index])

    def append(self, ref: BlockRef) -> None:
        """A block is delivered on top."""
        if ref.number != self._first + len(self._hashes):
            self._first = ref.number
            self._hashes.clear()
        self._hashes.append(ref.hash)
        if len(self._hashes) > self._most + self._most // 4:
            cut = len(self._hashes) - self._most
            del self._hashes[:cut]
            self._first += cut

    def cut(self, count: int) -> None:
        """The highest ``count`` blocks were removed from the chain."""
        if count:
            del self._hashes[-count:]

    def recall(self, parents: Mapping[bytes, bytes], floor: int) -> int:
        """Extend the history downwards.

        Arguments:
            parents: hash to parent hash, of any blocks.
            floor: the number below which nothing was delivered.

        Returns:
            how many blocks were added.

        """
        found: list[bytes] = []
        current = self._hashes[0] if self._hashes else None
        while current is not None and self._first - len(found) > floor and len(self) + len(found) < self._most:
            current = parents.get(current)
            if current is not None:
                found.append(current)
        self._hashes[:0] = reversed(found)
        self._first -= len(found)
        return len(found)


def parents_of(records: Iterable[Record]) -> dict[bytes, bytes]:
    """Hash to parent hash of every Batch among these records; nothing for a hash whose Batches disagree."""
    parents: dict[bytes, bytes] = {}
    disputed: set[bytes] = set()
    for record in records:
        if len(record.key) != HASH_END or record.key[0] != BATCH:
            continue
        block_hash = record.key[1:]
        try:
            parent = read_batch(record.value).parent
        except DecodeError:
            continue
        if parents.setdefault(block_hash, parent) != parent:
            disputed.add(block_hash)
    return {block_hash: parent for block_hash, parent in parents.items() if block_hash not in disputed}
