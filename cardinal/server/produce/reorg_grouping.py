"""Grouping of a feed's payloads into what a producer publishes as one: a block, or a branch.

A feed yields block after block, each once; after a reorg the first block of the new branch, then the next. Their
parents alone show which of them belong together.

Rules:

1. A block on the head is a step of its own, and so is one of a branch that leaves the chain within the threshold, where
   nothing has to be published as one.
2. A branch that leaves it deeper, and any branch where updates are transactions (``together``), is withheld until it is
   heavier than the head: that is the block with which consumers switch. Then it is published as one, from the first
   block above the chain that consumers have, with those of its blocks that were published alone while it was shorter.
3. A branch that the node leaves stays withheld; when the node returns to it, or to another one above its blocks, it is
   still here. The content of old blocks is pruned, their hashes are not, and the service requests the content from
   the node.

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
"""Blocks that are kept with their content: those off the chain, and where every branch is published as one, all."""

HASHES_MAX: Final = 16_384
"""Blocks on the chain, and off it, that are kept by their hash."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Blocks above an ancestor, oldest first, to be published as one; those whose content is pruned by hash only."""

    ancestor: BlockRef
    hashes: tuple[bytes, ...]
    held: Mapping[bytes, Payload]

    @property
    def newest(self) -> Payload:
        """The last block."""
        return self.held[self.hashes[-1]]

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """The blocks. KeyError names one whose content is pruned."""
        return tuple(self.held[block_hash] for block_hash in self.hashes)

    @property
    def missing(self) -> bool:
        """The content of some blocks is pruned."""
        return len(self.held) < len(self.hashes)


Step: TypeAlias = "Payload | Branch"


def payloads_of(step: Step) -> tuple[Payload, ...]:
    """The blocks of a step, oldest first."""
    return step.payloads if isinstance(step, Branch) else (step,)


def newest_of(step: Step) -> Payload:
    """A block, or the last one of a branch."""
    return step.newest if isinstance(step, Branch) else step


@dataclass(frozen=True, slots=True)
class Switch:
    """A reorg: the head before it, the head after it, and the last block that both have."""

    ancestor: BlockRef
    before: BlockRef
    after: BlockRef

    @property
    def depth(self) -> int:
        """Number of blocks that left the chain."""
        return self.before.number - self.ancestor.number


class ReorgGrouping:
    """Groups payloads.

    Arguments:
        threshold: blocks below the head from which on a branch needs a channel.
        published: the published chain, oldest first.
        weight: of its newest block.
        together: publish every branch as one.

    Attributes:
        switch: the reorg that the last payload completed; None where it completed none.

    """

    def __init__(
        self, threshold: int, published: Sequence[BlockRef] = (), weight: int = 0, *, together: bool = False
    ) -> None:
        self.switch: Switch | None = None
        self._threshold = threshold
        self._head = published[-1] if published else None
        self._weight = weight
        self._together = together
        self._chain = OrderedDict((ref.number, ref.hash) for ref in published[-HASHES_MAX:])
        self._side: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._content: OrderedDict[bytes, Payload] = OrderedDict()
        self._withheld: dict[bytes, None] = {}
        self._last = b""

    def receive(self, payload: Payload) -> list[Step]:
        """The steps that the feed's next payload completes."""
        head, self._last, self.switch = self._head, payload.hash, None
        if head is None or payload.parent == head.hash or payload.number == 0:
            if head is None or payload.number:
                self._extend(payload)
            if self._together:
                self._content[payload.hash] = payload
                self._prune()
            return [payload]
        self._side[payload.hash] = payload.number, payload.parent
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
            self.switch = Switch(ancestor, head, payload.ref)
            self._switch_to(ancestor, path, payload)
        self._prune()
        return steps

    def rest(self) -> list[Step]:
        """The branch that the node is on when the feed ends, if it is withheld."""
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
        """From the chain to a block off it: the last block that both have, and the hashes above it."""
        path, number, parent = [payload.hash], payload.number - 1, payload.parent
        while self._chain.get(number) != parent and parent in self._side:
            path.append(parent)
            number, parent = number - 1, self._side[parent][1]
        return BlockRef(number, parent), path[::-1]

    def _branch(self, ancestor: BlockRef, path: list[bytes]) -> Branch:
        return Branch(ancestor, tuple(path), {one: self._content[one] for one in path if one in self._content})

    def _switch_to(self, ancestor: BlockRef, path: list[bytes], newest: Payload) -> None:
        """The path is the chain from here on; what was above the ancestor is off it."""
        for number in [number for number in reversed(self._chain) if number > ancestor.number]:
            self._side[self._chain.pop(number)] = number, self._chain.get(number - 1, ancestor.hash)
        for number, block_hash in enumerate(path, ancestor.number + 1):
            self._chain[number] = block_hash
            self._side.pop(block_hash, None)
            if not self._together:
                self._content.pop(block_hash, None)
            self._withheld.pop(block_hash, None)
        self._head, self._weight = newest.ref, newest.weight

    def _prune(self) -> None:
        while len(self._side) > HASHES_MAX:
            self._side.popitem(last=False)
        while len(self._content) > CONTENT_MAX:
            self._content.popitem(last=False)
        while len(self._withheld) > HASHES_MAX:
            del self._withheld[next(iter(self._withheld))]
