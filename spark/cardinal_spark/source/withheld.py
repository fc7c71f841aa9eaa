"""Updates that are withheld until their blocks are safe or finalized: option ``finality``.

Rules:

1. An update is delivered when the last block that it adds is final; one that only removes blocks, immediately.
2. A block that is removed before it is final is never delivered: the updates that add and remove it are joined.
3. The rows are renumbered, without a gap, and the lineage begins with the first block that was delivered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.protocols.streams.types import SHORT, BlockRef, short
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cardinal.protocols.streams.payload import AnyPayload
    from cardinal.protocols.streams.types import Finality

LATEST: Final = "latest"
LEVELS: Final = (LATEST, "safe", "finalized")

BLOCKS_MAX: Final = 50_000
"""Blocks that are withheld: some 2 kB each."""


class NetChange(NamedTuple):
    """Net effect of some updates. ``last``: the last one of them."""

    removed: Sequence[AnyPayload]
    added: Sequence[AnyPayload]
    last: ChainUpdate


class Withheld:
    """The withheld updates of one consumer, in order.

    Arguments:
        level: the finality that a block needs, one of ``LEVELS``.

    """

    def __init__(self, level: str) -> None:
        self._level = level
        self._held: deque[NetChange] = deque()
        self._seq: int | None = None
        self._start: BlockRef | None = None
        self.mark: int | None = None
        """The highest block that is final."""
        self.blocks = 0
        """The number of withheld blocks."""
        self.taken = 0
        """The number of updates that the consumer has delivered."""

    def __str__(self) -> str:
        mark = (
            f"no block carries the mark {self._level}"
            if self.mark is None
            else f"the last {self._level} block is {self.mark}"
        )
        return f"{Count(self.blocks, 'block is', 'blocks are')} not {self._level} yet, {mark}"

    def passed(self, updates: Iterable[ChainUpdate]) -> Iterator[ChainUpdate]:
        """The updates that are final.

        Raises:
            ConfigurationError: too many blocks are not final.

        """
        for update in updates:
            self.taken += 1
            if self._level == LATEST:
                yield update
                continue
            self._take(update)
            while self._held and self._is_final(self._held[0]):
                self.blocks -= len(self._held[0].added)
                yield self._numbered(self._held.popleft())

    def _take(self, update: ChainUpdate) -> None:
        if self._seq is None:
            self._seq = update.first_seq - 1
        self.mark = marked(update.finality, self._level)
        held = NetChange(update.removed, update.added, update)
        while held.removed and self._held:
            self.blocks -= len(self._held[-1].added)
            held = joined(self._held.pop(), held)
        if held.removed or held.added:
            self._held.append(held)
            self.blocks += len(held.added)
        if self.blocks > BLOCKS_MAX:
            raise ConfigurationError(
                f"{self}, and more cannot be withheld: start at blocks that carry it (startingOffsets), read with "
                "finality=latest, or use a producer whose node reports finality",
                setting="finality",
            )

    def _is_final(self, held: NetChange) -> bool:
        return not held.added or (self.mark is not None and held.added[-1].number <= self.mark)

    def _numbered(self, held: NetChange) -> ChainUpdate:
        if not self._seq:  # nothing was delivered in this lineage
            first = held.added[0]
            self._start = BlockRef(first.number, first.hash)
        seq = (self._seq or 0) + len(held.removed) + len(held.added)
        self._seq, start = seq, self._start

        def cursor() -> Cursor:
            made = held.last.cursor
            if start is not None:
                made = replace(made, start=start, lineage=made.lineage[:SHORT] + short(start.hash))
            return replace(made, seq=seq)

        return ChainUpdate(seq, tuple(held.removed), tuple(held.added), held.last.finality, cursor)


def marked(finality: Finality | None, level: str) -> int | None:
    """The highest final block of a stream."""
    return None if finality is None else finality.safe if level == "safe" else finality.finalized


def joined(first: NetChange, then: NetChange) -> NetChange:
    """The net effect of both, without blocks that are added by one and removed by the other."""
    gone = min(len(first.added), len(then.removed))
    removed = [*first.removed, *then.removed[gone:]]
    added = [*first.added[: len(first.added) - gone], *then.added]
    while removed and added and removed[-1].hash == added[0].hash:
        del removed[-1], added[0]
    return NetChange(removed, added, then.last)
