"""What a server gives: the topics of one application, and the reorg channels beside them. Nothing else.

The application's topics are one :class:`.stream.Stream` for as long as the server runs. A reorg channel is one from
when the first client opens it until the last one has left.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, TopicError, UnreachableError
from cardinal.transports import list_topics, open_source

from .ring import Ring
from .rounds import Rounds
from .stream import Marks, Stream
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

CHANNELS_MAX: Final = 16
"""Reorg channels that are read at once; as many as a consumer follows."""

_CHANNEL_BYTES: Final = 16 << 20
_AGAIN_SECONDS: Final = 0.25

_log = logging.getLogger(__name__)


class Streams:
    """See the module.

    Arguments:
        url: what is served.
        app: the application whose topics these are.
        ring_bytes: of the application's ring.
        closed_error: what the websocket library raises for a connection that is closed.

    """

    def __init__(
        self, url: str | TransportUrl, app: Topics, *, ring_bytes: int, closed_error: type[BaseException]
    ) -> None:
        self.closed_error = closed_error
        self._url = url
        self._app = app
        self._topics = tuple(app.all_topics)
        self._channel = re.compile(f"{re.escape(app.default_topic)}-re(-[0-9a-f]{{1,64}})?")
        self.main = Stream(self._topics, lambda: self.open(self._topics), Ring(ring_bytes), _ends)
        self._looking = Threads(1, "cardinal-serve-topics")
        self._names = Rounds(self._look)
        self._starting: asyncio.Task[None] | None = None
        self._channels: dict[str, asyncio.Task[Stream]] = {}
        self._waiting: Counter[str] = Counter()
        self._stopping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to read; topics that are not there yet are waited for, and clients told so until then.

        Raises:
            UnreachableError, RefusedError, TransportError: see :func:`cardinal.transports.open_source`.

        """
        try:
            await self.main.start()
        except TopicError as error:
            _log.warning("waits for a stream to serve: %s", error)
            self._starting = asyncio.create_task(self._start_later())

    async def stop(self) -> None:
        """Read no longer."""
        starting = [*self._channels.values(), *([self._starting] if self._starting is not None else [])]
        for task in starting:
            task.cancel()
        streams = [one for one in await asyncio.gather(*starting, return_exceptions=True) if isinstance(one, Stream)]
        self._channels.clear()
        await asyncio.gather(
            self._looking.stop(), *(stream.stop() for stream in (self.main, *streams)), *self._stopping
        )

    async def _start_later(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            try:
                await self.main.start()
            except (TopicError, UnreachableError):
                continue
            except CardinalError as error:
                self.main.error = error
            return

    def open(self, topics: tuple[str, ...]) -> Source:
        """A source of some of the topics."""
        return open_source(self._url, self._app, topics=topics)

    async def topics(self) -> frozenset[str]:
        """The names of those that are there: one question at a time, for all who ask."""
        return await self._names.ask()

    async def _look(self) -> frozenset[str]:
        names = await self._looking.run(lambda: list_topics(self._url))
        return frozenset(name for name in names if name in self._topics or self._channel.fullmatch(name))

    async def enter(self, topics: frozenset[str]) -> Stream:
        """The stream that has these topics.

        Raises:
            TopicError: a topic that is not served, or a channel together with others.
            UnreachableError: there are too many channels now, or the source is away.

        """
        for topic in sorted(topics):
            if topic not in self._topics and not (self._channel.fullmatch(topic) and len(topics) == 1):
                raise TopicError(f"the topic {topic} is not served, or not together with others", topic=topic)
        stream = self.main if topics <= self.main.topics else await self._open_channel(next(iter(topics)))
        stream.users += 1
        return stream

    def leave(self, stream: Stream) -> None:
        """A client less."""
        stream.users -= 1
        self._end_unused(stream)

    def _end_unused(self, stream: Stream) -> None:
        if stream is not self.main and stream.users == 0:
            for topic in stream.topics:
                if _is(self._channels.get(topic), stream):  # another one where the channel was made anew
                    del self._channels[topic]
            stopping = asyncio.create_task(stream.stop())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)

    async def _open_channel(self, topic: str) -> Stream:
        starting = self._channels.get(topic)
        if starting is None:
            if len(self._channels) >= CHANNELS_MAX:
                raise UnreachableError(f"{CHANNELS_MAX} reorg channels are read already", address=topic)
            starting = self._channels[topic] = asyncio.create_task(self._start_channel(topic))
        self._waiting[topic] += 1
        try:
            stream = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the client has left; others may wait for it
            starting.add_done_callback(lambda opened: self._end_unwanted(topic, opened))
            raise
        except Exception:
            if self._channels.get(topic) is starting:
                del self._channels[topic]
            raise
        finally:
            self._waiting[topic] -= 1
        if stream.error is not None and self._channels.get(topic) is starting:
            # It has gone, and may be there anew: who still is on it has been told.
            del self._channels[topic]
            return await self._open_channel(topic)
        return stream

    def _end_unwanted(self, topic: str, opened: asyncio.Task[Stream]) -> None:
        """A channel is open for which a client has waited that left; who still waits is about to enter."""
        if self._channels.get(topic) is not opened or self._waiting[topic]:
            return
        if opened.cancelled() or opened.exception() is not None:
            del self._channels[topic]
        else:
            self._end_unused(opened.result())

    async def _start_channel(self, topic: str) -> Stream:
        stream = Stream((topic,), lambda: self.open((topic,)), Ring(_CHANNEL_BYTES), _starts)
        try:
            await stream.start()
        except CardinalError:
            await stream.stop()
            raise
        return stream


def _starts(marks: Marks) -> Mapping[Partition, int]:
    return {where: low for where, (low, _) in marks.items()}


def _ends(marks: Marks) -> Mapping[Partition, int]:
    return {where: high for where, (_, high) in marks.items()}


def _is(starting: asyncio.Task[Stream] | None, stream: Stream) -> bool:
    return starting is not None and starting.done() and not starting.cancelled() and starting.result() is stream
