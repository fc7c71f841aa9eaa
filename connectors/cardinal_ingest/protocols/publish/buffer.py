"""The publisher's buffer: the blocks of its branch that no node has acknowledged, newest last (P33, P34, P39)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cardinal.errors import LocalProtocolError

from .items import Header, Kind, framed_size, read_item
from .types import NONE, BlockId

SET_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of the items of one set; a larger item travels alone."""
BLOCK_BYTES: Final = 131_072_000
"""Most bytes of a block's body: what the nodes of this protocol accept. An item may have as many."""
HASH_SIZE: Final = 32


@dataclass(slots=True, eq=False)
class Held:
    """One block: growing until it is sealed. ``below`` is its parent while that is held."""

    id: BlockId
    parent: BlockId
    below: Held | None = None
    items: list[bytes] = field(default_factory=list)
    size: int = 0
    proofs_at: int | None = None
    sealed: bool = False
    sent: float | None = None
    """Time at which its end was sent on the open stream."""

    @property
    def number(self) -> int:
        """Block number."""
        return self.id.number

    def next_set(self, position: int) -> tuple[bytes, ...]:
        """The items to send next, from a position on; all proofs are in one set, and travel once the block is sealed.

        Nothing where the block has to grow first, or all was sent.
        """
        content_end = len(self.items) if self.proofs_at is None else self.proofs_at
        end, size = position, 0
        while end < content_end and (end == position or size + len(self.items[end]) <= SET_BYTES):
            size += len(self.items[end])
            end += 1
        if self.sealed and end == content_end and position < len(self.items):
            proofs = sum(map(len, self.items[content_end:]))
            if end == position or size + proofs <= SET_BYTES:
                end = len(self.items)
        return tuple(self.items[position:end])


class Buffer:
    """Blocks by ascending number without a gap."""

    def __init__(self, *, forks: bool) -> None:
        self._forks = forks
        self._blocks: dict[int, Held] = {}
        self._tip: BlockId | None = None
        self._newest: Held | None = None
        self.size = 0

    def __len__(self) -> int:
        """Number of blocks held."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[Held]:
        """The blocks held, lowest first."""
        return iter(self._blocks.values())

    def get(self, number: int) -> Held | None:
        """The block of this number."""
        return self._blocks.get(number)

    @property
    def lowest(self) -> int | None:
        """The lowest block held."""
        return next(iter(self._blocks), None)

    @property
    def next(self) -> int | None:
        """The number of the block that comes next; None before the first."""
        return None if self._tip is None else self._tip.number + 1

    def append(self, items: tuple[bytes, ...], *, sealed: bool) -> None:
        """Add items to the newest block; a header begins another.

        Raises:
            LocalProtocolError: the items do not continue the branch, or one is too large.

        """
        for item in items:
            self._append(item)
        newest = self._newest
        if sealed:
            if newest is None or newest.sealed or newest.proofs_at is None:
                raise LocalProtocolError("only a growing block with a proof can be sealed")
            newest.sealed = True

    def release(self, number: int) -> list[Held]:
        """Remove and return the blocks up to a number."""
        released = []
        while (lowest := self.lowest) is not None and lowest <= number:
            released.append(self._blocks.pop(lowest))
            self.size -= released[-1].size
            released[-1].below = None
        return released

    def cut(self, ancestor: int) -> None:
        """Drop the blocks above an ancestor: the branch continues there. It may be any block where none is held."""
        if self._tip is None or (self._blocks and ancestor >= self._tip.number):
            return
        for number in [number for number in self._blocks if number > ancestor]:
            self.size -= self._blocks.pop(number).size
        self._newest = self._blocks.get(ancestor)
        self._tip = BlockId(ancestor) if self._newest is None else self._newest.id

    def _append(self, item: bytes) -> None:
        if framed_size(len(item)) > BLOCK_BYTES:
            raise LocalProtocolError(f"an item of {len(item)} bytes is too large: {BLOCK_BYTES} bytes travel")
        newest = self._newest
        match read_item(item):
            case Header(number, block_hash, parent):
                newest = self._begin(number, block_hash, parent, newest)
            case Kind.MALFORMED:
                raise LocalProtocolError("an item must be one field of a message, with its tag and length")
            case kind:
                if newest is None or newest.sealed:
                    raise LocalProtocolError("the first item of a block must be its header")
                if kind is Kind.PROOF and newest.proofs_at is None:
                    newest.proofs_at = len(newest.items)
                elif kind is Kind.OTHER and newest.proofs_at is not None:
                    raise LocalProtocolError("no other item may follow a proof")
        if self._blocks.get(newest.number) is newest:  # another publisher's copy may be acknowledged while ours grows
            newest.items.append(item)
            newest.size += len(item)
            self.size += len(item)

    def _begin(self, number: int, block_hash: bytes, parent_hash: bytes, newest: Held | None) -> Held:
        if newest is not None and not newest.sealed:
            raise LocalProtocolError(f"seal block {newest.number} before the next one begins")
        if number == NONE or (self._tip is not None and number != self._tip.number + 1):
            raise LocalProtocolError(f"block {number} does not follow block {self._tip and self._tip.number}")
        block, parent = BlockId(number), BlockId(number - 1)
        if self._forks:
            if not len(block_hash) == len(parent_hash) == HASH_SIZE:
                raise LocalProtocolError(f"the header of block {number} must carry its hash and its parent's")
            block, parent = BlockId(number, block_hash), BlockId(number - 1, parent_hash)
            if newest is not None and newest.id != parent:
                raise LocalProtocolError(f"block {number} is not a child of block {newest.number}: report the reorg")
        below = self._blocks.get(number - 1)
        self._newest = self._blocks[number] = Held(block, parent, below)
        self._tip = block
        return self._newest
