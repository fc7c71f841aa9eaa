"""Source that reads several transports as one: see :mod:`cardinal.transports.mux`.

Rules:

1. Queries may be made from any thread, go to all members at once, and fail where one does not answer: watermarks are
   never cached.
2. ``assign``, ``pause`` and ``poll`` query no member whose positions are unchanged: an unreachable member delays no
   other one. Its partitions count as at their end (``at_end``) until it answers a query.
3. Each topic must exist in one member that answers; every query for partitions looks for it in the others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal._concurrency import run_in_thread
from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    CursorExpiredError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports import registry
from cardinal.transports.base import OpenTransaction, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.registry import Topics

    Watermarks = dict[Partition, tuple[int, int]]

_Answer = TypeVar("_Answer")

_SLICE_SECONDS: Final = 0.01
_TOPICS_SECONDS: Final = 0.1


class Member:
    """One transport of a mux, with a source per set of topics that appeared together.

    Arguments:
        url, app, topics: what is read.
        first, last: its partition numbers in the mux; ``last`` is None for the last member.

    Attributes:
        sources: with its own partition numbers; replaced, never mutated: another thread may add one.
        missing: the topics that it does not have (yet).
        unreachable: it did not answer the last query.
        error: raised by the next poll, because this one had records of other members to return.

    """

    def __init__(self, url: TransportUrl, app: Topics, topics: Sequence[str], first: int, last: int | None) -> None:
        self.url = url
        self.first, self._last = first, last
        self.sources: tuple[Source, ...] = ()
        self.missing = frozenset(topics)
        self.unreachable = False
        self.error: CardinalError | None = None
        self._owners: dict[Partition, Source] = {}
        self._app = app
        self._closed = False
        self._opening = threading.Lock()

    def query(self, question: Callable[[Source], Mapping[Partition, _Answer]]) -> dict[Partition, _Answer]:
        """The answers of its sources, by partition of the mux; then the member counts as reachable.

        Raises:
            UnreachableError: it is unreachable.

        """
        answers = self._collect(question)
        self.unreachable = False
        return answers

    def _collect(self, question: Callable[[Source], Mapping[Partition, _Answer]]) -> dict[Partition, _Answer]:
        answers: dict[Partition, _Answer] = {}
        try:
            with self.in_our_numbers():
                for source in self.sources:
                    for tp, answer in question(source).items():
                        self._owners[tp] = source
                        answers[self.ours(tp)] = answer
        except UnreachableError:
            self.unreachable = True
            raise
        return answers

    def partitions(self) -> dict[Partition, None]:
        """Its partitions by their numbers in the mux, after a look for missing topics; raises as :meth:`query`.

        A source may answer from its cache, so the member does not count as reachable.
        """
        self.look_for_topics()
        return self._collect(lambda source: dict.fromkeys(source.partitions()))

    def watermarks(self) -> Watermarks:
        """Its watermarks by partition of the mux; raises as :meth:`query`."""
        if not self.sources:
            self.look_for_topics()  # for a member that was unreachable until now
        return self.query(lambda source: source.watermarks())

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions, by its own numbers; sources with unchanged positions are not assigned.

        Raises:
            TopicError: it has no such partition, or does not answer whether it has.

        """
        if positions.keys() - self._owners.keys():
            with contextlib.suppress(UnreachableError):
                self.partitions()
        for topic, number in positions.keys() - self._owners.keys():
            raise TopicError(
                f"there is no partition {self.first + number} of {topic} in any member of the mux", topic=topic
            )
        for source in self.sources:
            own = {tp: at for tp, at in positions.items() if self._owners[tp] is source}
            if own == source.positions():
                source.pause(())
                continue
            with self.in_our_numbers():
                source.assign(own)
            self.error = None

    def look_for_topics(self) -> None:
        """Open the missing topics that exist by now; raises as :meth:`query`."""
        with self._opening:
            if not self.missing:
                return
            try:
                existing = self.missing & registry.list_topics(self.url)
                with contextlib.suppress(TopicError):  # a topic that is being created: opened by the next query
                    if existing:
                        source = registry.open_source(self.url, self._app, topics=sorted(existing))
                        self.sources = (*self.sources, source)
                        self.missing -= existing
            except UnreachableError:
                self.unreachable = True
                raise
            if self._closed:
                self.close()

    def ours(self, tp: Partition) -> Partition:
        """The mux's partition for a partition of the member."""
        number = self.first + tp[1]
        if self._last is not None and number > self._last:
            raise ConfigurationError(
                f"{tp[0]} has so many partitions that {tp[1]} of {self.url} would be {number}, which belongs to "
                "the next member of the mux: give that one a higher number (mux:0=URL,1000=URL)",
                setting="url",
            )
        return tp[0], number

    def own(self, positions: Mapping[Partition, int]) -> dict[Partition, int]:
        """The member's positions among these, by its own numbers."""
        end = float("inf") if self._last is None else self._last
        return {
            (topic, number - self.first): at for (topic, number), at in positions.items() if self.first <= number <= end
        }

    @contextlib.contextmanager
    def in_our_numbers(self) -> Iterator[None]:
        """Map the partitions in the member's errors to the mux's numbers."""
        try:
            yield
        except CursorExpiredError as error:
            missing = {self.ours(tp): gap for tp, gap in error.missing.items()}
            raise CursorExpiredError(f"{self.url}: {error}", missing=missing) from None

    def close(self) -> None:
        """Close its sources, also one that is being opened. May be called twice."""
        self._closed = True
        for source in self.sources:
            source.close()


