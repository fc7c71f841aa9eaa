"""A stream's records as a consumer reads them: its topics, reorg channels beside them, and older records again.

Rules:

1. Partitions are kept in step while they are caught up with (:mod:`cardinal.transports.pace`); memory is bounded by
   pausing the ones ahead.
2. A reorg channel is a topic that comes and goes: one that is not there yet is looked for again, one that is gone is
   let go. It never holds up the stream's own topics.
3. Older records are read again a step at a time, beside the stream, never instead of it (:mod:`.again`). Where the
   server is away just then, they are asked for again, and the stream's own records waited for meanwhile.
4. Partitions that are added while the stream is read are read from their beginning.
5. What was read is given: an error that comes after it, of a channel, is raised by the next call.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.consuming.again import Again, Room
from cardinal.consuming.skipping import Skipping
from cardinal.consuming.starting import batches_from, read_batches
from cardinal.errors import CardinalError, CursorExpiredError, TopicError, UnreachableError
from cardinal.transports import open_source
from cardinal.transports.base import OneOrderSource, RowSource
from cardinal.transports.pace import Pace, Unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition, Position, Record, Row
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.url import Topics

POLL_RECORDS: Final = 2_000
"""Of one poll. Five times as many were read 10 to 20 % slower: what one call brings no longer fits the core's cache."""
POLL_SECONDS: Final = 0.2
_POLL_APART: Final = 1_000
"""Of a poll where there is little room: it may bring records of one partition, each of another block. At the beginning,
too, when most partitions have not said anything yet."""
_FIRST_POLLS: Final = 32
_ROOM: Final = Room()
_PACE_SECONDS: Final = 0.25
_CHANNEL_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 1.0
_PARTITIONS_SECONDS: Final = 5.0

Marks = dict["Partition", tuple[int, int]]


