"""A consumer's records: its topics, new partitions of them included, and reorg channels alongside.

Partitions far ahead of others are paused (:mod:`.partition_sync`); older Batches are looked up (:mod:`.lookup`).
Sources beside the stream's own are of no group: its lag says how far the stream is read. What was read is delivered: an
error of a channel is raised by a poll that brings nothing else. A rewind that the server did not answer is repeated
before anything else is read.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.config.settings import find_url
from cardinal.consuming.batches_alone import BatchesAlone, only_of_log
from cardinal.consuming.channels import Channels
from cardinal.consuming.lookup import AncestorLookup
from cardinal.consuming.partition_sync import PartitionSync
from cardinal.consuming.skiplist import Skipping
from cardinal.consuming.watermarks import Watermarks
from cardinal.errors import CardinalError, UnreachableError
from cardinal.transports import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cardinal.consuming.watermarks import Marks
    from cardinal.protocols.streams.types import Partition, Position, Row
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

_ANSWERS_AT_ONCE: Final = {"fetch.wait.max.ms": "5"}
"""A new assignment waits for the answer to the last request: a start at a number took 1.5 s with 100."""


class Reader:
    """Reader of the application's topics. It belongs to one thread at a time; raises as ``open_source``.

    Arguments:
        topics: those of the application's topics to read; None: all.
        wait: seconds to wait for the topics to exist.
        skip: topic, partition and offset of records that are skipped.
        whole: whether headers and times of all messages are needed.
        room: how many blocks may be open.
        threshold: the application's reorg threshold, blocks.
        without: what takes the content out of records; None leaves it in.
        batches_alone: read nothing but Batches, as long as these name the ranges of the content.

    Attributes:
        main: source of the stream's own topics.
        watermarks: those of the main source, for everybody.
        alone: set where content is left on its topics.

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
        self.watermarks = Watermarks(self.main)
        self.alone: BatchesAlone | None = None
        self._log = ""
        if batches_alone and self.main.capabilities.log:
            self._log = self.main.capabilities.log
            self.alone = BatchesAlone(self.watermarks, app.all_topics, app.default_topic)
        self.sync = PartitionSync(self.watermarks, room)
        self._poll: Callable[[int, float], Sequence[Row]] = self.main.poll if whole else self.main.poll_rows
        self._without = without
        self._ends_requested: float | None = None
        self._rewind: Mapping[Partition, int] = {}
        self.channels = Channels(lambda topic: open_source(beside, app, topics=(topic,)))
        batches = (app.default_topic,)
        self.lookup = AncestorLookup(lambda: open_source(beside, app, topics=batches), app, threshold, self.skipping)

    def searching(self) -> Source:
        """A source of the same topics for searches, which reassign it; the caller closes it."""
        kafka = self._beside.scheme == "kafka"
        url = self._beside.with_options(_ANSWERS_AT_ONCE) if kafka else self._beside
        return open_source(url, self._app, topics=self._topics)

    # --- positions -------------------------------------------------------------------------------------------

    def marks(self) -> Marks:
        """The newest watermarks of every partition, channels included."""
        return {**self.watermarks.newest, **(self.channels.watermarks_after(0.0) or {})}

    @property
    def ends(self) -> dict[Partition, int]:
        """The newest known end of every partition, records behind open transactions included, channels too."""
        return {tp: end for tp, (_, end) in self.watermarks.ends.items()} | self.channels.ends

    def request_ends(self) -> None:
        """Request what :meth:`answered_ends` returns, unless that is requested."""
        if self._ends_requested is None:
            self._ends_requested = now = time.monotonic()
            self.watermarks.after(now)
            self.channels.watermarks_after(now)

    def answered_ends(self) -> dict[Partition, int] | None:
        """The end of every partition as it was after :meth:`request_ends`; None: not requested, or not answered yet.

        Partitions that were added since are included, and read from now on. A proof that nothing is left to read takes
        these, and positions that are read afterwards.
        """
        if (requested := self._ends_requested) is None:
            return None
        main, channels = self.watermarks.after(requested), self.channels.watermarks_after(requested)
        if main is None or channels is None:
            return None
        self._ends_requested = None
        self._read_new_partitions()
        return {tp: end for tp, (_, end) in (*main.items(), *channels.items())}

    def positions(self) -> dict[Partition, int]:
        """The next offset of every partition that is read, channels included.

        Those of a rewind that the server did not answer yet are where it leads: nothing above them counts as read.
        """
        positions = self.main.positions() | self.channels.positions()
        return positions | {tp: min(at, positions[tp]) for tp, at in self._rewind.items() if tp in positions}

    # --- reading ---------------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.0) -> list[Row]:
        """The next records of everything that is read; empty where none arrive within ``seconds``.

        Raises as the sources do.
        """
        self._read_new_partitions()
        if self._rewind and not self._rewound():
            time.sleep(seconds)
            return []
        if self.alone is not None and self.alone.must_widen and self.alone.can_widen:
            if not self.alone.widen():
                time.sleep(seconds)
                return []
            self.sync.rewound()
        self.sync.pause()
        records = self._poll_main(seconds)
        self.sync.read(records)
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

    def close(self) -> None:
        """Release every connection. May be called twice."""
        self.channels.close()
        self.lookup.close()
        self.main.close()

    # --- inside ----------------------------------------------------------------------------------------------

    def _read_new_partitions(self) -> None:
        if self.watermarks.read_new_partitions():
            self.main.pause(self.sync.paused)

    def _poll_main(self, seconds: float) -> list[Row]:
        rows = [*self._poll(self.sync.limit, seconds)]
        if self._without is None:
            return rows
        return only_of_log(rows, "") if self.alone is None else self.alone.checked(rows)

    def _rewound(self) -> bool:
        """True if a rewind was answered."""
        with contextlib.suppress(UnreachableError):
            kept, positions = self.main.watermarks(), self.main.positions()
            begin = {tp: max(at, kept[tp][0]) for tp, at in self._rewind.items() if tp in kept}
            self.main.assign({tp: min(at, begin.get(tp, at)) for tp, at in positions.items()})
            self.sync.rewound()
            self._rewind = {}
        return not self._rewind
