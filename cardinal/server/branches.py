"""A feed's payloads as calls of a producer: a block alone, or a branch as one.

A feed gives block after block; after a reorg the first block of the new branch, then the next. Which of them belong
together only their parents tell.

Rules:

1. A block on the head is a step of its own, and so is one of a branch within the threshold where nothing has to be
   published as one.
2. A branch deeper than the threshold, and any branch where updates are transactions (``together``), is kept until it is
   heavier than the head: that is the block with which consumers switch.
3. A branch that is left before that is kept no longer: the node's chain does not have it. What the new one shares with
   it stays.

Pure: no node, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cardinal.protocols.streams.types import BlockRef

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload


@dataclass(frozen=True, slots=True)
class Branch:
    """Blocks above an ancestor, oldest first, to be published as one."""

    ancestor: BlockRef
    payloads: tuple[Payload, ...]

    @property
    def newest(self) -> Payload:
        """Its last block."""
        return self.payloads[-1]


Step: TypeAlias = "Payload | Branch"


class Branches:
    """See the module.

    Arguments:
        threshold: blocks below the head from which on a branch needs a channel.
        head: the newest published block; None where nothing is.
        weight: its weight.
        together: whether every branch is published as one.

    """

    def __init__(self, threshold: int, head: BlockRef | None, weight: int = 0, *, together: bool = False) -> None:
        self._threshold = threshold
        self._head = head
        self._weight = weight
        self._together = together
        self._kept: list[Payload] = []

    def receive(self, payload: Payload) -> list[Step]:
        """The next payload of the feed: what can be published now."""
        if self._kept:
            self._leave(payload)
        head = self._head
        if not self._kept and (head is None or payload.parent == head.hash or not self._as_one(payload, head)):
            self._advance(payload)
            return [payload]
        self._kept.append(payload)
        return self.rest() if payload.weight > self._weight else []

    def rest(self) -> list[Step]:
        """The feed has ended: what is kept."""
        if not self._kept:
            return []
        first = self._kept[0]
        branch = Branch(BlockRef(first.number - 1, first.parent), tuple(self._kept))
        self._advance(branch.newest)
        self._kept = []
        return [branch]

    def _as_one(self, payload: Payload, head: BlockRef) -> bool:
        return payload.number > 0 and (self._together or head.number - (payload.number - 1) > self._threshold)

    def _leave(self, payload: Payload) -> None:
        """Of what is kept, keep what is below this payload."""
        while self._kept and self._kept[-1].hash != payload.parent:
            self._kept.pop()

    def _advance(self, payload: Payload) -> None:
        if self._head is None or payload.parent == self._head.hash or payload.weight > self._weight:
            self._head, self._weight = payload.ref, payload.weight
