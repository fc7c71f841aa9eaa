"""Reading several transports as one: see :mod:`cardinal.transports.mux`."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    CursorExpiredError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports import url as urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports.base import Source
    from cardinal.transports.url import Topics, TransportUrl

_SLICE_SECONDS: Final = 0.01
_TOPICS_SECONDS: Final = 0.1


class _Member:
    """One transport's part of a source: as many sources as its topics came at different times."""

    def __init__(self, first: int, last: int | None, url: TransportUrl, app: Topics, topics: Sequence[str]) -> None:
        self.url = url
        self._first = first
        self._last = last
        self._app = app
        self._missing = set(topics)
        self.sources: list[Source] = []

    @property
    def missing(self) -> frozenset[str]:
        """The topics that it does not have (yet)."""
        return frozenset(self._missing)

    def look(self) -> None:
        """Open those of its topics that are there by now."""
        if self._missing and (there := self._missing & urls.list_topics(self.url)):
            with contextlib.suppress(TopicError):  # created just now: next time
                source = urls.open_source(self.url, self._app, topics=sorted(there))
                self.sources.append(source)
                self._missing -= there

    def shown(self, where: Partition) -> Partition:
        """A partition of the member as it is shown."""
        number = self._first + where[1]
        if self._last is not None and number > self._last:
            raise ConfigurationError(
                f"{where[0]} has so many partitions that {where[1]} of {self.url} would be {number}, which belongs to "
                "the next member of the mux: give that one a higher number (mux:0=URL,1000=URL)",
                setting="url",
            )
        return where[0], number

    def own(self, positions: Mapping[Partition, int], source: Source) -> dict[Partition, int]:
        """Those of these positions that lie in a source of the member, with its own numbers."""
        mine = set(source.partitions())
        found = {(topic, number - self._first): offset for (topic, number), offset in positions.items()}
        return {where: offset for where, offset in found.items() if where in mine}

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Errors of the member, with the positions as they are shown."""
        try:
            yield
        except CursorExpiredError as error:
            missing = {self.shown(where): gap for where, gap in error.missing.items()}
            raise CursorExpiredError(f"{self.url}: {error}", missing=missing) from None


class MuxSource:
    """A :class:`~cardinal.transports.base.Source` that reads several.

    Arguments:
        members: the first partition number and the URL of each.
        app: the application.
        topics: the topics to read.
        wait: seconds to wait for topics that are in no member yet.

    """

    def __init__(
        self, members: Sequence[tuple[int, TransportUrl]], app: Topics, topics: Sequence[str], *, wait: float = 0.0
    ) -> None:
        following = [first - 1 for first, _ in members[1:]]
        self._members = [
            _Member(first, last, url, app, topics)
            for (first, url), last in zip(members, [*following, None], strict=True)
        ]
        self._turn = 0
        self._closed = False
        self._assigned: frozenset[Partition] = frozenset()
        self._kept: CardinalError | None = None
        try:
            self._wait_for(topics, wait)
        except BaseException:
            self.close()
            raise

    # --- Source --------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition of the topics in every member, sorted, as they are shown."""
        for member in self._members:
            if member.missing:
                with contextlib.suppress(UnreachableError):  # looked for again
                    member.look()
        return tuple(sorted(m.shown(where) for m, source in self._sources() for where in source.partitions()))

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read each of these partitions from the given offset on, and no other."""
        known = set(self.partitions())
        for topic, number in positions:
            if (topic, number) not in known:
                raise TopicError(f"there is no partition {number} of {topic} in any member of the mux", topic=topic)
        for member, source in self._sources():
            with member.speaking():
                source.assign(member.own(positions, source))
        self._assigned = frozenset(positions)
        self._kept = None

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = dict.fromkeys(partitions, 0)
        for member, source in self._sources():
            source.pause(member.own(wanted, source))

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records; members take turns, so that none is left behind.

        Where a member fails after others gave records, these are returned, and its error is raised by the next call.
        """
        self._check_open()
        if self._kept is not None:
            kept, self._kept = self._kept, None
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
        found = {m.shown(where): at for m, source in self._sources() for where, at in source.positions().items()}
        return {where: at for where, at in found.items() if where in self._assigned}

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """The lowest retained offset and the end of every partition of every member."""
        self._check_open()
        return self._gather(lambda source: source.watermarks())

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older; the end where there is none."""
        self._check_open()
        return self._gather(lambda source: source.offsets_for_time(timestamp_ms))

    def close(self) -> None:
        """Close every member. May be called twice."""
        self._closed = True
        for _, source in self._sources():
            source.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _sources(self) -> list[tuple[_Member, Source]]:
        return [(member, source) for member in self._members for source in member.sources]

    def _gather(self, ask: Callable[[Source], Mapping[Partition, Any]]) -> dict[Partition, Any]:
        return {m.shown(where): found for m, source in self._sources() for where, found in ask(source).items()}

    def _round(self, limit: int, pause: float) -> list[Record]:
        """Ask every source once, each first in its turn, the first one for so long."""
        records: list[Record] = []
        sources = self._sources()
        if not sources:
            time.sleep(pause)
            return records
        self._turn += 1
        for place in range(len(sources)):
            member, source = sources[(self._turn + place) % len(sources)]
            if len(records) == limit:
                break
            try:
                with member.speaking():
                    polled = source.poll(limit - len(records), 0.0 if place else pause)
                records += [record._replace(partition=member.shown(record[:2])[1]) for record in polled]
            except CardinalError as error:
                if not records:
                    raise
                self._kept = error
                break
        return records

    def _wait_for(self, topics: Sequence[str], wait: float) -> None:
        deadline = time.monotonic() + wait
        while True:
            for member in self._members:
                member.look()
            absent = frozenset(topics).intersection(*(member.missing for member in self._members))
            if not absent or all(member.url.scheme == "null" for member in self._members):
                return
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