class MuxSource(Source):
    """Source that reads several transports.

    Arguments:
        members: the first partition number and the URL of each.
        app: the application.
        topics: the topics to read.
        wait: seconds to wait for topics that are in no member yet.

    Raises:
        TopicError: a topic is in no member.
        UnreachableError: a topic is in no member that answers, and one does not.

    """

    def __init__(
        self, members: Sequence[tuple[int, TransportUrl]], app: Topics, topics: Sequence[str], *, wait: float = 0.0
    ) -> None:
        lasts = [*(first - 1 for first, _ in members[1:]), None]
        self._members = [
            Member(url, app, topics, first, last) for (first, url), last in zip(members, lasts, strict=True)
        ]
        self._polls = 0
        self._closed = False
        self._assigned: frozenset[Partition] = frozenset()
        try:
            self._wait_for(topics, wait)
        except BaseException:
            self.close()
            raise

    # --- queries -------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics in every member that answers, sorted; and those that are read."""
        partitions = set(self._assigned)
        for answer in self._of_all([member.partitions for member in self._members]):
            partitions.update(() if isinstance(answer, UnreachableError) else answer)
        return tuple(sorted(partitions))

    def watermarks(self) -> Watermarks:
        """The lowest retained offset and the end of every partition of every member.

        Raises:
            UnreachableError: a member is unreachable.

        """
        return self._answers([member.watermarks for member in self._members])

    def uncommitted_ends(self) -> dict[Partition, int]:
        """The end of every partition of every member, open transactions included; raises as :meth:`watermarks`."""
        return self._answers([partial(member.query, _uncommitted_ends) for member in self._members])

    def open_transactions(self) -> list[OpenTransaction]:
        """The open transactions of every member, by our partition numbers; raises as :meth:`watermarks`."""
        found = self._answers([partial(member.query, _open_transactions) for member in self._members])
        return [replace(one, partition=tp[1]) for tp, one in sorted(found.items())]

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; raises as :meth:`watermarks`."""

        def question(source: Source) -> dict[Partition, int]:
            return source.offsets_for_time(timestamp_ms)

        return self._answers([partial(member.query, question) for member in self._members])

    # --- reading -------------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other."""
        for member in self._members:
            member.assign(member.own(positions))
        self._assigned = frozenset(positions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = dict.fromkeys(partitions, 0)
        for member in self._members:
            own = member.own(wanted)
            for source in member.sources:
                source.pause(own.keys() & source.positions().keys())

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records; each poll begins with another member, so that none starves.

        Where a member fails after others returned records, these are returned, and the next call raises its error.
        """
        self._check_open()
        for member in self._members:
            if (error := member.error) is not None:
                member.error = None
                raise error
        deadline = time.monotonic() + timeout
        pause = 0.0
        while True:
            records = self._round(limit, pause)
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            pause = min(_SLICE_SECONDS, left)

    def positions(self) -> dict[Partition, int]:
        """The next offset of every assigned partition."""
        positions = {member.ours(tp): at for member, each in self._sources() for tp, at in each.positions().items()}
        return {tp: at for tp, at in positions.items() if tp in self._assigned}

    def at_end(self) -> frozenset[Partition]:
        """The partitions of members that are unreachable, and those that members report to be at their end."""
        return frozenset(
            member.ours(tp)
            for member, source in self._sources()
            for tp in (source.positions() if member.unreachable else source.at_end())
        )

    def close(self) -> None:
        """Close every member. May be called twice."""
        self._closed = True
        for member in self._members:
            member.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _sources(self) -> list[tuple[Member, Source]]:
        return [(member, source) for member in self._members for source in member.sources]

    def _answers(self, queries: Sequence[Callable[[], dict[Partition, _Answer]]]) -> dict[Partition, _Answer]:
        """Answers of all members together; UnreachableError where one is unreachable."""
        self._check_open()
        answers: dict[Partition, _Answer] = {}
        for answer in self._of_all(queries):
            if isinstance(answer, UnreachableError):
                raise answer
            answers |= answer
        return answers

    def _of_all(self, queries: Sequence[Callable[[], _Answer]]) -> Iterator[_Answer | UnreachableError]:
        """Make these queries concurrently; yields an UnreachableError, raises any other error."""
        futures = [run_in_thread(query, "cardinal-mux") for query in queries]
        for future in futures:
            try:
                yield future.result()
            except UnreachableError as error:
                yield error

    def _round(self, limit: int, pause: float) -> list[Record]:
        """Poll every source once, another one first each time; ``pause``: seconds that the first may wait."""
        records: list[Record] = []
        sources = self._sources()
        if not sources:
            time.sleep(pause)
            return records
        self._polls += 1
        for i in range(len(sources)):
            member, source = sources[(self._polls + i) % len(sources)]
            if len(records) == limit:
                break
            try:
                with member.in_our_numbers():
                    polled = source.poll(limit - len(records), 0.0 if i else pause)
                records += [record._replace(partition=member.ours(record[:2])[1]) for record in polled]
            except CardinalError as error:
                if not records:
                    raise
                member.error = error
                break
        return records

    def _wait_for(self, topics: Sequence[str], wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            looks = [member.look_for_topics for member in self._members]
            unreachable = next((error for error in self._of_all(looks) if error is not None), None)
            absent = frozenset(topics).intersection(*(member.missing for member in self._members))
            if not absent or all(member.url.scheme == "null" for member in self._members):
                return
            if unreachable is not None:
                raise unreachable
            if time.monotonic() >= deadline:
                topic = min(absent)
                raise TopicError(
                    f"the topic {topic} is in no member of the mux: start a producer first, "
                    "or check application and chain id",
                    topic=topic,
                )
            time.sleep(_TOPICS_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError("this source is closed; open another one")


def _uncommitted_ends(source: Source) -> Mapping[Partition, int]:
    return source.uncommitted_ends()


def _open_transactions(source: Source) -> dict[Partition, OpenTransaction]:
    return {one.tp: one for one in source.open_transactions()}
