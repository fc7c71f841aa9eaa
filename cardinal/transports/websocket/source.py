"""A served stream's records to a consumer: ``ws://host:port``.

Rules:

1. Positions are ours: the server is told where to begin, on every connection anew, and keeps nothing of us. A server
   that goes away, or is another one when it comes back, is waited for and read on from there.
2. Memory is bounded by the window and a frame, and as much again of what is paused (:mod:`.inbox`), however fast the
   server and slow the reader is.
3. Paused partitions are not sent.
4. Bytes that the protocol does not know, gaps, and more than was asked for end the source with RemoteProtocolError.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import (
    CardinalError,
    RemoteProtocolError,
    TopicError,
    UnreachableError,
)
from cardinal.transports.base import Source

from .asking import Answered, ask, error_of
from .frames import (
    Answer,
    Credit,
    Failed,
    MarkList,
    Marks,
    OffsetList,
    Open,
    Read,
    Reading,
    Records,
    Request,
    Times,
)
from .inbox import Inbox
from .link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record

    from .settings import WebsocketSettings

_TOPICS_SECONDS: Final = 0.1


class WebsocketSource(Source):
    """Source on a server.

    Arguments:
        settings: the URL, sorted.
        topics: the topics to read.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        UnreachableError, RefusedError, TopicError: nobody is there, says no, or has no such topic.

    """

    def __init__(self, settings: WebsocketSettings, topics: Sequence[str], *, wait: float = 0.0) -> None:
        self._settings = settings
        self._topics = tuple(topics)
        self._lock = threading.Condition()
        self._inbox = Inbox(settings.window)
        self._opened = False
        self._error: CardinalError | None = None
        self._known: tuple[Partition, ...] = ()
        self._asked: tuple[int, dict[Partition, int]] | None = None
        self._given_up: set[int] = set()
        self._link = Link(settings, self)
        try:
            self._open(wait)
        except BaseException:
            self._link.close()
            raise

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics as they are now, sorted; those known before where the server is away."""
        with contextlib.suppress(UnreachableError):
            self._known = tuple(sorted(self.watermarks()))
        return self._known

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other.

        Raises:
            CursorExpiredError: retention has removed records from a position on, or a position lies behind the end.
            TopicError: there is no such partition.
            UnreachableError: the server is away.

        """
        chosen = dict(positions)
        try:
            self._ask(lambda number: self._read(number, chosen), Reading, "where to read from")
        finally:
            with self._lock:
                if self._asked is not None:
                    self._given_up.add(self._asked[0])
                    self._asked = None

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        with self._lock:
            if not self._inbox.pause(frozenset(partitions)):
                return
            number = self._link.number()
            frame = Read(number, self._inbox.wanted(number))
        # Where the connection changes in between, its greeting has said this already and has the higher id.
        self._link.tell(frame)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records, in order within each partition; empty after ``timeout`` seconds without any.

        Raises:
            CursorExpiredError, TopicError: of what is read, after the records before it.
            RefusedError, RemoteProtocolError, TransportError: the link has ended.

        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                records, credit = self._take(limit, deadline)
            except RemoteProtocolError:
                self._link.close()
                raise
            if credit:
                self._link.tell(Credit(credit))
            if records or time.monotonic() >= deadline:
                return records

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        with self._lock:
            return dict(self._inbox.positions)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained and the next readable offset of every partition."""
        return dict(self._ask(Marks, MarkList, "for watermarks").marks)

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        return dict(self._ask(lambda number: Times(number, timestamp_ms), OffsetList, "for a time").offsets)

    def close(self) -> None:
        """Release the connection. May be called twice."""
        self._link.close()

    # --- told by the link ------------------------------------------------------------------------------------

    def greeting(self, number: Callable[[], int]) -> Sequence[Request]:
        """Say again what is read, and from where."""
        with self._lock:
            self._given_up.clear()
            self._error = None  # a server that still cannot read from there says so again
            credit = Credit(self._inbox.start_again())
            if not self._opened:
                return [credit]
            opening = Open(number(), self._topics)
            if not self._inbox.positions:
                return [opening, credit]
            reading = number()
            return [opening, Read(reading, self._inbox.wanted(reading)), credit]

    def take(self, frame: Records, size: int) -> None:
        """Keep records until they are polled."""
        with self._lock:
            self._inbox.add(frame, size)
            self._lock.notify_all()

    def answered(self, frame: Answer) -> None:
        """Stand where the server stands from here on.

        Here, and not when :meth:`assign` goes on: where the connection breaks in between, the greeting would say the
        old positions, with a higher id.
        """
        with self._lock:
            if self._asked is not None and self._asked[0] == frame.id:
                number, chosen = self._asked
                self._asked = None
                if isinstance(frame, Reading):
                    self._inbox.assign(chosen, number)
                    self._error = None
                return
            if frame.id not in self._given_up:
                return
            self._given_up.discard(frame.id)
            if not isinstance(frame, Reading):
                return
            # assign() has failed, so nothing may have changed: back to where we are.
            self._inbox.read_again()
            number = self._link.number()
            reading = Read(number, self._inbox.wanted(number))
        self._link.tell(reading)

    def refused(self, frame: Failed) -> None:
        """What is read can be read no longer, or not now."""
        error = error_of(frame, self._settings.address)
        if isinstance(error, UnreachableError):
            raise error  # the link comes again
        with self._lock:
            self._error = error
            self._lock.notify_all()

    def ended(self) -> None:
        """Wake who polls."""
        with self._lock:
            self._lock.notify_all()

    # --- inside ------------------------------------------------------------------------------------------------

    def _open(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            try:
                marks = self._ask(lambda number: Open(number, self._topics), MarkList, "for topics").marks
            except TopicError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_TOPICS_SECONDS)
            else:
                self._known = tuple(sorted(marks))
                self._opened = True
                return

    def _take(self, limit: int, deadline: float) -> tuple[list[Record], int]:
        """Records, or nothing at the deadline; and the credit to give."""
        with self._lock:
            while True:
                records = self._inbox.take(limit)
                if not records:
                    self._raise()
                left = deadline - time.monotonic()
                if records or left <= 0:
                    return records, self._inbox.credit()
                # Frames that held nothing for us were taken too: without leave nothing more would come.
                if credit := self._inbox.credit():
                    return records, credit
                self._lock.wait(left)

    def _read(self, number: int, chosen: dict[Partition, int]) -> Read:
        with self._lock:
            self._asked = (number, chosen)
        return Read(number, chosen)

    def _raise(self) -> None:
        if self._error is not None:  # the server sends no more until it is told where to read
            raise self._error.with_traceback(None)
        if self._link.failure is not None:
            raise self._link.failure

    def _ask(self, make: Callable[[int], Request], kind: type[Answered], doing: str) -> Answered:
        return ask(self._link, make, kind, doing, self._settings.address)
