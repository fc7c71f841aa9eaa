"""Streams of a server: the topics of one application, and its reorg channels. Nothing else is served.

The application's topics are one upstream while the server runs. A reorg channel is one from the first client's READ
until the last one leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.errors import TopicError, UnreachableError
from cardinal.transports import list_topics, open_source

from .upstream import Upstream

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.registry import Topics

    from .upstream import Reader

CHANNELS_MAX: Final = 16
"""Maximum number of open reorg channels; as many as a consumer follows."""

_CHANNEL_BYTES: Final = 16 << 20


class Streams:
    """Upstreams of a server. Created and used on the event loop.

    Arguments:
        url: the stream.
        app: the application of its topics.
        ring_bytes: bytes of recent records of the application's topics to retain.
        compress: compress records.

    """

    def __init__(self, url: str | TransportUrl, app: Topics, *, ring_bytes: int, compress: bool) -> None:
        self._url = url
        self._app = app
        self._compress = compress
        self._topics = frozenset(app.all_topics)
        self._channel = re.compile(f"{re.escape(app.default_topic)}-re(-[0-9a-f]{{1,64}})?")
        self._channels: dict[str, Upstream] = {}
        self._stopped = False
        self.main = Upstream(self._topics, self._open, ring_bytes=ring_bytes, compress=compress)

    async def start(self) -> None:
        """Wait for the first attempt to open the application's topics; the upstream retries if it fails.

        Raises:
            CardinalError: see :func:`cardinal.transports.open_source`.

        """
        with contextlib.suppress(TopicError, UnreachableError):
            await self.main.open()

    def close(self) -> list[Future[None]]:
        """End all reading, and close the sources after their calls in flight; the futures end then."""
        self._stopped = True
        return [upstream.close() for upstream in (self.main, *self._channels.values())]

    async def list_topics(self) -> frozenset[str]:
        """The topics of the stream that exist."""
        names = await asyncio.wrap_future(run_in_thread(lambda: list_topics(self._url), "cardinal-serve-query"))
        return frozenset(name for name in names if name in self._topics or self._channel.fullmatch(name))

    def find(self, topics: frozenset[str]) -> Upstream:
        """The upstream of these topics.

        Raises:
            TopicError: a topic is not served, or a channel is requested together with others.
            UnreachableError: too many channels are read, or the server stops.

        """
        for topic in sorted(topics):
            if topic not in self._topics and not (self._channel.fullmatch(topic) and len(topics) == 1):
                raise TopicError(f"the topic {topic} is not served, or not together with others", topic=topic)
        return self.main if topics <= self._topics else self._open_channel(next(iter(topics)))

    def leave(self, client: Reader, upstream: Upstream) -> None:
        """Detach a client from an upstream. A channel without clients is closed."""
        upstream.clients.discard(client)
        if upstream is self.main or upstream.clients:
            return
        for topic in upstream.topics:
            if self._channels.get(topic) is upstream:  # not the one that replaced it
                del self._channels[topic]
        upstream.close()

    def _open(self, topics: tuple[str, ...]) -> Source:
        return open_source(self._url, self._app, topics=topics)

    def _open_channel(self, topic: str) -> Upstream:
        upstream = self._channels.get(topic)
        if upstream is None or upstream.error is not None:  # deleted, and perhaps recreated
            if self._stopped or len(self._channels) >= CHANNELS_MAX:
                raise UnreachableError(f"{CHANNELS_MAX} reorg channels are read already", address=topic)
            upstream = Upstream(
                {topic}, self._open, ring_bytes=_CHANNEL_BYTES, from_start=True, compress=self._compress
            )
            self._channels[topic] = upstream
        return upstream
