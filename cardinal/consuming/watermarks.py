"""Watermarks of a source's partitions, new partitions included: the newest answer of its server, and its age.

They are queried on another thread, one request at a time, and only when a caller requires a newer answer than the
newest one. The reading thread never waits: it calls again. An answer that has to prove something is requested after the
moment that the caller names. An unreachable server is queried again; any other error is raised once.

The methods belong to the thread that reads the source, but for :meth:`Watermarks.refresh`; attributes and properties
may be read from any thread.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal._concurrency import run_in_thread
from cardinal.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source

    Marks: TypeAlias = Mapping[Partition, tuple[int, int]]
    """The lowest retained offset of each partition, and the one after the last readable record."""
    _Answer: TypeAlias = tuple[Marks, Mapping[Partition, int]]

LOOK_SECONDS: Final = 2.0
"""Between two requests while the source is read."""
_ANSWER_SECONDS: Final = 3.0
"""A server that takes longer counts as unreachable."""
_RETRY_SECONDS: Final = 0.25
_TRANSACTION_SECONDS: Final = 10.0


class HidingPartitions:
    """Partitions with records behind an open transaction. It may be read from any thread."""

    def __init__(self) -> None:
        self._since: dict[Partition, tuple[int, float]] = {}
        """The last readable offset, and when it was first seen below the end."""

    def note(self, marks: Marks, uncommitted: Mapping[Partition, int]) -> None:
        """Take note of watermarks, and of the ends that were queried before them."""
        now, before = time.monotonic(), self._since
        behind = {tp: high for tp, (_, high) in marks.items() if uncommitted.get(tp, high) > high}
        self._since = {tp: before[tp] if before.get(tp, (None,))[0] == at else (at, now) for tp, at in behind.items()}

    def for_long(self) -> frozenset[Partition]:
        """Those whose transaction takes far longer than one of a producer of ours."""
        now = time.monotonic()
        return frozenset(tp for tp, (_, since) in self._since.items() if now - since >= _TRANSACTION_SECONDS)


class Watermarks:
    """Watermarks of ``source``.

    Attributes:
        hidden: topics that are not read: left out of ``newest``.
        newest: the newest answer.
        ends: the same up to the ends of the partitions, records behind open transactions included: lag counts to them,
            and only they prove that a message is nowhere.
        starts: the lowest retained offset of each partition, hidden topics included.
        hiding: partitions with records behind open transactions.
        newest_at: when it was requested, by ``time.monotonic()``.

    """

    def __init__(self, source: Source, hidden: frozenset[str] = frozenset()) -> None:
        self.source = source
        self.hidden = hidden
        self.newest: Marks = {}
        self.ends: Marks = {}
        self.starts: Mapping[Partition, int] = {}
        self.newest_at = float("-inf")
        self.hiding = HidingPartitions()
        self._requested_at: float | None = None
        """Of the request in flight."""
        self._failed_at: float | None = None
        self._error: BaseException | None = None
        self._requesting = threading.Lock()
        self._answered = threading.Event()
        """No request is in flight."""
        self._answered.set()

    @property
    def unreachable_since(self) -> float | None:
        """Time of the newest failure, or of a request that is overdue; None while the server answers."""
        requested = self._requested_at
        overdue = requested is not None and time.monotonic() - requested >= _ANSWER_SECONDS
        return requested if overdue else self._failed_at

    def after(self, moment: float) -> Marks | None:
        """The newest answer if it was requested after this moment; None: not answered yet, and requested.

        Raises as ``Source.watermarks``, but for an unreachable server.
        """
        in_flight = self._requested_at is not None  # first: an answer that comes meanwhile is complete before it ends
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.newest_at > moment:
            return self.newest
        if not in_flight:
            self._request()
        return None

    def refresh(self, seconds: float) -> None:
        """Request watermarks where the newest are some seconds old, and wait for the answer. From any thread.

        An error is raised to the reading thread. ``seconds``: the wait at most.
        """
        if time.monotonic() - self.newest_at > LOOK_SECONDS:
            self._request()
            self._answered.wait(seconds)

    def query(self) -> Marks:
        """Query the server and wait for it: before reading begins. Raises as ``Source.watermarks``."""
        now = time.monotonic()
        self._keep(now, *self._query())
        return self.newest

    def read_new_partitions(self) -> bool:
        """Read partitions that were added, from their beginning: those of an answer that is some seconds old at most.

        True if some were: the source was assigned again, and pauses nothing. Raises as :meth:`after` and
        ``Source.assign``.
        """
        self.after(time.monotonic() - LOOK_SECONDS)
        positions = self.source.positions()
        new = {tp: low for tp, (low, _) in self.newest.items() if tp not in positions}
        if new:
            self.source.assign(positions | new)
        return bool(new)

    def _request(self) -> None:
        """Request watermarks, unless a request is in flight or failed just now."""
        with self._requesting:
            now = time.monotonic()
            if self._requested_at is not None or (
                self._failed_at is not None and now - self._failed_at < _RETRY_SECONDS
            ):
                return
            self._requested_at = now
            self._answered.clear()
        run_in_thread(self._query, "cardinal-watermarks").add_done_callback(partial(self._take, now))

    def _query(self) -> _Answer:
        """On any thread."""
        self.source.partitions()
        ends = self.source.uncommitted_ends()  # first: what is committed meanwhile is behind no transaction
        return self.source.watermarks(), ends

    def _take(self, requested: float, answer: Future[_Answer]) -> None:
        """Take an answer, on the thread that received it."""
        error = answer.exception()
        if error is None:
            self._keep(requested, *answer.result())
        else:
            self._failed_at = time.monotonic()
            self._error = None if isinstance(error, UnreachableError) else error
        self._requested_at = None
        self._answered.set()

    def _keep(self, requested: float, marks: Marks, uncommitted: Mapping[Partition, int]) -> None:
        self.starts = {tp: low for tp, (low, _) in marks.items()}
        self.newest = {tp: pair for tp, pair in marks.items() if tp[0] not in self.hidden}
        self.ends = {tp: (low, max(high, uncommitted.get(tp, high))) for tp, (low, high) in self.newest.items()}
        self.hiding.note(marks, uncommitted)
        self._failed_at = None
        self.newest_at = requested  # last: the reading thread takes what is newer than this
