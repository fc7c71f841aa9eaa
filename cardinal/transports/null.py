"""``null://``: a sink that discards, and an empty source. For dry runs and measurements."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cardinal._concurrency import new_future, settle
from cardinal.errors import TopicError, TransportError

from .base import Capabilities, Sink, Source
from .options import TransportOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Partition, Record, Routed

    from .registry import Topics
    from .written import Written


class NullSink(Sink):
    """Sink that discards everything."""

    capabilities = Capabilities(channels=True, records=True)

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = set(topics)
        self._closed = False

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages of another stream: see :meth:`cardinal.transports.base.Sink.check`."""
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        for message in messages:
            if message.topic not in self._topics:
                raise TopicError(f"the topic {message.topic} is not of this stream", topic=message.topic)
        return sum(len(message.key) + len(message.value) for message in messages)

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Discard: see :meth:`cardinal.transports.base.Sink.post`."""
        del written
        self.check(block if seal is None else (*block, seal))
        done(None)

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Discard: see :meth:`cardinal.transports.base.Sink.replay`."""
        del records
        self.check([])
        return _done()

    def recent(self, limit: int) -> list[Record]:
        """Nothing."""
        del limit
        return []

    def open_channel(self, topic: str) -> None:
        """Accept messages for this topic too."""
        self._topics.add(topic)

    def flush(self, timeout: float) -> None:
        """Nothing is ever in flight."""

    def close(self) -> None:
        """Refuse further messages. May be called twice."""
        self._closed = True


class NullSource(Source):
    """Source without partitions."""

    def partitions(self) -> tuple[Partition, ...]:
        """None."""
        return ()

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """TopicError for any partition."""
        for topic, number in positions:
            raise TopicError(f"there is no partition {number} of {topic}: null:// has none", topic=topic)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Nothing to pause."""

    def poll(self, limit: int, timeout: float) -> list[Record]:
        """Nothing, after ``timeout`` seconds."""
        del limit
        time.sleep(timeout)
        return []

    def positions(self) -> dict[Partition, int]:
        """None."""
        return {}

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        """None."""
        return {}

    def offsets_for_time(self, timestamp_ms: int) -> dict[Partition, int]:
        """None."""
        del timestamp_ms
        return {}

    def close(self) -> None:
        """Nothing is open."""


def _done() -> Future[None]:
    future = new_future()
    settle(future, None)
    return future


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> NullSink:
    """A sink for the application's topics."""
    del producer_id
    TransportOptions.of(url)
    return NullSink(app.all_topics)


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> NullSource:
    """An empty source, for any topics."""
    del app, topics, wait
    TransportOptions.of(url)
    return NullSource()


def list_topics(url: TransportUrl) -> frozenset[str]:
    """None."""
    TransportOptions.of(url)
    return frozenset()
