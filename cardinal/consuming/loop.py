"""One step after the other: records are read and followed, and what came of them is sorted.

Updates are kept until they are fetched; reports go to whoever asked for them. What a follower wants of its reader
(watermarks that prove something, channels, older Batches, a block's messages once more) is had between two reads, and
what takes many of them goes on a poll at a time: the stream's own records come in between.

A handler of reports may supply messages, and may raise. So it is called at the end of a step, when all that came about
is noted, and updates and reports are given out in that order. Where it raises, what comes after that report waits for
the next step. It may have what an overdue block lacks, as a hook may: watermarks that would prove blocks lost are taken
when those were reported that are overdue.

A driver belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.consuming.gc_pause import collector_waits
from cardinal.consuming.healing import LACKING, Healer, HealingFailed, Overdue
from cardinal.errors import UnreachableError
from cardinal.protocols.streams.events import ChainUpdate, Incomplete
from cardinal.protocols.streams.wire.messages import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cardinal.consuming.reader import Reader
    from cardinal.protocols.streams.events import Event
    from cardinal.protocols.streams.following.follower import Follower
    from cardinal.protocols.streams.types import Partition, Routed, Row

    OnEvent: TypeAlias = Callable[[Event | HealingFailed], None]

_BATCH_KEY: Final = bytes((BATCH,))
_SETTLE_SECONDS: Final = 5.0
_DOUBT_SECONDS: Final = 30.0
_CROWDED_SECONDS: Final = 120.0
_BESIDE_SECONDS: Final = 0.05
"""For a poll of older Batches, when nothing of the stream was there: so long its next record may have to wait."""


class Driver:
    """See the module.

    Arguments:
        follower: makes updates of records.
        reader: reads them; it stands where the follower begins.
        ends: where every partition ended when the stream was opened.
        on_event: told of everything that is not an update.
        healer: asked for what an overdue block lacks.

    """

    def __init__(
        self,
        follower: Follower,
        reader: Reader,
        ends: Mapping[Partition, int],
        on_event: OnEvent | None,
        healer: Healer | None,
    ) -> None:
        self.follower = follower
        self.ready: deque[ChainUpdate] = deque()
        """Updates that wait to be fetched."""
        self._noted: deque[ChainUpdate | Event | HealingFailed] = deque()
        self._polled: Sequence[Row] = ()
        self._giving_out = False
        self._to_report: int | None = None
        self._reader = reader
        self._ends = ends
        self._on_event = on_event
        self._healer = healer
        self._overdue = Overdue()
        self._heard = self._doubted = self._crowded = time.monotonic()
        self._batch_seen = False
        assembler = follower.reassembler
        reader.keeps_step_with(assembler.number_of, lambda: assembler.fullness)

    @property
    def delivered(self) -> bool:
        """Whether every update was fetched."""
        return not self.ready and not self._noted

    def step(self) -> None:
        """Read once, and sort what came of it; nothing is waited for while older records are read.

        Where a handler has raised, what it was not told yet comes first, and nothing is read.
        """
        try:
            if not self._noted:
                self._read()
        finally:
            self._give_out()

    def supply(self, messages: Iterable[Routed]) -> None:
        """Messages that an incomplete block lacks. A handler may call it: what comes of it is given out last."""
        self._note(self.follower.supply(messages))
        self._give_out()

    # --- inside --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        with collector_waits():
            if not self._polled:
                self._polled = self._reader.poll_now()
            if self._polled:
                self._follow()
                return
        if not self._reader.reads_again_now:
            self._polled = self._reader.poll()
        self._follow()

    def _follow(self) -> None:
        """Follow what was polled. It is kept until it is taken: a question before that may fail, and be asked again."""
        follower, reader, records = self.follower, self._reader, self._polled
        if records and not self._batch_seen:
            self._look_for_a_batch(records)
        self._note(reader.skipping.found())
        fresh = self._fresh_ends()
        self._look_at_overdue()
        positions = reader.positions()
        self._note(follower.receive(records))
        self._polled = ()
        if again := reader.poll_again():
            self._note(follower.receive(again))
            reader.end_again(follower.orderer.holds)
        if self._healer is not None:
            for healed in self._healer.results():
                self._note([healed] if isinstance(healed, HealingFailed) else follower.supply(healed))
        if reader.reads_again:
            fresh = None  # what would prove that a block is lost: it may be among what was not read again yet
        else:
            for block_hash in self._overdue.passed(positions):
                self._report(block_hash)
        if self._healer is not None:
            self._healer.ask_next()
            if self._healer.busy:
                fresh = None
        ends = fresh if follower.caught_up else self._ends
        at_rest = not records and not again and not reader.reads_again and follower.caught_up
        self._note(follower.progress(positions, ends, at_rest=at_rest))
        self._wait_for_what_is_missing(records)
        reader.follow(follower.channels())
        self._look_up_older(0.0 if records else _BESIDE_SECONDS)

    def _look_up_older(self, timeout: float) -> None:
        """Look on for older Batches, while a channel needs them."""
        follower, reader = self.follower, self._reader
        number, lowest = follower.wants_history, follower.orderer.lowest
        if number is None or lowest is None:
            reader.end_older()
        elif (parents := reader.older_batches(number, lowest, timeout)) is not None:
            self._note(follower.recall(parents))

    def _note(self, out: Iterable[ChainUpdate | Event | HealingFailed]) -> None:
        """Take an outcome whole: what it asks for is begun, and nobody is told of it yet."""
        for item in out:
            if isinstance(item, ChainUpdate):
                for block in item.added:
                    self._overdue.settle(block.hash)
            elif isinstance(item, Incomplete) and not self._may_be_told(item):
                continue
            self._noted.append(item)

    def _give_out(self) -> None:
        """Make updates ready and tell the reports, each once, unless that is going on already."""
        if self._giving_out:
            return
        self._giving_out = True
        try:
            while self._noted:
                item = self._noted.popleft()
                if isinstance(item, ChainUpdate):
                    self.ready.append(item)
                elif self._on_event is not None:
                    self._on_event(item)
        finally:
            self._giving_out = False

    def _wait_for_what_is_missing(self, records: Sequence[Row]) -> None:
        """Begin in doubt when nothing has come for a while, or too much has.

        Not while blocks are read again: unless that goes on and on, since one producer of a quorum is far behind.
        """
        now, again, in_doubt = time.monotonic(), self._reader.reads_again, self.follower.in_doubt
        if records or again:
            self._heard = now
        if again or not in_doubt:
            self._doubted = now
        if not in_doubt or not self.follower.orderer.crowded:
            self._crowded = now
        waits = ((self._heard, _SETTLE_SECONDS), (self._doubted, _DOUBT_SECONDS), (self._crowded, _CROWDED_SECONDS))
        if in_doubt and any(now - since > seconds for since, seconds in waits):
            self.follower.settle()

    def _fresh_ends(self) -> dict[Partition, int] | None:
        """New watermarks where they would prove something.

        They are waited for, so that they are newer than every gap that is to be judged by them: a block that is given
        up by older ones may lie, whole, behind them. They are asked for when the blocks were reported that are overdue
        by the time they are wanted: not those that come later, so that this ends where there are always more.
        """
        if not (self.follower.caught_up and self.follower.wants_ends):
            self._to_report = None
            return None
        if self._to_report is None:
            self._to_report = self._overdue.added
        if self._overdue.reported >= self._to_report:
            with contextlib.suppress(UnreachableError):  # asked again at the next step
                ends = self._reader.ends()
                self._to_report = None
                return ends
        return None

    def _look_at_overdue(self) -> None:
        """Ask for watermarks beside the reading: blocks are overdue often, and mostly only unread."""
        overdue = self._overdue
        if overdue.wants_ends:
            self._reader.ask_for_ends()
            overdue.asked()
        if overdue.waits_for_ends:
            try:
                ends = self._reader.answered_ends()
            except UnreachableError:
                self._reader.ask_for_ends()
            else:
                if ends is not None:
                    overdue.answered(ends)

    def _may_be_told(self, event: Incomplete) -> bool:
        """Read a block again that was dropped; of another one nothing is told while something may still come."""
        lacking = event.explanation
        if lacking.state in LACKING:
            self._overdue.add(lacking.block)
            return False
        if lacking.state == "dropped" and (places := self.follower.reread(lacking.block)):
            self._reader.read_again(lacking.block, places)
        return True

    def _report(self, block_hash: bytes) -> None:
        """A block lacks what is not on the topics: say so, and ask whoever may have it."""
        lacking = self.follower.explain(block_hash)
        if lacking.state in LACKING:
            if self._healer is not None:
                self._healer.ask(block_hash)
            self._noted.append(Incomplete(lacking))

    def _look_for_a_batch(self, records: Sequence[Row]) -> None:
        """Where the first block begins the stream, look again how far the stream goes.

        On a stream that was empty at opening everything was read at once, so "caught up" said nothing about which
        block is the lowest; once a Batch is there, what was there beside it decides.
        """
        if any(record[3][:1] == _BATCH_KEY for record in records):
            with contextlib.suppress(UnreachableError):  # then the next Batch will ask again
                self._ends = self._reader.ends()
                self._batch_seen = True
                self.follower.not_caught_up()
