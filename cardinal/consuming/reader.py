"""A consumer's records: its topics, and reorg channels beside them.

Rules:

1. Partitions are kept in step while they are caught up with (:mod:`.pacing`).
2. Reorg channels come and go beside the stream (:mod:`.channels`); older Batches are looked up
   alongside (:mod:`.lookup`).
3. Partitions that are added while the stream is read are read from their beginning.
4. Sources beside the stream's own are of no group: its lag says how far the stream is read.
5. What was read is delivered: an error that comes after it, of a channel, is raised by the next call.
6. A rewind that the server did not answer is repeated before anything else is read.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.consuming.channels import Channels
from cardinal.consuming.lookup import AncestorLookup
from cardinal.consuming.pacing import InStep
from cardinal.consuming.skiplist import Skipping
from cardinal.errors import CardinalError, UnreachableError
from cardinal.transports import open_source
from cardinal.transports.added import Added
from cardinal.transports.base import RowSource
from cardinal.transports.pace import Unasked
from cardinal.transports.settings import find_url

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import BlockRef, Partition, Position, Row
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.url import Topics

    Marks = dict[Partition, tuple[int, int]]

POLL_SECONDS: Final = 0.2
_AWAY_SECONDS: Final = 1.0


class Reader:
    """See the module. It belongs to one thread at a time.

    Arguments:
        url: where from.
        app: the application whose topics are read.
        topics: those of them to read; None: all.
        wait: seconds to wait for the topics to exist.
        skip: topic, partition and offset of records that are passed over.
        whole: whether headers and times of all messages are needed.
        room: how many blocks may be open.
        threshold: the application's reorg threshold, blocks.

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
        room: int = 10_000,
        threshold: int = REORG_THRESHOLD,
    ) -> None:
        beside = find_url(url).beside()
        self.skipping = Skipping(skip)
        self.main: Source = open_source(url, app, topics=topics, wait=wait)
        self._in_step = InStep(self.main, room)
        self._rows = None if whole or not isinstance(self.main, RowSource) else self.main
        self._unasked = self.main if isinstance(self.main, Unasked) else None
        self._requested = False
        self._asked: Future[Marks] | None = None
        self._added = Added(self.main, time.monotonic(), self._in_step.pause_again)
        self._kept: CardinalError | None = None
        self._away_until = 0.0
        self._rewind: Mapping[Partition, int] = {}
        self._channels = Channels(lambda topic: open_source(beside, app, topics=(topic,)), self.main)
        batches = (app.default_topic,)
        self._older = AncestorLookup(lambda: open_source(beside, app, topics=batches), app, threshold, self.skipping)

    # --- where -----------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        """The lowest offset that is kept and the one after the highest, of every partition, channels included."""
        marks = self.main.watermarks()
        self._in_step.end_at(marks)
        return marks | self._channels.watermarks()

    def ends(self) -> dict[Partition, int]:
        """Where every partition ends now, those included that were added since: what is beyond is not there yet.

        New partitions are read from now on. A proof that nothing is left to read takes these, and positions that are
        asked for afterwards.
        """
        self._added.read()
        return {where: high for where, (_, high) in self.marks().items()}

    def request_ends(self) -> None:
        """Request what :meth:`answered_ends` gives, unless a request is in flight."""
        if self._requested:
            return
        self._requested = True
        if self._unasked is not None and not self._channels:
            self._asked = self._unasked.watermarks_later(look=True)

    def answered_ends(self) -> dict[Partition, int] | None:
        """:meth:`ends` as they were after :meth:`request_ends`; None: not requested, or not answered yet."""
        if not self._requested:
            return None
        try:
            if self._asked is None:
                ends = self.ends()
            elif not self._asked.done():
                return None
            else:
                answer, self._asked = self._asked, None
                marks = answer.result()
                # Where there are new partitions, they are read from now on, and belong to the answer.
                new = marks.keys() - self.main.positions().keys()
                ends = self.ends() if new else {partition: high for partition, (_, high) in marks.items()}
        except UnreachableError:
            self._requested = False  # the follower wants them still
            return None
        self._requested = False
        return ends

    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read, channels included.

        Those of a rewind that the server did not answer yet are where it leads: nothing above them counts as read.
        """
        positions = self.main.positions() | self._channels.positions()
        return positions | {tp: min(at, positions[tp]) for tp, at in self._rewind.items() if tp in positions}

    # --- reading ---------------------------------------------------------------------------------------------

    def keeps_step_with(self, number_of: Callable[[bytes], int | None], fullness: Callable[[], float]) -> None:
        """Keep partitions in step by these numbers of blocks, where the times of records are wrong or not enough."""
        self._in_step.by(number_of, fullness)

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
        if self._rewind and not self._rewound():
            time.sleep(seconds)
            return []
        self._added.look(time.monotonic())
        self._in_step.pause()
        records = self._poll_main(self._in_step.limit, seconds)
        self._in_step.read(records)
        records = self.skipping.others(records)
        try:
            for found in self._channels.poll():
                records += self.skipping.others(found)
        except CardinalError as error:
            if not records:
                raise
            self._kept = error
        return records

    def _poll_main(self, limit: int, seconds: float) -> list[Row]:
        if self._rows is not None:
            return self._rows.poll_rows(limit, seconds)
        return [*self.main.poll(limit, seconds)]

    def resume(self, channels: Iterable[str], begin: Mapping[Partition, int]) -> None:
        """Read these reorg channels from where a cursor needs them.

        Raises:
            UnreachableError: nobody says whether a channel is there; one that is not would count as gone for good.

        """
        self._channels.resume(channels, begin)

    def follow(self, topics: Iterable[str]) -> None:
        """Read exactly these reorg channels beside the stream, new ones from their start."""
        self._channels.follow(topics)

    def rewind(self, begin: Mapping[Partition, int]) -> None:
        """Read these partitions again from these offsets on, or from what is kept above them."""
        self._rewind = begin
        self._rewound()

    def _rewound(self) -> bool:
        with self._may_be_away():
            kept, positions = self.main.watermarks(), self.main.positions()
            begin = {where: max(at, kept[where][0]) for where, at in self._rewind.items() if where in kept}
            self.main.assign({where: min(at, begin.get(where, at)) for where, at in positions.items()})
            self._in_step.rewound()
            self._rewind = {}
            return True
        return False

    def older_batches(self, number: int, lowest: BlockRef, timeout: float) -> Mapping[bytes, bytes] | None:
        """Look on for the chain from the lowest remembered block down to a number: one poll, of so many seconds.

        Returns:
            hash to parent hash of what was found; None: not yet, ask again at the next step.

        """
        if self._is_away:
            return None
        with self._may_be_away():
            return self._older.poll(number, lowest, timeout)
        return None

    def end_lookup(self) -> None:
        """End the look-up of older Batches."""
        self._older.close()

    # --- inside ----------------------------------------------------------------------------------------------

    @property
    def rewinds(self) -> bool:
        """Whether a rewind waits for the server."""
        return bool(self._rewind)

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

    def close(self) -> None:
        """Release every connection. May be called twice."""
        self._channels.close()
        self._older.close()
        self.main.close()
