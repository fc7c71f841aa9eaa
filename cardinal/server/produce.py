"""The producing service: a feed's blocks to a stream, from where the topics end, until it is told to stop.

Rules:

1. Blocks are handed over in the feed's order. The feed is not asked for more while the producer has no room.
2. A block that was not acknowledged is sent again, for as long as that can help; an error that time does not heal
   ends the service.
3. Told to stop, it takes no further block and waits for those under way.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from cardinal.errors import CardinalError, ConfigurationError, DeliveryError
from cardinal.producer import Producer
from cardinal.published import published_chain
from cardinal.transports import open_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from concurrent.futures import Future

    from cardinal.producer import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef

_GROUP: Final = "cardinal.connectors"
_AGAIN_SECONDS: Final = 0.5
_FLUSH_SECONDS: Final = 150.0
"""Longer than a message's own timeout, so that a flush ends with the reason and not with the clock."""


class Feed(Protocol):
    """What the service needs of a feed; :class:`cardinal_connectors.BlockFeed` says it in full."""

    async def chain_id(self) -> int:
        """The id of the chain that the node serves."""
        ...

    def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Backfill, then follow the head."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the service is. ``number`` and ``hash`` are the newest block handed over, None before the first."""

    number: int | None
    hash: bytes | None
    blocks: int
    messages: int
    under_way: int
    again: int


def open_feed(url: str, *, chain_id: int | None = None) -> Feed:
    """The feed for a URL, found by its scheme among the entry points ``cardinal.connectors``.

    Raises:
        ConfigurationError: no feed is installed for the scheme, the URL has none, or it cannot be read.

    """
    points = {point.name: point for point in entry_points(group=_GROUP)}
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in points:
        known = ", ".join(f"{name}://" for name in sorted(points)) or "none is installed"
        raise ConfigurationError(
            f"no feed of blocks is known for this URL: it begins with one of {known}", setting="from"
        )
    try:
        urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"the URL of the node cannot be read: write {scheme.lower()}://host:port", setting="from"
        ) from None
    feed: Any = points[scheme.lower()].load()(url, chain_id=chain_id)
    return feed  # type: ignore[no-any-return] # what an entry point gives is known by contract only


class ProduceService:
    """One feed, one producer.

    Arguments:
        feed: where blocks come from.
        url: the stream's transport.
        app: the application.
        producer_id: the producer's configured id.
        again: told of every block that has to be sent again, with the reason.

    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        app: Stream,
        *,
        producer_id: str,
        again: Callable[[Payload, CardinalError], None] = lambda payload, error: None,  # noqa: ARG005 - names for callers
    ) -> None:
        self._feed = feed
        self._url = url
        self._app = app
        self._tell_again = again
        self._producer_id = producer_id
        self._producer: Producer | None = None
        self._newest: Payload | None = None
        self._again_count = 0
        self._failed: asyncio.Queue[tuple[Payload, CardinalError]] = asyncio.Queue()
        self._under_way: dict[bytes, Payload] = {}

    @property
    def progress(self) -> Progress:
        """How far the service is."""
        stats = self._producer.stats if self._producer else None
        return Progress(
            self._newest.number if self._newest else None,
            self._newest.hash if self._newest else None,
            stats.blocks if stats else 0,
            stats.messages if stats else 0,
            stats.under_way if stats else 0,
            self._again_count,
        )

    async def prepare(self) -> list[BlockRef]:
        """Connect, create what is missing, and find where the topics end: the published chain, oldest first."""
        self._producer = await asyncio.to_thread(Producer, self._url, self._app, producer_id=self._producer_id)
        return await asyncio.to_thread(self._published)

    async def run(self, published: Sequence[BlockRef], *, start: int | None, until: int | None) -> None:
        """Publish until the feed ends, or until cancelled; then wait for what is under way.

        Raises:
            CardinalError: of the feed, or of the stream where sending again does not help.

        """
        resend = asyncio.create_task(self._resend())
        pump = asyncio.create_task(self._pump(published, start, until))
        try:
            done, _ = await asyncio.wait({resend, pump}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain(resend)
        finally:
            for task in (pump, resend):
                task.cancel()
            await asyncio.gather(pump, resend, return_exceptions=True)

    async def close(self) -> None:
        """Wait for what is under way, for a bounded time, and release the connections."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)
        await self._feed.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _published(self) -> list[BlockRef]:
        source = open_source(self._url, self._app)
        try:
            return published_chain(source, self._app)
        finally:
            source.close()

    async def _pump(self, published: Sequence[BlockRef], start: int | None, until: int | None) -> None:
        async for payload in self._feed.follow(published, start=start, until=until):
            await self._add(payload)
            self._newest = payload

    async def _add(self, payload: Payload) -> None:
        """Hand a block over, waiting for room and for blocks that have to go again first."""
        if self._producer is None:
            raise ConfigurationError("prepare the service before it runs")
        loop = asyncio.get_running_loop()
        while True:
            try:
                future = await asyncio.to_thread(self._producer.add, payload)
            except DeliveryError:
                await asyncio.sleep(_AGAIN_SECONDS)  # `_resend` is about to send the one that failed
            else:
                break
        self._under_way[payload.hash] = payload
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, payload, done))

    def _ended(self, payload: Payload, done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._under_way.pop(payload.hash, None)
        elif isinstance(error, CardinalError):
            self._failed.put_nowait((payload, error))

    async def _resend(self) -> None:
        """Send failed blocks again, for ever; an error that is not retriable ends the service."""
        while True:
            payload, error = await self._failed.get()
            if not error.retriable:
                raise error
            self._again_count += 1
            self._tell_again(payload, error)
            await asyncio.sleep(_AGAIN_SECONDS)
            await self._add(payload)

    async def _drain(self, resend: asyncio.Task[None]) -> None:
        """Wait until every block is sealed; failed ones go on being sent again meanwhile."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        while self._under_way and time.monotonic() < deadline:
            await asyncio.wait({resend}, timeout=0.02)
            if resend.done():
                resend.result()
        if self._under_way:
            block_hash = next(iter(self._under_way))
            raise DeliveryError(
                f"{len(self._under_way)} blocks were not acknowledged within {_FLUSH_SECONDS:.0f} s; start again: "
                "what is missing is sent then",
                block_hash=block_hash,
            )
