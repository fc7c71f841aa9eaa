"""Planner of the stream on the driver: the end and the rows of every batch. No Spark types.

Rules:

1. A batch is some updates of a consumer, and its end is the cursor of the last one. A restart is that consumer's
   resume; this module makes no decision about the chain.
2. A batch ends where an update ends: an update is never split, so a limit may be exceeded by one reorg. Every block
   that only extends the chain is an update of its own.
3. There is no new offset without an update.
4. The blocks that the chain waits for are logged as a warning after a minute, and reported in the query's progress; so
   is the number of blocks that are withheld because they are not final (:mod:`.withheld`).
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from cardinal.errors import UnreachableError
from cardinal.protocols.streams.cursor import Cursor

from .feed import BYTES_MAX, ROWS_MAX, UpdateFeed
from .lake_cursor import cursor_behind
from .offsets import VERSION, PlannedRow, batch_at, cursor_at, offset_of, planned_row
from .options import start_of
from .tasks import located, only_of
from .withheld import LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cardinal.protocols.streams.assembly.digests import HeaderOnly
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal.protocols.streams.payload import MissingPayload

    from .options import SourceOptions, StreamSpec

BATCH_BYTES: Final = 64 << 20
"""Bytes of a batch without a limit."""
BATCH_ROWS: Final = 4_000
"""Rows of a batch without a limit: each takes nine bytes of the offset."""

_WAIT_SECONDS: Final = 0.05
"""Wait for an update. Spark repeats its call every 10 ms."""
_LOOK_SECONDS: Final = 1.0
_OPENING_SECONDS: Final = 10.0
_WAITED_SECONDS: Final = 60.0
_PLANS_KEPT: Final = 4

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of one batch: rows (blocks that join or leave) and bytes on the topics; None is no limit."""

    blocks: int | None = None
    bytes: int | None = None


