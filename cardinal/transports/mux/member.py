"""One member of a mux: what is read of it, and whether it is there.

Rules:

1. A member that is away holds up no other one. What it is asked is asked on another thread, or at once where it lies in
   this process or on this machine; it is waited for a bounded time once the reading has begun.
2. A member that was away is asked no more by who reads: it is tried beside the reading, and is there again when it has
   answered. Until then every question fails at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cardinal.errors import ConfigurationError, CursorExpiredError, TopicError, UnreachableError
from cardinal.transports import registry
from cardinal.transports.later import later, now
from cardinal.transports.pace import Unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.base import Source
    from cardinal.transports.registry import Topics

    Marks = dict[Partition, tuple[int, int]]

_Answer = TypeVar("_Answer")

_ANSWER_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 2.0
_THREAD: Final = "cardinal-mux"


class _StillAwayError(UnreachableError):
    """It was not asked."""


class Presence:
    """Whether a member is there, for all sources that are read of it. May be asked from several threads.

    What two threads may both do here is harmless: to try a member twice.
    """

    def __init__(self, url: TransportUrl) -> None:
        self._url = url
        self._away: UnreachableError | None = None
        self._trial: Future[Any] | None = None
        self._again = 0.0
        self.patience: float | None = None
        """Seconds to wait for an answer; None at the opening: as long as the member itself waits."""

    def begin_to_read(self) -> None:
        """From now on others are held up where this one does not answer."""
        self.patience = _ANSWER_SECONDS

    def ask(self, question: Callable[[], Future[_Answer]], trial: Callable[[], Future[Any]]) -> Future[_Answer]:
        """Ask the member, or fail at once and try whether it is back."""
        away = self._away
        if away is None:
            return question()
        if (self._trial is None or self._trial.done()) and time.monotonic() >= self._again:
            self._trial = trial()
            self._trial.add_done_callback(self._tried)

        def fail() -> _Answer:
            raise _StillAwayError(str(away), address=away.address)

        return now(fail)

    def answer(self, asked: Future[_Answer]) -> _Answer:
        """The answer; UnreachableError where the member is away."""
        try:
            return asked.result(self.patience)
        except TimeoutError:
            if asked.done():
                raise
            away = UnreachableError(f"{self._url} did not answer within {self.patience:g} s", address=str(self._url))
        except _StillAwayError:
            raise  # a trial may have shown since that it is back
        except UnreachableError as error:
            away = error
        self._away = away
        raise away

    def _tried(self, trial: Future[Any]) -> None:
        if isinstance(trial.exception(), UnreachableError):
            self._again = time.monotonic() + _AGAIN_SECONDS
        else:  # any other error is told to who asks next
            self._away = None


class Part:
    """One of the sources of a member, and what is known of it without asking.

    Attributes:
        member: whose.
        source: its own partitions have its own numbers.
        known: its partitions.
        marks: its watermarks as they were last.

    """

    def __init__(self, member: Member, source: Source) -> None:
        self.member = member
        self.source = source
        self.known = frozenset(source.partitions())
        self.marks: Marks = {}
        self._unasked = source if isinstance(source, Unasked) else None

    def ask_for_partitions(self) -> Future[tuple[Partition, ...]]:
        """Its partitions as they are now."""
        unasked = self._unasked
        return self._ask(lambda: now(self.source.partitions) if unasked is None else unasked.look_later())

    def ask_for_marks(self, *, look: bool) -> Future[Marks]:
        """Its watermarks as they are now, after a look for partitions."""
        unasked = self._unasked
        return self._ask(
            lambda: now(self.source.watermarks) if unasked is None else unasked.watermarks_later(look=look)
        )

    def at_end(self) -> Iterator[Partition]:
        """The partitions, as they are shown, whose end was delivered, as far as the member tells."""
        if self._unasked is not None:
            yield from map(self.member.shown, self._unasked.at_end())

    def shown_marks(self) -> Marks:
        """Its watermarks as they were last, of its partitions as they are shown."""
        return {self.member.shown(where): mark for where, mark in self.marks.items()}

    def own(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """Those of these positions that lie in this source, with its own numbers."""
        found = {(topic, number - self.member.first): offset for (topic, number), offset in positions.items()}
        return {where: offset for where, offset in found.items() if where in self.known}

    def _ask(self, question: Callable[[], Future[_Answer]]) -> Future[_Answer]:
        def trial() -> Future[Marks]:
            unasked = self._unasked
            return now(self.source.watermarks) if unasked is None else unasked.watermarks_later(look=False)

        return self.member.presence.ask(question, trial)


class Member:
    """One transport's part of a source: as many sources as its topics came at different times.

    Arguments:
        numbers: the first partition number that is the member's, and the last one where there is a next member.
        presence: whether it is there.
        url, app, topics: what is read.

    """

    def __init__(
        self,
        numbers: tuple[int, int | None],
        presence: Presence,
        url: TransportUrl,
        app: Topics,
        topics: Sequence[str],
    ) -> None:
        self.first, self._last = numbers
        self.presence = presence
        self.url = url
        self._app = app
        self.missing = frozenset(topics)
        """The topics that it does not have (yet)."""
        self._looking = threading.Lock()
        self._found: list[Part] = []
        self._closed = False
        self.parts: tuple[Part, ...] = ()

    def ask_for_topics(self) -> Future[None]:
        """Open those of its topics that are there by now; :meth:`take` has them then."""

        def look() -> Future[None]:
            return later(self._look, _THREAD)

        return self.presence.ask(look, lambda: later(lambda: registry.list_topics(self.url), _THREAD))

    def take(self) -> None:
        """Read what was opened since. Belongs to the thread that reads."""
        # In this order: another thread asks what there is in either.
        found = tuple(self._found)
        self.parts = (*self.parts, *found)
        del self._found[: len(found)]

    def shown_parts(self) -> Iterator[Partition]:
        """The partitions that are known, those included that :meth:`take` has not taken yet, as they are shown."""
        for part in (*self.parts, *self._found):
            yield from map(self.shown, part.known)

    def shown(self, where: Partition) -> Partition:
        """A partition of the member as it is shown."""
        number = self.first + where[1]
        if self._last is not None and number > self._last:
            raise ConfigurationError(
                f"{where[0]} has so many partitions that {where[1]} of {self.url} would be {number}, which belongs to "
                "the next member of the mux: give that one a higher number (mux:0=URL,1000=URL)",
                setting="url",
            )
        return where[0], number

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Errors of the member, with the positions as they are shown."""
        try:
            yield
        except CursorExpiredError as error:
            missing = {self.shown(where): gap for where, gap in error.missing.items()}
            raise CursorExpiredError(f"{self.url}: {error}", missing=missing) from None

    def close(self) -> None:
        """Close what is read, and what was opened to be. May be called twice."""
        self._closed = True
        self.take()
        for part in self.parts:
            part.source.close()

    def _look(self) -> None:
        if not self.missing or not self._looking.acquire(blocking=False):
            return  # another look, which waits for its answer
        try:
            if there := self.missing & registry.list_topics(self.url):
                # A topic may have been created just now: next time.
                with contextlib.suppress(TopicError), contextlib.ExitStack() as opened:
                    source = registry.open_source(self.url, self._app, topics=sorted(there))
                    opened.callback(source.close)
                    self._found.append(Part(self, source))
                    opened.pop_all()
                    self.missing -= there
        finally:
            self._looking.release()
        if self._closed:
            self.close()
