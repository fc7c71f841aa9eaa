"""A feed's payloads as calls of a producer: a block alone, or a branch as one.

A feed gives block after block, each once; after a reorg the first block of the new branch, then the next. Which of them
belong together only their parents tell.

Rules:

1. A block on the head is a step of its own, and so is one of a branch that leaves the chain within the threshold, where
   nothing has to be published as one.
2. A branch that leaves it deeper, and any branch where updates are transactions (``together``), is withheld until it is
   heavier than the head: that is the block with which consumers switch. Then it goes as one, from the first block above
   the chain that consumers have, also those of its blocks that went alone while it was shorter.
3. A branch that the node leaves stays withheld; when the node comes back to it, or to another one above its blocks, it
   is there. Of long ago the content is forgotten; the hashes are not, and whoever publishes asks the node again.

Pure: no node, no clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.protocols.streams.types import BlockRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.payload import Payload

CONTENT_MAX: Final = 256
"""Blocks that are remembered with their content: those beside the chain, and where every branch goes as one, all."""

HASHES_MAX: Final = 16_384
"""Blocks of the chain, and beside it, that are remembered by their hash."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Blocks above an ancestor, oldest first, to be published as one; those whose content is forgotten by hash only."""

    ancestor: BlockRef
    hashes: tuple[bytes, ...]
    held: Mapping[bytes, Payload]

    @property
    def newest(self) -> Payload:
        """Its last block."""
        return self.held[self.hashes[-1]]

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Its blocks. KeyError names one whose content has to be asked for."""
        return tuple(self.held[block_hash] for block_hash in self.hashes)

    @property
    def missing(self) -> bool:
        """Whether content has to be asked for."""
        return len(self.held) < len(self.hashes)


Step: TypeAlias = "Payload | Branch"


class Branches:
    """See the module.

    Arguments:
        threshold: blocks below the head from which on a branch needs a channel.
        published: the published chain, oldest first.
        weight: of its newest block.
        together: whether every branch is published as one.

    """

    def __init__(
        self, threshold: int, published: Sequence[BlockRef] = (), weight: int = 0, *, together: bool = False
    ) -> None:
        self._threshold = threshold
        self._head = published[-1] if published else None
        self._weight = weight
        self._together = together
        self._chain = OrderedDict((ref.number, ref.hash) for ref in published[-HASHES_MAX:])
        self._beside: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._content: OrderedDict[bytes, Payload] = OrderedDict()
        self._withheld: dict[bytes, None] = {}
        self._last = b""

    def receive(self, payload: Payload) -> list[Step]:
        """The next payload of the feed: what can be published now."""
        head, self._last = self._head, payload.hash
        if head is None or payload.parent == head.hash or payload.number == 0:
            if head is None or payload.number:
                self._extend(payload)
            if self._together:
                self._content[payload.hash] = payload
                self._forget()
            return [payload]
        self._beside[payload.hash] = payload.number, payload.parent
        self._content[payload.hash] = payload
        ancestor, path = self._path(payload)
        heavier = payload.weight > self._weight
        alone = not self._together and head.number - ancestor.number <= self._threshold
        if alone and payload.parent not in self._withheld:
            steps: list[Step] = [payload]
        else:
            self._withheld[payload.hash] = None
            steps = [self._branch(ancestor, path)] if heavier else []
        if heavier:
            self._switch(ancestor, path, payload)
        self._forget()
        return steps

    def rest(self) -> list[Step]:
        """The feed has ended: the branch that the node is on, if it is withheld."""
        newest = self._content.get(self._last)
        if newest is None or self._last not in self._withheld:
            return []
        del self._withheld[self._last]
        return [self._branch(*self._path(newest))]

    # --- inside --------------------------------------------------------------------------------------------

    def _extend(self, payload: Payload) -> None:
        self._head, self._weight = payload.ref, payload.weight
        self._chain[payload.number] = payload.hash
        if len(self._chain) > HASHES_MAX:
            self._chain.popitem(last=False)

    def _path(self, payload: Payload) -> tuple[BlockRef, list[bytes]]:
        """From the chain to a block beside it: the last block that both have, and the hashes above it."""
        path, number, parent = [payload.hash], payload.number - 1, payload.parent
        while self._chain.get(number) != parent and parent in self._beside:
            path.append(parent)
            number, parent = number - 1, self._beside[parent][1]
        return BlockRef(number, parent), path[::-1]

    def _branch(self, ancestor: BlockRef, path: list[bytes]) -> Branch:
        return Branch(ancestor, tuple(path), {one: self._content[one] for one in path if one in self._content})

    def _switch(self, ancestor: BlockRef, path: list[bytes], newest: Payload) -> None:
        """The path is the chain from here on; what stood above the ancestor stands beside it."""
        for number in [number for number in reversed(self._chain) if number > ancestor.number]:
            self._beside[self._chain.pop(number)] = number, self._chain.get(number - 1, ancestor.hash)
        for number, block_hash in enumerate(path, ancestor.number + 1):
            self._chain[number] = block_hash
            self._beside.pop(block_hash, None)
            if not self._together:
                self._content.pop(block_hash, None)
            self._withheld.pop(block_hash, None)
        self._head, self._weight = newest.ref, newest.weight

    def _forget(self) -> None:
        while len(self._beside) > HASHES_MAX:
            self._beside.popitem(last=False)
        while len(self._content) > CONTENT_MAX:
            self._content.popitem(last=False)
        while len(self._withheld) > HASHES_MAX:
            del self._withheld[next(iter(self._withheld))]
