"""``mux:URL,URL``: several transports read as one stream, and written at once. For migrations from cluster to cluster.

Reading. Every member keeps its topics; its partitions are shown with numbers of their own, so that offsets of
different members never meet: partition ``p`` of a member appears as ``first + p``. The first member's ``first`` is 0,
every other one's is 64 more than that of the member before it, unless the URL says ``first=URL``
(``mux:0=kafka://old,64=kafka://new``). So

* a cursor of ``kafka://old`` goes on with ``mux:kafka://old,kafka://new``: the first member's partitions keep their
  numbers, and the others are partitions that were added;
* a cursor of a mux stays valid while each member keeps its number, in whatever place of the URL. A member may be
  replaced by what holds the same records at the same offsets: a recording (``cardinal record``) of a cluster that is to
  be switched off.

A topic has to be in one member; where others get it later, their partitions are added then.

Writing. A message goes to every member; a call is acknowledged when all have acknowledged it, and fails when one fails
(to send it again is harmless). ``recent`` has the newest records of all members.

Rules:

1. A partition that would get another member's number is refused: give that member a higher ``first``.
2. An error of a member is that member's error, with positions as they are shown here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import (
    CardinalError,
    ConfigurationError,
    CursorExpiredError,
    TopicError,
    TransportError,
    UnreachableError,
)

from . import url as urls
from .base import ChannelSink, RecordSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition, Record, Routed

    from .base import Sink, Source
    from .url import Topics, TransportUrl

_SLICE_SECONDS: Final = 0.01
_TOPICS_SECONDS: Final = 0.1


class MuxSink:
    """A :class:`~cardinal.transports.base.Sink` that writes to several, a ``ChannelSink`` where all of them are."""

    def __init__(self, members: Sequence[tuple[int, Sink]]) -> None:
        self._members = tuple(members)

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what a member does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        for _, sink in self._members:
            sink.check(messages)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over to every member: see :meth:`cardinal.transports.base.Sink.send`."""
        self.check(block if seal is None else (*block, seal))
        return _all([partial(sink.send, block, seal) for _, sink in self._members])

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition in every member."""
        for _, sink in self._members:
            if not isinstance(sink, ChannelSink):
                raise TransportError(f"a member of this mux cannot carry the reorg channel {topic}")
            sink.open_channel(topic)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic in every member, at most ``limit`` a partition."""
        return [
            record._replace(partition=first + record.partition)
            for first, sink in self._members
            for record in sink.recent(limit)
        ]

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged by all."""
        deadline = time.monotonic() + timeout
        for _, sink in self._members:
            sink.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Close every member."""
        for _, sink in self._members:
            sink.close()


class MuxRecordSink(MuxSink):
    """One whose members all are a :class:`~cardinal.transports.base.RecordSink`; so it is one."""

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over to every member: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        takers = [sink for _, sink in self._members if isinstance(sink, RecordSink)]
        return _all([partial(sink.replay, records) for sink in takers])


def _all(calls: Sequence[Callable[[], Future[None]]]) -> Future[None]:
    """Make these calls; the future ends when the last of theirs has, with the first error."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()
    lock = threading.Lock()
    left = len(calls)
    error: BaseException | None = None

    def ended(failure: BaseException | None) -> None:
        nonlocal left, error
        with lock:
            left -= 1
            error = error or failure
            last = left == 0
        if last and error is None:
            done.set_result(None)
        elif last:
            done.set_exception(error)

    for call in calls:
        try:
            future = call()
        except CardinalError as failure:  # others may have taken it already: it fails as a whole
            ended(failure)
        else:
            future.add_done_callback(lambda future: ended(future.exception()))
    return done


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

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Deliver nothing more of exactly these partitions until the next call; an empty call resumes all."""
        wanted = dict.fromkeys(partitions, 0)
        for member, source in self._sources():
            source.pause(member.own(wanted, source))

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """At most ``limit`` records; members take turns, so that none is left behind."""
        self._check_open()
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
            with member.speaking():
                polled = source.poll(limit - len(records), 0.0 if place else pause)
            records += [record._replace(partition=member.shown(record[:2])[1]) for record in polled]
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


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> MuxSink:
    """A sink that writes to every member."""
    members: list[tuple[int, Sink]] = []
    try:
        for first, member in url.members:
            members.append((first, urls.open_sink(member, app, producer_id=producer_id)))
    except BaseException:
        MuxSink(members).close()
        raise
    return (MuxRecordSink if all(isinstance(sink, RecordSink) for _, sink in members) else MuxSink)(members)


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> MuxSource:
    """A source that reads every member."""
    return MuxSource(url.members, app, topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The topics of all members."""
    return frozenset(topic for _, member in url.members for topic in urls.list_topics(member))