class Planner:
    """Planner of one stream. It belongs to one thread at a time.

    Arguments:
        stream: the stream to read.
        options: the reader's; they contain the start of a new checkpoint.
        clock: seconds, for the warnings about waiting.

    """

    def __init__(
        self, stream: StreamSpec, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream
        self._options = options
        self._clock = clock
        self._available_now = False
        self._feed: UpdateFeed | None = None
        self._at = ""
        self._plans: dict[str, list[PlannedRow]] = {}
        self._quiet_since = self._warned_at = self._opened_at = clock()
        self._seen_updates = 0

    def first(self) -> dict[str, Any]:
        """The first offset of a new checkpoint."""
        if self._options.sink is not None:
            cursor = cursor_behind(self.stream, self._options.sink, self._options.storage)
            if cursor is not None:
                return offset_of(cursor)
        start = self._options.starting
        if start == LATEST:
            return offset_of(self._tail())
        if isinstance(parsed := start_of(start), Cursor):
            return offset_of(parsed)
        return {"v": VERSION, "seq": 0, "number": -1, "start": start}

    def _tail(self) -> Cursor:
        """The cursor at the current end of the topics, which the checkpoint stores."""
        source = self.stream.open()
        try:
            watermarks = {tp: high for tp, (_, high) in source.watermarks().items()}
        finally:
            source.close()
        app = self.stream.app
        return Cursor(self.stream.fingerprint, app.name, app.chain, 0, (), 0, next=watermarks, floor=watermarks)

    def freeze(self) -> None:
        """End with what is on the topics already (Trigger.AvailableNow)."""
        self._available_now = True

    def next_offset(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself where there is nothing to deliver yet."""
        feed = self._feed_at(start)
        unlimited = limit.blocks is None and limit.bytes is None
        rows = limit.blocks or (BATCH_ROWS if unlimited else ROWS_MAX)
        size = limit.bytes or (BATCH_BYTES if unlimited else BYTES_MAX)
        updates = feed.take(rows, size, _WAIT_SECONDS)
        # Wait for the records on the topics at opening: Trigger.Once calls once. A stop waits for this call, too.
        since = time.monotonic()
        while not updates and self._waits(feed, time.monotonic() - since):
            self._look_after_waiting()
            updates = feed.take(rows, size, _LOOK_SECONDS)
        if not updates:
            self._look_after_waiting()
            return dict(start)
        cursor = updates[-1].cursor
        planned = only_of(planned_rows(updates, cursor), self.stream)
        end = offset_of(cursor, planned)
        self._at = _text(end)
        while len(self._plans) >= _PLANS_KEPT:
            del self._plans[next(iter(self._plans))]
        self._plans[self._at] = planned
        return end

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[PlannedRow]:
        """The rows of the batch that ends at an offset, for any start: a batch that begins there too has none.

        Raises:
            MissingPayloadError: a block is no longer complete on the topics.

        """
        if _text(start) == _text(end) or cursor_at(end) is None:
            return []  # Spark runs a batch at a stream's first offset
        planned = self._plans.get(_text(end))
        return located(self.stream, batch_at(end)) if planned is None else planned

    def report(self) -> dict[str, Any] | None:
        """The reader's progress, the blocks that the chain waits for, and counts of reports; None before it began."""
        feed = self._feed
        if feed is None:
            return None
        head = feed.consumer.head
        return {
            "number": -1 if head is None else head.number,
            "lag_records": feed.consumer.lag,
            "connected": feed.connected,
            "waits_for": self._waits_for(feed),
            "withheld": feed.withheld.blocks,
            "reports": dict(feed.reports.counts),
        }

    def close(self) -> None:
        """Release the connection."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    # --- inside --------------------------------------------------------------------------------------------------

    def _feed_at(self, start: Mapping[str, Any]) -> UpdateFeed:
        """The feed that continues after an offset."""
        begin = _text(start)
        if self._feed is None or self._at != begin:
            self.close()
            cursor = cursor_at(start)
            position = start_of(str(start["start"])) if cursor is None else cursor
            until_end = self._available_now
            self._feed = UpdateFeed(
                lambda on_event: self.stream.consumer(position, on_event, until_end=until_end), self._options.finality
            )
            self._at = begin
            self._quiet_since = self._opened_at = self._clock()
            self._seen_updates = 0
        return self._feed

    def _waits(self, feed: UpdateFeed, seconds: float) -> bool:
        """True while an update is to be awaited further, after ``seconds``.

        Raises:
            UnreachableError: the server does not answer, so that Trigger.AvailableNow has no end.

        """
        if not self._available_now:
            return seconds < _OPENING_SECONDS and feed.is_behind
        if seconds >= _WAITED_SECONDS and not feed.connected and not feed.ended:
            raise UnreachableError(
                f"the server did not answer for {seconds:.0f} s: restart the query when it is back, the query resumes "
                "from its checkpoint",
                address=str(self.stream.transport),
            )
        return not feed.ended

    def _look_after_waiting(self) -> None:
        """Log a warning about the blocks that the chain waits for, once a minute."""
        feed, now = self._feed, self._clock()
        if feed is None:
            return
        waits, silent = self._waits_for(feed), self._is_quiet(feed) and not feed.connected
        if not (waits or silent) or now - self._warned_at < _WAITED_SECONDS:
            return
        self._warned_at = now
        if silent:
            _LOG.warning("no update for %.0f s: the server does not answer", now - self._quiet_since)
        for text in waits:
            _LOG.warning("no update for %.0f s: the chain waits for %s", now - self._quiet_since, text)

    def _waits_for(self, feed: UpdateFeed) -> list[str]:
        """Texts about everything that was awaited for more than a minute."""
        waits = feed.awaited()[:5] if self._is_quiet(feed) else []
        without_marks = feed.withheld.blocks and feed.withheld.mark is None
        if without_marks and self._clock() - self._opened_at >= _WAITED_SECONDS:
            waits.append(f"a block with finality marks: {feed.withheld}")
        return waits

    def _is_quiet(self, feed: UpdateFeed) -> bool:
        """True when the consumer has delivered no update for more than a minute."""
        if feed.withheld.taken != self._seen_updates:
            self._seen_updates, self._quiet_since = feed.withheld.taken, self._clock()
        return self._clock() - self._quiet_since >= _WAITED_SECONDS


def planned_rows(updates: Sequence[ChainUpdate], cursor: Cursor) -> list[PlannedRow]:
    """The rows of some updates, the last of which has this cursor."""
    lineage = cursor.lineage.hex()
    rows: list[PlannedRow] = []
    for update in updates:
        changes = [*((-1, block) for block in update.removed), *((1, block) for block in update.added)]
        for seq, (change, block) in enumerate(changes, update.first_seq):
            rows.append(planned_row(cast("HeaderOnly | MissingPayload", block), seq, change, update.first_seq, lineage))
    return rows


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)
