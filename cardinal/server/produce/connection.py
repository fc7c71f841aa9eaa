"""Connection of the producing service to its stream: a producer, and the next one where that has failed.

A destination that is no stream is an entry point of the group ``cardinal.destinations``: a module with
``connection(url, app, settings) -> Connection``. The service sees one interface.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from cardinal._concurrency import run_in_thread
from cardinal.apps import Application
from cardinal.config import schemes
from cardinal.config.settings import find_url
from cardinal.errors import CardinalError, ConfigurationError
from cardinal.producer import Producer
from cardinal.producing.inflight import ProducerStats
from cardinal.producing.survey.mux import survey_members
from cardinal.server.produce.conditions import LOG, PAUSE_MAX_SECONDS
from cardinal.server.produce.reorg_grouping import Branch, payloads_of
from cardinal.server.produce.stream_check import StreamCheck

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.producing.layout import Stream
    from cardinal.producing.standby.arrivals import ArrivalCounts
    from cardinal.producing.survey.frontier import Survey
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.server.produce.reorg_grouping import Step
    from cardinal.server.produce.settings import ProduceSettings
    from cardinal.transports import TransportUrl

_THREAD: Final = "cardinal-produce-connecting"


class Check(Protocol):
    """Queries of a connection's other side."""

    @property
    def peer(self) -> str:
        """Its noun in sentences: ``broker``."""
        ...

    @property
    def failure(self) -> CardinalError | None:
        """The reason for which nothing is accepted; None where something is, or before the first answer."""
        ...

    async def query(self) -> bool:
        """True where the other side answers."""
        ...

    def answered(self) -> None:
        """Something was acknowledged."""
        ...


