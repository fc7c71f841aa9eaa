"""Read-ahead of updates: a consumer on a thread of its own, and a bounded queue of its updates.

Rules:

1. The queue is bounded, in rows and in the bytes of their blocks on the topics; it may always hold one update.
2. An error of the consumer is raised by the first call that finds the queue empty.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from cardinal.consumer import Consumer
from cardinal.consuming.reports import sentence
from cardinal.protocols.streams.assembly.digests import HeaderOnly

from .withheld import LATEST, Withheld

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.consuming.healing import HealingFailed
    from cardinal.consuming.loop import OnEvent
    from cardinal.protocols.streams.events import ChainUpdate, Event

ROWS_MAX: Final = 20_000
"""Rows in the queue, and so in a batch; the bytes are those on the topics."""
BYTES_MAX: Final = 256 << 20
_LOGGED_MAX: Final = 20
"""Reports of one kind that are logged; all are counted."""

_LOG = logging.getLogger(__name__)


class Reports:
    """Reports of a consumer that are not updates: counted by kind, and logged if an operator needs them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, event: Event | HealingFailed) -> None:
        """Count one report, and log it if necessary."""
        kind = type(event).__name__
        self.counts[kind] += 1
        level, text = sentence(event)
        if level >= logging.WARNING and self.counts[kind] <= _LOGGED_MAX:
            more = "; further reports of this kind are counted only" if self.counts[kind] == _LOGGED_MAX else ""
            _LOG.log(level, "%s%s", text, more)


class UpdateFeed:
    """Consumer on a thread, and the queue of its updates.

    Arguments:
        open_consumer: opens the consumer, with a handler of its reports.
        finality: the finality that its blocks need.

    """

    def __init__(self, open_consumer: Callable[[OnEvent], Consumer], finality: str = LATEST) -> None:
        self.reports = Reports()
        self.withheld = Withheld(finality)
        self.consumer = open_consumer(self.reports)
        self._changed = threading.Condition()
        self._updates: deque[ChainUpdate] = deque()
        self._rows = self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="cardinal-feed", daemon=True)
        self._thread.start()

    def take(self, rows: int, size: int, seconds: float) -> list[ChainUpdate]:
        """The next updates, up to ``rows`` and ``size`` in bytes, but at least one.

        Empty when none came within ``seconds``, or when the consumer has ended.
        """
        taken: list[ChainUpdate] = []
        with self._changed:
            self._changed.wait_for(lambda: self._updates or self._ended, seconds)
            if not self._updates and self._error is not None:
                raise self._error
            while self._updates:
                update = self._updates[0]
                rows, size = rows - rows_of(update), size - bytes_of(update)
                if taken and (rows < 0 or size < 0):
                    break
                taken.append(self._updates.popleft())
                self._rows -= rows_of(update)
                self._bytes -= bytes_of(update)
            self._changed.notify_all()
        return taken

    @property
    def ended(self) -> bool:
        """True when the consumer has read to its end, and every update was taken."""
        with self._changed:
            return self._ended and not self._updates

    @property
    def is_behind(self) -> bool:
        """True while records that were on the topics at opening are unread."""
        return not self.ended and not self.consumer.caught_up

    @property
    def connected(self) -> bool:
        """True while the server answers."""
        return self.consumer.connected

    def awaited(self) -> list[str]:
        """Texts about open transactions that hide records, and about the blocks that the chain waits for."""
        return [str(one) for one in (*self.consumer.open_transactions(), *self.consumer.awaited)]

    def close(self) -> None:
        """End the thread and release the connection."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.consumer.close()
        self._thread.join()

    def _read(self) -> None:
        try:
            for update in self.withheld.passed(self.consumer):
                with self._changed:
                    self._changed.wait_for(lambda: self._has_room or self._ended)
                    if self._ended:
                        return
                    self._updates.append(update)
                    self._rows += rows_of(update)
                    self._bytes += bytes_of(update)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised by take, in the caller's thread
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    @property
    def _has_room(self) -> bool:
        return not self._updates or (self._rows < ROWS_MAX and self._bytes < BYTES_MAX)


def rows_of(update: ChainUpdate) -> int:
    """The number of rows of an update."""
    return len(update.removed) + len(update.added)


def bytes_of(update: ChainUpdate) -> int:
    """The bytes of an update's blocks on the topics."""
    blocks: tuple[object, ...] = (*update.removed, *update.added)
    return sum(block.size for block in blocks if isinstance(block, HeaderOnly))
