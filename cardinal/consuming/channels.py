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
from cardinal.consuming.new_partitions import NewPartitions
from cardinal.errors import CursorExpiredError, TopicError, TransportError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Row
    from cardinal.transports import Source

    Opened = tuple[Source, dict[Partition, int]]

LOOK_SECONDS: Final = 1.0
"""Between two looks for a channel that does not exist yet, and for its partitions."""
_RECORDS: Final = 2_000


class Channels:
    """The channels that are read.

    ``open_channel`` opens a topic, and raises as :func:`cardinal.transports.open_source`.
    """

    def __init__(self, open_channel: Callable[[str], Source]) -> None:
        self._open_channel = open_channel
        self._sources: dict[str, Source] = {}
        self._new_partitions: dict[str, NewPartitions] = {}
        self._absent: dict[str, UnreachableError | None] = {}
        """Channels that are not read. An error: no server says whether it exists."""
        self._opening: dict[str, Future[Opened]] = {}
        self._looked = 0.0

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the one after the highest; on any thread.

        UnreachableError where a server is away.
        """
        for error in filter(None, [*self._absent.values()]):
            raise error
        marks: dict[Partition, tuple[int, int]] = {}
        for topic, source in [*self._sources.items()]:
            try:
                marks |= source.watermarks()
            except (TopicError, CursorExpiredError):
                continue  # the next poll ends it
            except TransportError:
                if topic in self._sources:  # else it was closed meanwhile
                    raise
        return marks

    def positions(self) -> dict[Partition, int]:
        """The next offset of each."""
        positions: dict[Partition, int] = {(topic, 0): 0 for topic, error in self._absent.items() if error is not None}
        for source in self._sources.values():
            positions |= source.positions()
        return positions

    def poll(self) -> Iterator[list[Row]]:
        """The records that have arrived, channel by channel: those of one count when the next one fails."""
        for topic, source in [*self._sources.items()]:
            with self._may_end(topic):
                yield [*source.poll(_RECORDS, 0.0)]

    def resume(self, topics: Iterable[str], begin: Mapping[Partition, int]) -> None:
        """Read these from where a cursor needs them.

        UnreachableError where no server says whether a channel exists; one that does not would count as expired.
        """
        for topic in topics:
            self._absent[topic] = None
            with contextlib.suppress(TopicError, CursorExpiredError):
                self._read(topic, self._open(topic), begin)

    def follow(self, topics: Iterable[str]) -> None:
        """Read exactly these, new ones from their start."""
        wanted = set(topics)
        for topic in (self._sources.keys() | self._absent.keys()) - wanted:
            self._close(topic)
            del self._absent[topic]
        if not wanted:
            return
        for topic in [topic for topic, opening in self._opening.items() if opening.done()]:
            self._take(topic, self._opening.pop(topic))
        unseen = wanted - self._sources.keys() - self._absent.keys()
        if not unseen and time.monotonic() - self._looked <= LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for topic in sorted(wanted):
            if topic in self._sources:
                with self._may_end(topic):
                    self._new_partitions[topic].look_now()
            elif topic not in self._opening:
                self._absent.setdefault(topic, UnreachableError("it is being opened", address=topic))
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
        self._absent[topic] = None
        try:
            self._read(topic, opening.result(), {})
        except UnreachableError as error:
            self._absent[topic] = error
        except (TopicError, CursorExpiredError):
            pass  # looked for again

    def _read(self, topic: str, opened: Opened, begin: Mapping[Partition, int]) -> None:
        source, starts = opened
        try:
            source.assign({tp: max(first, begin.get(tp, first)) for tp, first in starts.items()})
        except BaseException:
            source.close()
            raise
        del self._absent[topic]
        self._sources[topic] = source
        self._new_partitions[topic] = NewPartitions(source, self._looked)

    @contextlib.contextmanager
    def _may_end(self, topic: str) -> Iterator[None]:
        """A channel whose topic is deleted is read no longer."""
        try:
            yield
        except (TopicError, CursorExpiredError):
            self._close(topic)

    def _close(self, topic: str) -> None:
        self._absent[topic] = None
        self._new_partitions.pop(topic, None)
        if (source := self._sources.pop(topic, None)) is not None:
            source.close()
        if (opening := self._opening.pop(topic, None)) is not None:
            opening.add_done_callback(_close_unwanted)


def _close_unwanted(opening: Future[Opened]) -> None:
    if opening.exception() is None:
        opening.result()[0].close()
