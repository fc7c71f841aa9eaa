"""What is done when nothing comes any more: blocks that there was no room for are read again.

While a stream goes on, what a chain lacks shows in time (:mod:`.missing`), counted in blocks that come. At its end none
come: a block that was dropped, or let go, would be waited for until the stream goes on. Which of them a chain lacks
nobody knows, since the children of most were dropped as well: so all of them are read again.

Rules:

1. A round reads each of them once. Where one of them is what was lacking, there is another round.
2. After a round in vain the next one waits until a block was completed, after another one until two were, then four,
   and so on: what somebody left on the topics, half written or above nothing, costs less and less.
3. Where there was nothing to be read again, nothing is looked through until something comes: of a quorum, tens of
   thousands of dropped blocks take a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import replace
from itertools import islice
from typing import Final

from cardinal.protocols.streams.assembly.assembler import Assembler
from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.assembly.tombstones import TOMBSTONES_MAX

from .missing import Gaps

_TOGETHER: Final = 4_096


class Rest:
    """What is read again at a stream's end: blocks that were dropped, then blocks that were let go.

    Arguments:
        assembler: knows what was dropped.
        gaps: know what was let go.

    """

    def __init__(self, assembler: Assembler, gaps: Gaps) -> None:
        self._assembler = assembler
        self._gaps = gaps
        self._dropped, self._let_go = Rounds(), Rounds()
        self._nothing = False

    def stirred(self) -> None:
        """Something came, or is about to be read again."""
        self._nothing = False

    def completed(self, block_hash: bytes) -> None:
        """This block is whole."""
        self._dropped.found(block_hash)

    def delivered(self, block_hash: bytes) -> None:
        """This block is on the chain."""
        self._let_go.found(block_hash)

    def due(self, completed: int) -> list[Explanation]:
        """The blocks to be read again now, when so many were completed."""
        if self._nothing:
            return []
        dropped = self._assembler.dropped_blocks()
        found = self._dropped.due(
            completed, dropped, lambda told: [self._told(block_hash) for block_hash in oldest(dropped, told)]
        ) or self._let_go.due(completed, self._gaps.let_go_blocks(), self._gaps.lowest_let_go)
        self._nothing = not found
        return found

    def _told(self, block_hash: bytes) -> Explanation:
        """Of a quorum, a copy was dropped of it while another one is held: it is read again all the same."""
        return replace(self._assembler.explain(block_hash), state="dropped")


class Rounds:
    """When which of them are read again (rules 1 and 2)."""

    def __init__(self) -> None:
        self._told: set[bytes] = set()
        self._found = False
        self._pause = 1
        self._next: int | None = None

    def found(self, block_hash: bytes) -> None:
        """This block was what was lacking, if it is one of those that were read again."""
        self._found = self._found or block_hash in self._told

    def due(
        self, completed: int, waiting: Collection[bytes], choose: Callable[[Container[bytes]], list[Explanation]]
    ) -> list[Explanation]:
        """The blocks to be read again now.

        Arguments:
            completed: how many blocks were completed so far.
            waiting: the blocks that could be read again.
            choose: those of them to begin with, without these.

        """
        if self._found:
            self._begin(1)
        found = choose(self._told)
        if not found and waiting:
            if self._next is None:
                self._next = completed + self._pause
            elif completed >= self._next:
                self._begin(2 * self._pause)
                found = choose(self._told)
        self._told.update([one.block for one in found])
        if len(self._told) > 2 * TOMBSTONES_MAX:
            self._told.intersection_update(waiting)
        return found

    def _begin(self, pause: int) -> None:
        """A round, after which so many blocks have to be completed if it is in vain."""
        self._told.clear()
        self._found, self._pause, self._next = False, pause, None


def oldest(blocks: Collection[bytes], without: Container[bytes]) -> list[bytes]:
    """The first of these blocks, as many as are read again together."""
    return list(islice((block_hash for block_hash in blocks if block_hash not in without), _TOGETHER))
