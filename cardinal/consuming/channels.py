"""Reorg channels that are read beside a stream: topics that come and go.

One that is not there yet is looked for again, one that is gone is let go. None holds up the stream's own topics. Of
several places that are read as one it is read in those that answer, and in the others when they are back. One of which
nobody says whether it is there counts as one that is there and was not read: it is not given up meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError, TopicError, UnreachableError
from cardinal.transports.added import Added
from cardinal.transports.base import ManySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Row
    from cardinal.transports import Source

_LOOK_SECONDS: Final = 1.0
_RECORDS: Final = 2_000


class Channels:
    """See the module.

    Arguments:
        open_channel: opens a channel's topic; raises as :func:`cardinal.transports.open_source`.
        main: what is read beside.

    """

    def __init__(self, open_channel: Callable[[str], Source], main: Source) -> None:
        self._open_channel = open_channel
        self._open_beside = (lambda topic: main.beside((topic,))) if isinstance(main, ManySource) else open_channel
        self._sources: dict[str, Source] = {}
        self._absent: dict[str, UnreachableError | None] = {}
        """Those that are not read. An error: nobody says whether it is there."""
        self._added: dict[str, Added] = {}
        self._looked = 0.0

    def __bool__(self) -> bool:
        """Whether one is read."""
        return bool(self._sources)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest offset that is kept and the one after the highest.

        Raises:
            UnreachableError: nobody says them, or whether a channel is there.

        """
        for error in filter(None, self._absent.values()):
            raise error
        marks: dict[Partition, tuple[int, int]] = {}
        for topic, source in [*self._sources.items()]:
            with self._may_go(topic):
                marks |= source.watermarks()
        return marks

    def positions(self) -> dict[Partition, int]:
        """The next offset of each."""
        positions: dict[Partition, int] = {(topic, 0): 0 for topic, error in self._absent.items() if error is not None}
        for source in self._sources.values():
            positions |= source.positions()
        return positions

    def poll(self) -> Iterator[list[Row]]:
        """What is there already, channel by channel: what one has given stands when the next one fails."""
        for topic, source in [*self._sources.items()]:
            with self._may_go(topic):
                yield [*source.poll(_RECORDS, 0.0)]

    def resume(self, topics: Iterable[str], begin: Mapping[Partition, int]) -> None:
        """Read these from where a cursor needs them.

        Raises:
            UnreachableError: nobody says whether a channel is there; one that is not would count as gone for good.

        """
        for topic in topics:
            self._open(topic, self._open_channel, begin)

    def follow(self, topics: Iterable[str]) -> None:
        """Read exactly these, new ones from their start."""
        wanted = set(topics)
        for topic in (self._sources.keys() | self._absent.keys()) - wanted:
            self._close(topic)
            del self._absent[topic]
        unseen = wanted - self._sources.keys() - self._absent.keys()
        if not wanted or not (unseen or time.monotonic() - self._looked > _LOOK_SECONDS):
            return
        self._looked = time.monotonic()
        for topic in sorted(wanted):
            if topic in self._added:  # in places that have it by now
                with contextlib.suppress(UnreachableError), self._may_go(topic):
                    self._added[topic].look_now()
            elif topic not in self._sources:
                try:
                    self._open(topic, self._open_beside, {})
                except UnreachableError as error:
                    self._absent[topic] = error

    def close(self) -> None:
        """Read none. May be called twice."""
        self.follow(())

    def _open(self, topic: str, open_channel: Callable[[str], Source], begin: Mapping[Partition, int]) -> None:
        """Read a channel from ``begin`` or from its start, if it is there: it counts as missing until it is read."""
        self._absent[topic] = None
        with contextlib.suppress(TopicError, CursorExpiredError), contextlib.ExitStack() as opened:
            source = open_channel(topic)
            opened.callback(source.close)
            low = source.watermarks()
            source.assign({where: max(first, begin.get(where, first)) for where, (first, _) in low.items()})
            opened.pop_all()
            del self._absent[topic]
            self._sources[topic] = source
            if isinstance(source, ManySource):
                self._added[topic] = Added(source, self._looked)

    @contextlib.contextmanager
    def _may_go(self, topic: str) -> Iterator[None]:
        """A channel whose topic goes is read no longer."""
        try:
            yield
        except (TopicError, CursorExpiredError):
            self._close(topic)

    def _close(self, topic: str) -> None:
        self._added.pop(topic, None)
        self._absent[topic] = None
        if (source := self._sources.pop(topic, None)) is not None:
            source.close()
