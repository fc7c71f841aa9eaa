"""Reorg channels that are read alongside a stream: topics that come and go.

A channel is opened on another thread. One that does not exist yet is looked for again; one that is deleted is read no
longer. It counts as missing until it is read; one of which no server says whether it exists counts as one that exists
and was not read: it is not abandoned meanwhile. Partitions that it gains (in a further member of a mux) are read too.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import CursorExpiredError, TopicError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from cardinal.consuming.watermarks import Marks
    from cardinal.protocols.streams.types import Partition, Row
    from cardinal.transports import Source

    Opened = tuple[Source, dict[Partition, int]]

LOOK_SECONDS: Final = 1.0
"""Between two looks for a channel that does not exist yet."""
_RECORDS: Final = 2_000


class Channels:
    """The channels that are read.

    ``open_channel`` opens a topic, and raises as :func:`cardinal.transports.open_source`.
    """

    def __init__(self, open_channel: Callable[[str], Source]) -> None:
        self._open_channel = open_channel
        self._read: dict[str, Watermarks] = {}
        """Of the channels that are read."""
        self._absent: dict[str, bool] = {}
        """Channels that are not read. True: no server says whether it exists."""
        self._opening: dict[str, Future[Opened]] = {}
        self._looked = 0.0

    def watermarks_after(self, moment: float) -> Marks | None:
        """Those of all channels, requested after this moment; None: not answered yet. Raises as the sources do."""
        marks: dict[Partition, tuple[int, int]] = {}
        answered = not any(self._absent.values())
        for topic, watermarks in [*self._read.items()]:
            with self._may_end(topic):
                if (answer := watermarks.after(moment)) is None:
                    answered = False
                else:
                    marks |= answer
        return marks if answered else None

    @property
    def ends(self) -> dict[Partition, int]:
        """The newest known end of each, records behind open transactions included."""
        return {tp: end for watermarks in self._read.values() for tp, (_, end) in watermarks.ends.items()}

    def positions(self) -> dict[Partition, int]:
        """The next offset of each."""
        positions: dict[Partition, int] = {(topic, 0): 0 for topic, may_exist in self._absent.items() if may_exist}
        for watermarks in self._read.values():
            positions |= watermarks.source.positions()
        return positions

    def poll(self) -> Iterator[list[Row]]:
        """The records that have arrived, channel by channel: those of one count when the next one fails."""
        for topic, watermarks in [*self._read.items()]:
            with self._may_end(topic):
                yield [*watermarks.source.poll(_RECORDS, 0.0)]

    def resume(self, topics: Iterable[str], begin: Mapping[Partition, int]) -> None:
        """Read these from where a cursor needs them.

        UnreachableError where no server says whether a channel exists; one that does not would count as expired.
        """
        for topic in topics:
            self._absent[topic] = False
            with self._may_end(topic):
                self._begin(topic, self._open(topic), begin)
                self._read[topic].query()

    def follow(self, topics: Iterable[str]) -> None:
        """Read exactly these, new ones from their start."""
        wanted = set(topics)
        for topic in (self._read.keys() | self._absent.keys()) - wanted:
            self._close(topic)
            del self._absent[topic]
        if not wanted:
            return
        for topic in [topic for topic, opening in self._opening.items() if opening.done()]:
            self._take(topic, self._opening.pop(topic))
        unseen = wanted - self._read.keys() - self._absent.keys()
        if not unseen and time.monotonic() - self._looked <= LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for topic in sorted(wanted):
            if topic in self._read:
                with self._may_end(topic):
                    self._read[topic].read_new_partitions()
            elif topic not in self._opening:
                self._absent.setdefault(topic, True)
                self._opening[topic] = run_in_thread(partial(self._open, topic), "cardinal-reorg-channel")

    def close(self) -> None:
        """Read none. May be called twice."""
        self.follow(())

    # --- inside ----------------------------------------------------------------------------------------------

    def _open(self, topic: str) -> Opened:
        with contextlib.ExitStack() as opened:
            source = self._open_channel(topic)
            opened.callback(source.close)
            starts = source.offsets_for_time(0)
            opened.pop_all()
            return source, starts

    def _take(self, topic: str, opening: Future[Opened]) -> None:
        """Read a channel that was opened."""
        self._absent[topic] = False
        try:
            self._begin(topic, opening.result(), {})
        except UnreachableError:
            self._absent[topic] = True
        except (TopicError, CursorExpiredError):
            pass  # looked for again

    def _begin(self, topic: str, opened: Opened, begin: Mapping[Partition, int]) -> None:
        source, starts = opened
        try:
            source.assign({tp: max(first, begin.get(tp, first)) for tp, first in starts.items()})
        except BaseException:
            source.close()
            raise
        del self._absent[topic]
        self._read[topic] = Watermarks(source)

    @contextlib.contextmanager
    def _may_end(self, topic: str) -> Iterator[None]:
        """A channel whose topic is deleted is read no longer."""
        try:
            yield
        except (TopicError, CursorExpiredError):
            self._close(topic)

    def _close(self, topic: str) -> None:
        self._absent[topic] = False
        if (watermarks := self._read.pop(topic, None)) is not None:
            watermarks.source.close()
        if (opening := self._opening.pop(topic, None)) is not None:
            opening.add_done_callback(_close_unwanted)


def _close_unwanted(opening: Future[Opened]) -> None:
    if opening.exception() is None:
        opening.result()[0].close()
