"""A stream's partitions, kept in step while they are caught up with: who is ahead by their records is not read.

Who that is, :mod:`cardinal.transports.pace` says; here is when it is asked, and what it must know for that. Memory is
bounded by this, and nothing ever stands still: the slowest partition that has something to deliver is never paused.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError
from cardinal.transports.base import OneOrderSource
from cardinal.transports.later import now
from cardinal.transports.pace import Pace, Unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Row
    from cardinal.transports import Source

    Marks = dict[Partition, tuple[int, int]]

POLL_RECORDS: Final = 2_000
"""Of one poll. Five times as many were read 10 to 20 % slower: what one call brings no longer fits the core's cache."""
_PACE_SECONDS: Final = 0.25


class InStep:
    """See the module.

    Arguments:
        source: whose partitions.
        room: how many blocks may be open.

    Attributes:
        pace: who is ahead, and who is paused.
        limit: how many records one poll brings at most.

    """

    def __init__(self, source: Source, room: int) -> None:
        self.pace = Pace(room=room)
        self.limit = POLL_RECORDS
        self._source = source
        # One log in the order of writing keeps its partitions in step by itself.
        self._apart = not (isinstance(source, OneOrderSource) and source.one_order)
        self._unasked = source if isinstance(source, Unasked) else None
        self._asked: Future[Marks] | None = None
        self._looked = 0.0
        self._brought = 0
        self._ends: dict[Partition, int] = {}

    def by(self, number_of: Callable[[bytes], int | None], fullness: Callable[[], float]) -> None:
        """Keep in step by these numbers of blocks, where the times of records are wrong or not enough."""
        self.pace.heights.number_of = number_of
        self.pace.fullness = fullness

    def read(self, records: Sequence[Row]) -> None:
        """Take note of what a poll has brought."""
        self._brought = len(records)
        if self._apart:
            self.pace.seen(records)

    def end_at(self, marks: Mapping[Partition, tuple[int, int]]) -> None:
        """Take note of where partitions end."""
        self._ends |= {where: high for where, (_, high) in marks.items()}

    def pause(self) -> None:
        """Pause who is ahead by what was read before; whoever assembles blocks has taken that."""
        if not self._apart or not (self._brought or self.pace.paused):
            return
        due = time.monotonic() - self._looked >= _PACE_SECONDS
        if not due and not self.pace.strict and self._brought < self.limit // 2:
            return
        positions = self._source.positions()
        unasked, pace = self._unasked, self.pace
        if unasked is not None and not pace.paused and not pace.ahead(positions.keys() - unasked.at_end()):
            return  # at the head nobody is ahead; only where somebody seems to be, the ends are asked for
        if due:
            self._looked = time.monotonic()
            with contextlib.suppress(UnreachableError):  # the server is away: what was known before has to do
                self._look_at_ends()
        paused = pace.ahead(where for where, at in positions.items() if at < self._ends.get(where, 0))
        if paused != pace.paused:
            pace.paused = paused
            self._source.pause(paused)

    def rewound(self) -> None:
        """Pause nobody: the source reads from other offsets."""
        self.pace.restart()

    def _look_at_ends(self) -> None:
        """Learn where partitions end; where the source can do that, while reading goes on."""
        if self._asked is None:
            source, unasked = self._source, self._unasked
            self._asked = now(source.watermarks) if unasked is None else unasked.watermarks_later(look=False)
        if self._asked.done():
            answer, self._asked = self._asked, None
            self.end_at(answer.result())