class Connection(Protocol):
    """The interface of both connections; see :class:`StreamConnection`."""

    @property
    def check(self) -> Check:
        """Queries of the other side."""
        ...

    @property
    def is_connected(self) -> bool:
        """True where the other side answers."""
        ...

    @property
    def stats(self) -> ProducerStats:
        """Counters of what was published, and of what is in flight."""
        ...

    @property
    def producer_count(self) -> ProducerCount | None:
        """The stream's producers."""
        ...

    @property
    def arrivals(self) -> ArrivalCounts | None:
        """Copies of blocks by producer."""
        ...

    @property
    def ping_waits(self) -> float:
        """Seconds for which the last ping has not been acknowledged."""
        ...

    @property
    def transactional(self) -> bool:
        """True where a branch is published as one."""
        ...

    async def is_new(self) -> bool:
        """True where nothing is published."""
        ...

    async def open(self) -> None:
        """Connect."""
        ...

    async def survey(self) -> Survey:
        """Survey of the published blocks: the frontier, and what is partially published there."""
        ...

    async def settle_origin(self, proposal: str) -> str:
        """Settle the origin of a new stream's weights among its producers; empty where it cannot be."""
        ...

    def submit(self, step: Step) -> Future[None]:
        """Send a step; its future ends when the step is published."""
        ...

    async def renew(self, error: CardinalError) -> None:
        """Connect again after an error."""
        ...

    async def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and disconnect."""
        ...


def connection_of(url: str | TransportUrl, app: Stream, settings: ProduceSettings) -> Connection:
    """The connection for a URL. ConfigurationError: it is no stream, and the layout is no application."""
    found = find_url(url)
    if (scheme := schemes.destination(found.scheme)) is None:
        return StreamConnection(url, app, settings)
    if not isinstance(app, Application):
        raise ConfigurationError(f"{found.scheme}:// accepts blocks of applications alone", setting="app")
    made: Connection = import_module(scheme.module).connection(found, app, settings)
    return made


class StreamConnection:
    """One stream.

    Arguments:
        url, app: the stream.
        settings: those of the service.

    Attributes:
        check: queries of the broker.

    """

    def __init__(self, url: str | TransportUrl, app: Stream, settings: ProduceSettings) -> None:
        self._url = url
        self._app = app
        self._settings = settings
        self._producer: Producer | None = None
        self._past = ProducerStats(0, 0, 0, 0)
        self.check = StreamCheck(url, app)

    @property
    def is_connected(self) -> bool:
        """True where there is a producer and the broker answers."""
        return self._producer is not None and self.check.failure is None

    @property
    def stats(self) -> ProducerStats:
        """Counters of all producers; what is in flight, of the present one."""
        return self._past if self._producer is None else _sum(self._past, self._producer.stats)

    @property
    def producer_count(self) -> ProducerCount | None:
        """The stream's producers; None where they are not followed."""
        return None if self._producer is None else self._producer.producer_count

    @property
    def arrivals(self) -> ArrivalCounts | None:
        """Copies of blocks by producer; None where they are not followed."""
        return None if self._producer is None else self._producer.arrivals

    @property
    def ping_waits(self) -> float:
        """Seconds for which the last ping has not been acknowledged; 0 where it has."""
        return 0.0 if self._producer is None else self._producer.ping_waits

    @property
    def transactional(self) -> bool:
        """True where what one call publishes is one transaction."""
        return self._producer is not None and self._producer.transactional

    async def is_new(self) -> bool:
        """True where the stream's topics do not exist."""
        scheme = schemes.transport(find_url(self._url).scheme)
        if scheme is None or scheme.other_way:
            return False  # connecting refuses it
        return self._app.default_topic not in await self.check.topics()

    async def open(self) -> None:
        """Connect a producer, creating missing topics. An existing one is closed; its counters stay."""
        await self.close()
        connecting = run_in_thread(self._connect, _THREAD)  # a daemon thread: a stop does not wait for the broker
        try:
            producer = await asyncio.wrap_future(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unwanted)
            raise
        # In one step: a reader of the counters finds the old producer's once, before and after.
        self._past = self.stats._replace(in_flight=0, queued_messages=0, queued_bytes=0)
        self._producer = producer

    async def survey(self) -> Survey:
        """Frontier of the topics, and what is partially published there."""
        return await asyncio.wrap_future(
            run_in_thread(lambda: survey_members(self._url, self._app, producer_id=self._settings.producer_id), _THREAD)
        )

    async def settle_origin(self, proposal: str) -> str:
        """Settle the origin of a new stream's weights: the first proposal on the topics."""
        producer = self._producer
        if producer is None:
            raise ConfigurationError("prepare the service before it runs")
        return await asyncio.wrap_future(run_in_thread(lambda: producer.settle_origin(proposal), _THREAD))

    def submit(self, step: Step) -> Future[None]:
        """Send a step; its future ends when the step is sealed."""
        if self._producer is None:
            raise ConfigurationError("prepare the service before it runs")
        if isinstance(step, Branch):
            return self._producer.reorg(step.ancestor, step.payloads)
        return self._producer.add(payloads_of(step)[0])

    async def renew(self, error: CardinalError) -> None:
        """Replace the producer, once the broker answers. A stream whose topics were deleted is not begun."""
        if self._producer is None:
            raise error
        LOG.warning("the producer failed and is replaced: %(error)s", {"kind": "replaced", "error": error})
        await self.close()
        pause = self._settings.watch_seconds
        while True:
            if await self.check.query():
                try:
                    await self.open()
                except CardinalError as failure:
                    if not failure.retriable:
                        raise
                else:
                    LOG.info("a new producer is connected")
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)

    async def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and close the producer. May be called twice."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)

    def _connect(self) -> Producer:
        settings = self._settings
        return Producer(
            self._url,
            self._app,
            producer_id=settings.producer_id,
            redundancy=settings.redundancy,
            watch=True,
            reorg_channels=settings.reorg_channels,
        )


def _sum(past: ProducerStats, now: ProducerStats) -> ProducerStats:
    return ProducerStats(*(one + other for one, other in zip(past, now, strict=True)))


def _close_unwanted(connecting: Future[Producer]) -> None:
    """Release a connection that nobody waited for."""
    if connecting.exception() is None:
        connecting.result().close()
