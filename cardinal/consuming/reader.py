"""A consumer's records: its topics, and reorg channels beside them.

Rules:

1. Partitions are kept in step while they are caught up with (:mod:`.pacing`).
2. Reorg channels come and go beside the stream (:mod:`.channels`); older Batches are looked up
   alongside (:mod:`.lookup`).
3. Partitions that are added while the stream is read are read from their beginning.
4. Sources beside the stream's own are of no group: its lag says how far the stream is read.
5. What was read is delivered: an error of a channel is raised by a poll that brings nothing else.
6. A rewind that the server did not answer is repeated before anything else is read.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.config.settings import find_url
from cardinal.consuming.batches_alone import BatchesAlone, is_named, only_of_log
from cardinal.consuming.channels import Channels
from cardinal.consuming.lookup import AncestorLookup
from cardinal.consuming.pacing import InStep
from cardinal.consuming.skiplist import Skipping
from cardinal.errors import CardinalError, UnreachableError
from cardinal.transports import open_source
from cardinal.transports.added import Added
from cardinal.transports.base import RowSource
from cardinal.transports.later import now
from cardinal.transports.pace import Unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import BlockRef, Partition, Position, Row
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

    Marks = dict[Partition, tuple[int, int]]

_AWAY_SECONDS: Final = 1.0
_ANSWERS_AT_ONCE: Final = {"fetch.wait.max.ms": "5"}
"""A new assignment waits for the answer to the last request: a start at a number took 1.5 s with 100."""


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
        without: what takes the content out of records; None leaves it in.
        batches_alone: read nothing but Batches, as long as these name where the content lies.

    Attributes:
        main: the stream's own topics.
        channels: reorg channels that are read beside them.
        lookup: older Batches.
        skipping: reports of the records that were passed over.
        in_step: the partitions to pause.
        alone: the main source, where content is left on its topics.

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
        without: Callable[[Sequence[Row]], list[Row]] | None = None,
        batches_alone: bool = False,
    ) -> None:
        beside = self._beside = find_url(url).without_group()
        self._app, self._topics = app, topics
        self.skipping = Skipping(skip)
        self.main: Source = open_source(url, app, topics=topics, wait=wait)
        self.alone: BatchesAlone | None = None
        self._log = ""
        if batches_alone and is_named(self.main):
            self._log = self.main.log_name
            self.main = self.alone = BatchesAlone(self.main, app.all_topics, app.default_topic)
        self.in_step = InStep(self.main, room)
        self._rows = None if whole or not isinstance(self.main, RowSource) else self.main
        self._without = without
        self._asked: Future[Marks] | None = None
        self._added = Added(self.main, time.monotonic(), lambda: self.main.pause(self.in_step.pace.paused))
        self._away_until = 0.0
        self._rewind: Mapping[Partition, int] = {}
        self.channels = Channels(lambda topic: open_source(beside, app, topics=(topic,)), self.main)
        batches = (app.default_topic,)
        self.lookup = AncestorLookup(lambda: open_source(beside, app, topics=batches), app, threshold, self.skipping)

    def searching(self) -> Source:
        """A source of the same topics that is assigned anew again and again; whoever asked for it closes it."""
        kafka = self._beside.scheme == "kafka"
        url = self._beside.with_options(_ANSWERS_AT_ONCE) if kafka else self._beside
        return open_source(url, self._app, topics=self._topics)

    # --- positions -------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        """The lowest offset that is kept and the one after the highest, of every partition, channels included."""
        marks = self.main.watermarks()
        self.in_step.end_at(marks)
        return marks | self.channels.watermarks()

    def ends(self) -> dict[Partition, int]:
        """Where every partition ends now, those included that were added since, which are read from now on.

        A proof that nothing is left to read takes these, and positions that are read afterwards.
        """
        return {tp: high for tp, (_, high) in self._look().items()}

    def request_ends(self) -> None:
        """Request what :meth:`answered_ends` gives, unless a request is in flight."""
        if self._asked is None:
            main = self.main
            beside = main if isinstance(main, Unasked) and not self.channels else None
            self._asked = now(self._look) if beside is None else beside.watermarks_later(look=True)

    def answered_ends(self) -> dict[Partition, int] | None:
        """:meth:`ends` as they were after :meth:`request_ends`; None: not requested, not answered, or nobody is there.

        Raises:
            CardinalError: of the source, but for a server that is away.

        """
        if self._asked is None or not self._asked.done():
            return None
        answer, self._asked = self._asked, None
        try:
            marks = answer.result()
            if marks.keys() - self.positions().keys():
                marks = self._look()  # new partitions are read from now on, and belong to the answer
        except UnreachableError:
            return None
        return {tp: high for tp, (_, high) in marks.items()}

    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read, channels included.

        Those of a rewind that the server did not answer yet are where it leads: nothing above them counts as read.
        """
        positions = self.main.positions() | self.channels.positions()
        return positions | {tp: min(at, positions[tp]) for tp, at in self._rewind.items() if tp in positions}

    # --- reading ---------------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.0) -> list[Row]:
        """The next records of everything that is read; empty where none come in so many seconds.

        Raises:
            CursorExpiredError, TopicError, RefusedError, TransportError: of the stream's own topics, or of a channel.

        """
        if self._rewind and not self._rewound():
            time.sleep(seconds)
            return []
        if self.alone is not None and self.alone.is_short and self.alone.knows_where:
            if not self.alone.widen():
                time.sleep(seconds)
                return []
            self.in_step.rewound()
        self._added.look(time.monotonic())
        self.in_step.pause()
        records = self._poll_main(seconds)
        self.in_step.read(records)
        records = self.skipping.others(records)
        try:
            for found in self.channels.poll():
                others = self.skipping.others(found)
                records += others if self._without is None else only_of_log(others, self._log)
        except CardinalError:
            if not records:
                raise
        return records if self._without is None else self._without(records)

    def rewind(self, begin: Mapping[Partition, int]) -> None:
        """Read these partitions again from these offsets on, or from what is kept above them, with the next poll."""
        self._rewind = begin

    def older_batches(self, number: int, lowest: BlockRef, timeout: float) -> Mapping[bytes, bytes] | None:
        """Advance the look-up of the chain from the lowest remembered block down to a number by one poll.

        Returns:
            hash to parent hash of what was found; None: not yet, ask again at the next step.

        """
        if time.monotonic() < self._away_until:
            return None
        try:
            return self.lookup.poll(number, lowest, timeout)
        except UnreachableError:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            return None

    def close(self) -> None:
        """Release every connection. May be called twice."""
        self.channels.close()
        self.lookup.close()
        self.main.close()

    # --- inside ----------------------------------------------------------------------------------------------

    def _look(self) -> Marks:
        """:meth:`marks`, after a look for new partitions."""
        self._added.read()
        return self.marks()

    def _poll_main(self, seconds: float) -> list[Row]:
        limit = self.in_step.limit
        rows: list[Row] = self._rows.poll_rows(limit, seconds) if self._rows else [*self.main.poll(limit, seconds)]
        if self._without is None:
            return rows
        return only_of_log(rows, "") if self.alone is None else self.alone.checked(rows)

    def _rewound(self) -> bool:
        """Whether a rewind was answered."""
        with contextlib.suppress(UnreachableError):
            kept, positions = self.main.watermarks(), self.main.positions()
            begin = {where: max(at, kept[where][0]) for where, at in self._rewind.items() if where in kept}
            self.main.assign({where: min(at, begin.get(where, at)) for where, at in positions.items()})
            self.in_step.rewound()
            self._rewind = {}
        return not self._rewind
