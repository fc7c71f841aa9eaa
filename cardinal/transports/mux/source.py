"""Reading several transports as one: see :mod:`cardinal.transports.mux`."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, TopicError, TransportError, UnreachableError
from cardinal.transports.later import later

from .member import Member, Part, Presence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.registry import Topics

    Marks = dict[Partition, tuple[int, int]]
    _Looks = tuple[list[tuple[Member, Future[None]]], list[tuple[Part, Future[tuple[Partition, ...]]]]]

_SLICE_SECONDS: Final = 0.01
_TOPICS_SECONDS: Final = 0.1
_THREAD: Final = "cardinal-mux"


class MuxSource:
    """A :class:`~cardinal.transports.base.Source` that reads several.

    Arguments:
        members: the first partition number and the URL of each.
        app: the application.
        topics: the topics to read.
        wait: seconds to wait for topics that are in no member yet.
        beside: who is there, for a source beside another one: it begins with the members that answer.

    Raises:
        UnreachableError: a member is away; beside another source, one that may have a topic that no other one has.

    """

    def __init__(
        self,
        members: Sequence[tuple[int, TransportUrl]],
        app: Topics,
        topics: Sequence[str],
        *,
        wait: float = 0.0,
        beside: Sequence[Presence] | None = None,
    ) -> None:
        self._urls = tuple(members)
        self._app = app
        self._presences = [Presence(url) for _, url in members] if beside is None else beside
        last = [*(first - 1 for first, _ in members[1:]), None]
        self._members = [
            Member((first, last[index]), self._presences[index], url, app, topics)
            for index, (first, url) in enumerate(members)
        ]
        self._turn = 0
        self._closed = False
        self._assigned: frozenset[Partition] = frozenset()
        self._kept: tuple[Part, CardinalError] | None = None
        try:
            self._wait_for(topics, wait, may_be_away=beside is not None)
        except BaseException:
            self.close()
            raise

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics in every member, sorted, as they are shown; those known of who is away."""
        self._look(self._ask_for_partitions())
        for member in self._members:
            member.take()
        return self._shown()

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other.

        A member of which the same is read from the same offsets as before is not asked: it may be away.
        """
        known = set(self.partitions())
        for topic, number in positions:
            if (topic, number) not in known:
                raise TopicError(f"there is no partition {number} of {topic} in any member of the mux", topic=topic)
        for part in self._parts():
            own = part.own(positions)
            if own == part.source.positions():
                part.source.pause(())
                continue
            with part.member.speaking():
                part.source.assign(own)
            if self._kept is not None and self._kept[0] is part:
                self._kept = None
        self._assigned = frozenset(positions)
        for presence in self._presences:
            presence.begin_to_read()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = dict.fromkeys(partitions, 0)
        for part in self._parts():
            part.source.pause(part.own(wanted))

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records; members take turns, so that none is left behind.

        Where a member fails after others gave records, these are returned, and its error is raised by the next call.
        """
        self._check_open()
        if self._kept is not None:
            (_, kept), self._kept = self._kept, None
            raise kept
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
        found = {p.member.shown(where): at for p in self._parts() for where, at in p.source.positions().items()}
        return {where: at for where, at in found.items() if where in self._assigned}

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the end of every partition of every member; never older ones."""
        self._check_open()
        return self._marks(self._ask_for_marks(look=False))

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        self._check_open()
        return {
            part.member.shown(where): offset
            for part in self._parts()
            for where, offset in part.source.offsets_for_time(timestamp_ms).items()
        }

    def close(self) -> None:
        """Close every member. May be called twice."""
        self._closed = True
        for member in self._members:
            member.close()

    # --- Unasked, ManySource -------------------------------------------------------------------------------

    def at_end(self) -> frozenset[Partition]:
        """The partitions whose end was delivered: see :class:`cardinal.transports.pace.Unasked`."""
        return frozenset(where for part in self._parts() for where in part.at_end())

    def look_later(self) -> Future[tuple[Partition, ...]]:
        """:meth:`partitions` without waiting: see :class:`cardinal.transports.pace.Unasked`."""
        asked = self._ask_for_partitions()

        def look() -> tuple[Partition, ...]:
            self._look(asked)
            return self._shown()

        return later(look, _THREAD)

    def watermarks_later(self, *, look: bool) -> Future[dict[Partition, tuple[int, int]]]:
        """:meth:`watermarks` without waiting: see :class:`cardinal.transports.pace.Unasked`.

        After a look they are those of now, of every member: they are to prove something. Without one those of members
        that are away are the last ones, and end where these were read to: there is nothing to be had of them.
        """
        asked = self._ask_for_marks(look=look)
        if look:
            topics = self._ask_for_topics()
            return later(lambda: self._marks_after_look(topics, asked), _THREAD)
        positions = self.positions()
        return later(lambda: self._last_marks(asked, positions), _THREAD)

    def beside(self, topics: Sequence[str]) -> MuxSource:
        """Read other topics of those members that answer: see :class:`cardinal.transports.base.ManySource`."""
        return MuxSource(self._urls, self._app, topics, beside=self._presences)

    # --- inside --------------------------------------------------------------------------------------------

    def _parts(self) -> list[Part]:
        return [part for member in self._members for part in member.parts]

    def _shown(self) -> tuple[Partition, ...]:
        return tuple(sorted({where for member in self._members for where in member.shown_parts()}))

    def _ask_for_partitions(self) -> _Looks:
        """Ask all members at once for topics that they lack, and for the partitions of those that they have."""
        return self._ask_for_topics(), [(part, part.ask_for_partitions()) for part in self._parts()]

    def _look(self, asked: _Looks) -> None:
        """Take note of partitions; what members that are away have is what was known."""
        topics, partitions = asked
        for member, opened in topics:
            with contextlib.suppress(UnreachableError):  # looked for again
                member.presence.answer(opened)
        for part, found in partitions:
            with contextlib.suppress(UnreachableError):
                there = part.member.presence.answer(found)
                part.known = frozenset(there)

    def _ask_for_topics(self) -> list[tuple[Member, Future[None]]]:
        return [(member, member.ask_for_topics()) for member in self._members if member.missing]

    def _ask_for_marks(self, *, look: bool) -> list[tuple[Part, Future[Marks]]]:
        return [(part, part.ask_for_marks(look=look)) for part in self._parts()]

    def _marks(self, asked: Sequence[tuple[Part, Future[Marks]]]) -> Marks:
        marks: Marks = {}
        for part, answer in asked:
            part.marks = part.member.presence.answer(answer)
            marks |= part.shown_marks()
        return marks

    def _marks_after_look(
        self, topics: Sequence[tuple[Member, Future[None]]], asked: Sequence[tuple[Part, Future[Marks]]]
    ) -> Marks:
        """Those of topics that a member was just found to have are asked for when they are read: until then 0."""
        for member, opened in topics:
            member.presence.answer(opened)
        return dict.fromkeys(self._shown(), (0, 0)) | self._marks(asked)

    def _last_marks(self, asked: Sequence[tuple[Part, Future[Marks]]], positions: Mapping[Partition, int]) -> Marks:
        """Those of members that are away are older ones, and end at these positions."""
        marks: Marks = {}
        for part, answer in asked:
            try:
                marks |= self._marks([(part, answer)])
            except UnreachableError:
                marks |= {
                    where: (low, min(high, positions.get(where, low)))
                    for where, (low, high) in part.shown_marks().items()
                }
        return marks

    def _round(self, limit: int, pause: float) -> list[Record]:
        """Ask every source once, each first in its turn, the first one for so long."""
        records: list[Record] = []
        parts = self._parts()
        if not parts:
            time.sleep(pause)
            return records
        self._turn += 1
        for place in range(len(parts)):
            part = parts[(self._turn + place) % len(parts)]
            if len(records) == limit:
                break
            try:
                with part.member.speaking():
                    polled = part.source.poll(limit - len(records), 0.0 if place else pause)
                records += [record._replace(partition=part.member.shown(record[:2])[1]) for record in polled]
            except CardinalError as error:
                if not records:
                    raise
                self._kept = part, error
                break
        return records

    def _wait_for(self, topics: Sequence[str], wait: float, *, may_be_away: bool) -> None:
        deadline = time.monotonic() + wait
        while True:
            away: UnreachableError | None = None
            for member, opened in self._ask_for_topics():
                try:
                    member.presence.answer(opened)
                except UnreachableError as error:
                    if not may_be_away:
                        raise
                    away = error
                member.take()
            absent = frozenset(topics).intersection(*(member.missing for member in self._members))
            if not absent or all(member.url.scheme == "null" for member in self._members):
                return
            if away is not None:
                raise away
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