class Reader:
    """See the module. It belongs to one thread at a time.

    Arguments:
        url: where from.
        app: the application whose topics are read.
        topics: those of them to read; None: all.
        wait: seconds to wait for the topics to exist.
        skip: topic, partition and offset of records that are passed over.
        whole: whether headers and times of all messages are needed.
        again: what blocks that are read again may hold together before they are whole.
        room: how many blocks may be open.

    Raises:
        UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_source`.

    """

    def __init__(
        self,
        url: str | TransportUrl,
        app: Topics,
        *,
        wait: float,
        topics: Sequence[str] | None = None,
        skip: Collection[Position] = (),
        whole: bool = True,
        again: Room = _ROOM,
        room: int = 10_000,
    ) -> None:
        self._url = url
        self._topics = topics
        self.skipping = Skipping(skip)
        self._app = app
        self.main: Source = open_source(url, app, topics=topics, wait=wait)
        self._rows = None if whole or not isinstance(self.main, RowSource) else self.main
        self._channels: dict[str, Source | None] = {}
        self._looked = 0.0
        self._away_until = 0.0
        # One log in the order of writing keeps its partitions in step by itself.
        self._apart = not (isinstance(self.main, OneOrderSource) and self.main.one_order)
        self._pace = Pace(room=room)
        self._unasked = self.main if isinstance(self.main, Unasked) else None
        self._looking: Future[tuple[Partition, ...]] | None = None
        self._asked: Future[Marks] | None = None
        self._ends_asked: Future[Marks] | None = None
        self._paced = 0.0
        self._brought = 0
        self._first_polls = _FIRST_POLLS
        self._ended: dict[Partition, int] = {}
        self._counted = time.monotonic()
        self._kept: CardinalError | None = None
        self._again = Again(lambda: open_source(url, app, topics=topics), again)

    # --- where -----------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        """The lowest offset that is kept and the one after the highest, of every partition, channels included."""
        marks = self.main.watermarks()
        self._end_at(marks)
        for topic, source in self._open_channels():
            with self._may_go(topic):
                marks |= source.watermarks()
        return marks

    def ends(self) -> dict[Partition, int]:
        """Where every partition ends now, those included that were added since: what is beyond is not there yet.

        New partitions are read from now on. A proof that nothing is left to read takes these, and positions that are
        asked for afterwards.
        """
        self._add_partitions()
        return {where: high for where, (_, high) in self.marks().items()}

    def ask_for_ends(self) -> None:
        """Begin to ask what :attr:`answered_ends` gives, without waiting where the source can do that."""
        if self._unasked is not None and not self._open_channels():
            self._asked = self._unasked.watermarks_later(look=True)

    def answered_ends(self) -> dict[Partition, int] | None:
        """:meth:`ends` as they were after :meth:`ask_for_ends`; None: not yet, look again at the next step.

        Raises:
            UnreachableError: the server is away; ask again.

        """
        if self._asked is None:
            return self.ends()
        if not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        marks = answer.result()
        if marks.keys() - self.main.positions().keys():
            return self.ends()  # there are new partitions, which are read from now on
        return {where: high for where, (_, high) in marks.items()}

    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read, channels included."""
        positions = self.main.positions()
        for _, source in self._open_channels():
            positions |= source.positions()
        return positions

    # --- reading ---------------------------------------------------------------------------------------------

    def keeps_step_with(self, number_of: Callable[[bytes], int | None], fullness: Callable[[], float]) -> None:
        """Keep partitions in step by these numbers of blocks, where the times of records are wrong or not enough."""
        self._pace.heights.number_of = number_of
        self._pace.fullness = fullness

    def poll(self) -> list[Row]:
        """The next records of everything that is read; empty where none come in time.

        Raises:
            CursorExpiredError, TopicError, RefusedError, TransportError: of the stream's own topics.

        """
        return self._poll(POLL_SECONDS)

    def poll_now(self) -> list[Row]:
        """The next records that are there already; raises as :meth:`poll`."""
        return self._poll(0.0)

    def _poll(self, seconds: float) -> list[Row]:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            raise kept
        self._look_for_partitions()
        if self._apart and (self._brought or self._pace.paused):
            self._keep_in_step()
        records = self._poll_main(seconds)
        self._brought = len(records)
        self._first_polls -= self._first_polls > 0 and self._brought > 0
        if self._apart:
            self._pace.seen(records)
        records = self.skipping.others(records)
        try:
            for topic, source in self._open_channels():
                with self._may_go(topic):
                    found = self.skipping.others(source.poll(POLL_RECORDS, 0.0))
                    records += found
        except CardinalError as error:
            if not records:
                raise
            self._kept = error
        return records

    def _poll_main(self, seconds: float) -> list[Row]:
        apart = self._first_polls > 0 or self._pace.strict
        limit = min(_POLL_APART, POLL_RECORDS) if self._apart and apart else POLL_RECORDS
        if self._rows is not None:
            return self._rows.poll_rows(limit, seconds)
        return [*self.main.poll(limit, seconds)]

    def resume(self, channels: Iterable[str], begin: Mapping[Partition, int]) -> None:
        """Read these reorg channels from where a cursor needs them.

        Raises:
            UnreachableError: nobody says whether a channel is there; one that is not would count as gone for good.

        """
        for topic in channels:
            self._open_channel(topic, begin)

    def follow(self, topics: Iterable[str]) -> None:
        """Read exactly these reorg channels beside the stream, new ones from their start."""
        wanted = set(topics)
        for topic in self._channels.keys() - wanted:
            self._let_go(topic, forget=True)
        missing = [topic for topic in sorted(wanted) if self._channels.get(topic) is None]
        if not missing or not (wanted - self._channels.keys() or time.monotonic() - self._looked > _CHANNEL_SECONDS):
            return
        self._looked = time.monotonic()
        for topic in missing:
            with contextlib.suppress(UnreachableError):  # looked for again
                self._open_channel(topic, {})

    def _open_channel(self, topic: str, begin: Mapping[Partition, int]) -> None:
        """Read a channel from ``begin`` or from its start, if it is there: it counts as missing until it is read."""
        self._channels[topic] = None
        with contextlib.suppress(TopicError, CursorExpiredError), contextlib.ExitStack() as opened:
            source = open_source(self._url, self._app, topics=(topic,))
            opened.callback(source.close)
            low = source.watermarks()
            source.assign({where: max(first, begin.get(where, first)) for where, (first, _) in low.items()})
            opened.pop_all()
            self._channels[topic] = source

    def _open_channels(self) -> list[tuple[str, Source]]:
        return [(topic, source) for topic, source in self._channels.items() if source is not None]

    @contextlib.contextmanager
    def _may_go(self, topic: str) -> Iterator[None]:
        """A channel whose topic goes is read no longer."""
        try:
            yield
        except (TopicError, CursorExpiredError):
            self._let_go(topic, forget=False)

    def _let_go(self, topic: str, *, forget: bool) -> None:
        source = self._channels.pop(topic)
        if source is not None:
            source.close()
        if not forget:
            self._channels[topic] = None

    # --- again -----------------------------------------------------------------------------------------------

    @property
    def reads_again(self) -> bool:
        """Whether there are blocks to be read again."""
        return bool(self._again)

    def read_again(self, block_hash: bytes, begin: Mapping[Partition, int]) -> None:
        """Read a block's messages again, from these offsets up to where the reading stands."""
        self._again.add(block_hash, begin, self.main.positions())

    @property
    def reads_again_now(self) -> bool:
        """Whether there are some that :meth:`poll_again` looks for now: not while the server was away a moment ago."""
        return self.reads_again and not self._is_away

    def poll_again(self) -> list[Record]:
        """The next records of blocks that are read again; empty where there are none, or the server is away."""
        if self._is_away:
            return []
        with self._may_be_away():
            return self.skipping.others(self._again.poll(POLL_RECORDS, POLL_SECONDS))
        return []

    def end_again(self, is_whole: Callable[[bytes], bool]) -> None:
        """Read no more of blocks that are whole by now."""
        self._again.end(is_whole)

    def older_batches(self, number: int) -> list[Record] | None:
        """Every Batch of the default topic from this number on, about; reads them all, which takes its time.

        None: the server is away, ask again at the next step.
        """
        if self._is_away:
            return None
        with self._may_be_away(), contextlib.ExitStack() as opened:
            source = open_source(self._url, self._app, topics=(self._app.default_topic,))
            opened.callback(source.close)
            begin = batches_from(source, self._app, number)
            return self.skipping.others([batch.record for batch in read_batches(source, begin)])
        return None

    # --- inside ----------------------------------------------------------------------------------------------

    @property
    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    @contextlib.contextmanager
    def _may_be_away(self) -> Iterator[None]:
        """A server that is away, as one that starts again, is asked again a little later."""
        try:
            yield
        except UnreachableError:
            self._away_until = time.monotonic() + _AWAY_SECONDS

    def _keep_in_step(self) -> None:
        """Pause who is ahead by what was read before; whoever assembles blocks has taken that."""
        due = time.monotonic() - self._paced >= _PACE_SECONDS
        if not due and not self._pace.strict and self._brought < min(_POLL_APART, POLL_RECORDS):
            return
        positions = self.main.positions()
        unasked, pace = self._unasked, self._pace
        if unasked is not None and not pace.paused and not pace.ahead(positions.keys() - unasked.at_end()):
            return  # at the head nobody is ahead; only where somebody seems to be, the ends are asked for
        if due:
            self._paced = time.monotonic()
            with contextlib.suppress(UnreachableError):  # the server is away: what was known before has to do
                self._look_at_ends()
        paused = pace.ahead(where for where, at in positions.items() if at < self._ended.get(where, 0))
        if paused != pace.paused:
            self._pace.paused = paused
            self.main.pause(paused)

    def _look_at_ends(self) -> None:
        """Learn where partitions end; where the source can do that, while reading goes on."""
        if self._unasked is None:
            self._end_at(self.main.watermarks())
        elif self._ends_asked is None:
            self._ends_asked = self._unasked.watermarks_later(look=False)
        elif self._ends_asked.done():
            answer, self._ends_asked = self._ends_asked, None
            self._end_at(answer.result())

    def _end_at(self, marks: Marks) -> None:
        self._ended |= {where: high for where, (_, high) in marks.items()}

    def _look_for_partitions(self) -> None:
        with contextlib.suppress(UnreachableError):
            if self._looking is not None and self._looking.done():
                answer, self._looking = self._looking, None
                if set(answer.result()) - self.main.positions().keys():
                    self._add_partitions()
            elif self._looking is None and self._is_due():
                if self._unasked is None:
                    self._add_partitions()
                else:
                    self._looking = self._unasked.look_later()

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._counted < _PARTITIONS_SECONDS:
            return False
        self._counted = now
        return True

    def _add_partitions(self) -> None:
        positions = self.main.positions()
        if added := set(self.main.partitions()) - positions.keys():
            lows = self.main.watermarks()
            self.main.assign(positions | {where: lows[where][0] for where in added})
            self.main.pause(self._pace.paused)

    def close(self) -> None:
        """Release every connection. May be called twice."""
        for topic in list(self._channels):
            self._let_go(topic, forget=True)
        self._again.close()
        self.main.close()
