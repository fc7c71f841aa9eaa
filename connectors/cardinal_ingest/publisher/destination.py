"""Connection of the producing service to ingest nodes: a publisher.

Rules:

1. Nothing but a node's first and last number is known of what is published. So the last blocks, as many as a reorg may
   reach, are published again after a start: nodes skip those that they have, and get the branch that they lack.
2. Branches are published as one: a publisher holds one chain, and leaves it for a heavier one alone.
3. The publisher moves from node to node by itself; it is replaced only where it has failed for good.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.errors import CardinalError, ConfigurationError, UnreachableError
from cardinal.producing.inflight import ProducerStats
from cardinal.producing.survey.frontier import Survey
from cardinal.server.produce.conditions import LOG
from cardinal.server.produce.reorg_grouping import Branch, payloads_of
from cardinal_ingest.publisher.publisher import Publisher

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.apps import Application
    from cardinal.config.url import TransportUrl
    from cardinal.server.produce.reorg_grouping import Step
    from cardinal.server.produce.settings import ProduceSettings
    from cardinal_ingest.publisher.publisher import NodeStatus

_THREAD: Final = "cardinal-produce-connecting"
_MARGIN: Final = 8
"""Blocks that other publishers may add while the feed is read; nodes end streams that offer what is below a reorg."""


def connection(url: TransportUrl, app: Application, settings: ProduceSettings) -> IngestConnection:
    """The connection to ingest nodes."""
    return IngestConnection(url, app, settings)


class IngestCheck:
    """Looks at the publisher's stream; the publisher itself follows its nodes.

    Attributes:
        peer: as :class:`.stream_check.StreamCheck`.
        publisher: the one that is connected.

    """

    peer: Final = "ingest node"

    def __init__(self) -> None:
        self.publisher: Publisher | None = None

    @property
    def failure(self) -> CardinalError | None:
        """The reason for which no node accepts blocks; None where one does."""
        failure = "" if self.publisher is None else self.publisher.failure
        return UnreachableError(failure, address="") if failure else None

    async def query(self) -> bool:
        """True where a node accepts blocks."""
        return self.failure is None

    def answered(self) -> None:
        """A node has acknowledged something."""


class IngestConnection:
    """One publisher.

    Arguments:
        url, app: the ingest nodes, and the application of their stream.
        settings: those of the service.

    Attributes:
        check: looks at the publisher's stream.

    """

    producer_count: Final = None
    arrivals: Final = None
    ping_waits: Final = 0.0
    transactional: Final = True

    def __init__(self, url: TransportUrl, app: Application, settings: ProduceSettings) -> None:
        self._url = url
        self._app = app
        self._settings = settings
        self._past = ProducerStats(0, 0, 0, 0)
        self.check = IngestCheck()

    @property
    def is_connected(self) -> bool:
        """True where a node accepts blocks."""
        return self.check.publisher is not None and self.check.failure is None

    @property
    def stats(self) -> ProducerStats:
        """Counters of acknowledged blocks, and of what is in flight."""
        publisher = self.check.publisher
        if publisher is None:
            return self._past
        return ProducerStats(*(one + other for one, other in zip(self._past, publisher.stats, strict=True)))

    async def is_new(self) -> bool:
        """True where the node that answers first is empty."""
        await self.open()
        return (await self._status()).last is None

    async def open(self) -> None:
        """Connect a publisher, where there is none."""
        if self.check.publisher is None:
            connecting = run_in_thread(self._connect, _THREAD)
            try:
                self.check.publisher = await asyncio.wrap_future(connecting)
            except asyncio.CancelledError:
                connecting.add_done_callback(_close_unwanted)
                raise

    async def survey(self) -> Survey:
        """The last block of the node that answers first, and the one to resume with (rule 1)."""
        first, last = await self._status()
        if last is None or first is None:
            return Survey([], {}, ())
        again = max(0, self._app.reorg_threshold - _MARGIN)
        return Survey([], {}, (), last=last, following=max(first, last + 1 - again))

    async def settle_origin(self, proposal: str) -> str:
        """None: nodes hold no origin, so the weights have to follow from the chain, else the feed refuses."""
        del proposal
        return ""

    def submit(self, step: Step) -> Future[None]:
        """Send a step; its future ends when the step is acknowledged."""
        publisher = self._opened()
        if isinstance(step, Branch):
            return publisher.reorg(step.ancestor, step.payloads)
        return publisher.add(payloads_of(step)[0])

    async def renew(self, error: CardinalError) -> None:
        """Replace the publisher."""
        LOG.warning("the publisher failed and is replaced: %(error)s", {"kind": "replaced", "error": error})
        await self.close()
        await self.open()

    async def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and close the publisher. May be called twice."""
        publisher = self.check.publisher
        if publisher is not None:
            await asyncio.to_thread(publisher.close)
            self._past = self.stats._replace(in_flight=0, queued_messages=0, queued_bytes=0)
            self.check.publisher = None

    async def _status(self) -> NodeStatus:
        return await asyncio.wrap_future(run_in_thread(self._opened().status, _THREAD))

    def _opened(self) -> Publisher:
        if self.check.publisher is None:
            raise ConfigurationError("prepare the service before it runs")
        return self.check.publisher

    def _connect(self) -> Publisher:
        return Publisher(self._url, self._app, publisher_id=self._settings.producer_id)


def _close_unwanted(connecting: Future[Publisher]) -> None:
    """Release a connection that nobody waited for."""
    if connecting.exception() is None:
        connecting.result().close()
