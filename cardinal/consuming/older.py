"""Older Batches for a reorg through a channel: looked up beside the stream, a poll at a time.

Rules:

1. What is looked up is the chain from the lowest delivered block that is remembered down to a number. Of the Batches
   between the two hash and parent hash are kept, and nothing else.
2. They lie in nearly the order of their numbers: read are those from the number's place on, in every partition up to
   the first that is well above the lowest remembered block.
3. Where these do not lead down to the number, the rest of the topic is read as well, once: what lies above, as a repair
   writes it, and then what lies below.
4. Nobody waits for a server that is away. The topic is opened on a thread of its own, and a server that is away while
   it is polled is polled again later. One that is away when a range is begun, and retention that was faster, end the
   look-up: the next poll begins another one.
"""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.consuming.lookup import (
    POLL_RECORDS,
    Found,
    Look,
    batches_from,
    marks_of_batches,
    out_of_order,
    read_batches,
)
from cardinal.errors import CursorExpiredError, UnreachableError
from cardinal.protocols.streams.ordering.history import Parents
from cardinal.transports.later import later

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.consuming.skiplist import Skipping
    from cardinal.protocols.streams.types import BlockRef, Partition, Record
    from cardinal.transports import Source
    from cardinal.transports.url import Topics

    Marks = Mapping[Partition, tuple[int, int]]
    Opened: TypeAlias = tuple[Source, Marks]

_THREAD: Final = "cardinal-older-batches"


class Older:
    """The look-up that is under way, if there is one. It belongs to one thread at a time.

    Arguments:
        open_source: opens the default topic once more, for every look-up.
        app: the application.
        threshold: its reorg threshold, blocks.
        skipping: records that are passed over.

    """

    def __init__(self, open_source: Callable[[], Source], app: Topics, threshold: int, skipping: Skipping) -> None:
        self._open = open_source
        self._app = app
        self._threshold = threshold
        self._skipping = skipping
        self._opening: Future[Opened] | None = None
        self._look_up: LookUp | None = None

    @property
    def comes(self) -> bool:
        """Whether a look-up is under way to which the last poll brought something."""
        return self._look_up is not None and self._look_up.comes

    def poll(self, number: int, lowest: BlockRef, timeout: float) -> Mapping[bytes, bytes] | None:
        """Look on for the chain from the lowest remembered block down to a number; another one was for nothing.

        Returns:
            hash to parent hash of what was found; None: not yet, poll again.

        Raises:
            CardinalError: what opening and reading a source raises, but that a server is away while it is polled.

        """
        if self._look_up is not None and not self._look_up.serves(number, lowest):
            self.close()
        with contextlib.suppress(CursorExpiredError), contextlib.ExitStack() as over:
            over.callback(self.close)
            if self._look_up is None and (opened := self._opened(timeout)) is not None:
                self._look_up = LookUp(*opened, number, lowest, self._threshold)
            if self._look_up is not None and self._look_up.poll(timeout, self._skipping.others):
                return self._look_up.parents.known
            over.pop_all()
        return None

    def close(self) -> None:
        """Look for nothing, and release the connection, if there is one. May be called twice."""
        if self._look_up is not None:
            look_up, self._look_up = self._look_up, None
            look_up.close()
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.add_done_callback(_close)

    # --- inside ----------------------------------------------------------------------------------------------

    def _opened(self, timeout: float) -> Opened | None:
        """The default topic, opened once more; None: not yet."""
        if self._opening is None:
            self._opening = later(self._open_and_ask, _THREAD)
        if not wait((self._opening,), timeout).done:
            return None
        opening, self._opening = self._opening, None
        return opening.result()

    def _open_and_ask(self) -> Opened:
        with contextlib.ExitStack() as opened:
            source = self._open()
            opened.callback(source.close)
            marks = marks_of_batches(source, self._app)
            opened.pop_all()
            return source, marks


def _close(opening: Future[Opened]) -> None:
    """Nobody wants any more what was opened."""
    if opening.exception() is None:
        source, _ = opening.result()
        source.close()


class LookUp:
    """One look-up.

    Arguments:
        source: what to read; closed with the look-up.
        marks: start and end of every partition of the default topic.
        number: of the block whose hash is wanted.
        lowest: the block to begin at.
        threshold: blocks.

    Attributes:
        parents: what was found.
        comes: whether the last poll brought something.

    """

    def __init__(self, source: Source, marks: Marks, number: int, lowest: BlockRef, threshold: int) -> None:
        self.parents = Parents()
        self.comes = True
        self._source = source
        self._marks = marks
        self._number = number
        self._lowest = lowest
        self._threshold = threshold
        self._look = self._looks()
        self._begun = False

    def serves(self, number: int, lowest: BlockRef) -> bool:
        """Whether this is a look-up down to that number, of all that lies between."""
        return number == self._number and lowest.number <= self._lowest.number

    def poll(self, timeout: float, others: Callable[[list[Record]], list[Record]]) -> bool:
        """Read on; whether that was the end.

        Arguments:
            timeout: seconds.
            others: leaves out the records that are passed over.

        """
        try:
            if self._begun:
                self._look.send(self._polled(timeout, others))
            else:
                next(self._look)
                self._begun = True
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """Release the connection."""
        self._look.close()
        self._source.close()

    # --- inside ----------------------------------------------------------------------------------------------

    def _polled(self, timeout: float, others: Callable[[list[Record]], list[Record]]) -> Sequence[Record]:
        self.comes = False
        with contextlib.suppress(UnreachableError):
            records = self._source.poll(POLL_RECORDS, timeout)
            self.comes = bool(records)
            return others(records)
        return ()

    def _looks(self) -> Look[None]:
        start = {where: low for where, (low, _) in self._marks.items()}
        end = {where: high for where, (_, high) in self._marks.items()}
        apart = out_of_order(self._threshold, len(self._marks))
        begin = yield from batches_from(self._source, self._marks, self._number - apart)
        last = self._lowest.number + apart
        read = yield from read_batches(self._source, begin, end, partial(self._take, last))
        for first, behind in ((read, end), (start, begin)):
            if self.parents.lead(self._lowest, self._number):
                return
            yield from read_batches(self._source, first, behind, partial(self._take, math.inf))

    def _take(self, last: float, batch: Found) -> bool:
        """Keep a Batch that may be of the chain; whether it is higher than the last that is looked for."""
        if self._number < batch.number <= self._lowest.number:
            self.parents.add(batch.hash, batch.parent)
        return batch.number > last
