"""The producing service: a feed's blocks to a stream, from where the topics end, until it is stopped.

Rules:

1. Blocks are submitted in the feed's order. No more are requested from the feed while the producer has no capacity.
2. A block that was not acknowledged is submitted again (:mod:`.retry_queue`); an error that time does not heal ends the
   service. A producer that has failed for good is replaced by a new one.
3. When it is stopped it takes no further block and waits for those in flight.
4. It publishes nothing where a recent block is on the topics with other entries than its own application gives it
   (:mod:`.compatibility`).
5. Blocks that are partially published where the topics end are completed as the feed yields them, or by requesting
   them by hash: when the feed has ended, or has been followed for a while (:mod:`.partial_blocks`).
6. Where a new stream starts is checked before topics are created (:mod:`.start`).
7. While it runs it logs on ``cardinal.produce`` what holds it up, once when that begins and once when it ends
   (:mod:`.conditions`), and every reorg in one line.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from cardinal._concurrency import run_in_thread
from cardinal.apps.base import REORG_THRESHOLD
from cardinal.config.settings import find_url
from cardinal.errors import CardinalError, ConfigurationError, NodeAnswerError
from cardinal.feeds import Aiming, FeedReport, HasHead, Learning
from cardinal.producer import Producer
from cardinal.producing.inflight import ProducerStats
from cardinal.producing.survey.batch_index import is_repairing
from cardinal.producing.survey.mux import survey_members
from cardinal.protocols.streams.types import Finality
from cardinal.server.produce.compatibility import check_newest
from cardinal.server.produce.conditions import LOG, Condition, Conditions
from cardinal.server.produce.partial_blocks import PartialBlocks
from cardinal.server.produce.progress import Progress, Rate
from cardinal.server.produce.reorg_grouping import Branch, ReorgGrouping, payloads_of
from cardinal.server.produce.retry_queue import RetryQueue
from cardinal.server.produce.start import first_block
from cardinal.server.produce.stream_check import StreamCheck

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.frontier import Survey
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.server.produce.reorg_grouping import Step, Switch
    from cardinal.server.produce.start import Start
    from cardinal.transports import TransportUrl

_THREAD: Final = "cardinal-produce-connecting"
_PAUSE_MAX_SECONDS: Final = 30.0
_DOUBT_SECONDS: Final = 3.0
"""Blocks and pings are acknowledged within milliseconds: after this the broker is queried."""


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """Settings of the service.

    Attributes:
        producer_id: the producer's configured id.
        redundancy: see :class:`cardinal.Producer`.
        allow_coverage_change: continue although recent blocks have other entries on the topics.
        reorg_channels: see :class:`cardinal.Producer`.
        look_again_seconds: time after which partially published blocks are looked for once more.
        watch_seconds: time between two looks at what may hold the service up.
        query_seconds: time between two queries of a broker that is in doubt.
        stalled_seconds: time without a published block after which the service counts as stalled, where there is one
            to publish.

    Raises:
        ConfigurationError: the id is one that marks repairs.

    """

    producer_id: str
    redundancy: Literal["all", "standby"] = "all"
    allow_coverage_change: bool = False
    reorg_channels: bool = True
    look_again_seconds: float = 30.0
    watch_seconds: float = 1.0
    query_seconds: float = 5.0
    stalled_seconds: float = 60.0

    def __post_init__(self) -> None:
        if is_repairing(self.producer_id):
            raise ConfigurationError(
                f"{self.producer_id!r} ends as the ids of repairs do, and a start would skip what it sent: "
                "choose another producer id",
                setting="producer_id",
            )


class Observer(Protocol):
    """Receives events of a service, on its event loop."""

    def published(self, payload: Payload, seconds: float, behind: int) -> None:
        """A block was sealed, ``seconds`` after the feed yielded it, ``behind`` blocks below what the feed goes to."""
        ...

    def reorged(self, depth: int) -> None:
        """The node's chain left ``depth`` blocks."""
        ...


class ProduceService:
    """One feed, one stream.

    Arguments:
        feed: the source of blocks.
        url: the stream's transport.
        app: the application.
        producer_id, settings: the id alone, or all settings.
        start: where a new stream begins, see :data:`.start.Start`; ignored where blocks are published.
        stop: the last block; None: follow the head for ever.
        observer: receives what metrics count.

    """

    def __init__(
        self,
        feed: BlockFeed,
        url: str | TransportUrl,
        app: Stream,
        *,
        producer_id: str | None = None,
        settings: ProduceSettings | None = None,
        start: Start = None,
        stop: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._feed = feed
        self._url = url
        self._app = app
        self._settings = settings or ProduceSettings(producer_id or "")
        self._start = start
        self._stop = stop
        self._observer = observer
        self._first: int | None = None
        self._chain: list[BlockRef] = []
        self._producer: Producer | None = None
        self._past = ProducerStats(0, 0, 0, 0)
        self._check = StreamCheck(url, app)
        self._partial = PartialBlocks(feed, url, app, self._add)
        self._queue = RetryQueue(self._submit, renew=self._renew, sealed=self._sealed, failed=self._failed)
        self._grouping = ReorgGrouping(1)
        self._newest: Payload | None = None
        self._highest = -1
        self._published: BlockRef | None = None
        self._weight = -1
        self._reorgs = 0
        self._looks = False
        # What the watch knows.
        self._conditions = Conditions()
        self._rate = Rate()
        self._is_failing = self._is_doubled = self._is_running = False
        self._head: tuple[int | None, float] = None, time.monotonic()
        self._queried = self._sealed_at = time.monotonic()
        self._pending_since: float | None = None

    @property
    def progress(self) -> Progress:
        """Snapshot of what was done, what is in flight, and what it waits for."""
        producer, now = self._producer, time.monotonic()
        return Progress(
            number=self._newest.number if self._newest else None,
            hash=self._newest.hash if self._newest else None,
            published=self._published.number if self._published else None,
            target=self._target,
            stats=_sum(self._past, producer.stats) if producer else self._past,
            retries=self._queue.retries,
            renewals=self._queue.renewals,
            reorgs=self._reorgs,
            partial=self._partial.left,
            above=self._partial.above(self._highest),
            producers=producer.producer_count if producer else None,
            arrivals=producer.arrivals if producer else None,
            finality=None if self._newest is None else _finality(self._app, self._newest),
            oldest_seconds=self._queue.oldest_seconds,
            idle_seconds=now - self._head[1],
            stalled_seconds=self._stalled(now),
            eta_seconds=self._rate.seconds_to(self._target),
            connected=producer is not None and self._check.failure is None,
            nodes=self._report,
            waits_for=self._conditions.waits_for if self._is_running else "the service is connecting to the stream",
        )

    @property
    def unsealed(self) -> tuple[Payload, ...]:
        """The blocks that were submitted and are not sealed, by number."""
        return self._queue.unsealed

    async def prepare(self) -> list[BlockRef]:
        """Connect, create missing topics, and find where the topics end: the published chain, oldest first.

        Raises:
            ConfigurationError: a new stream cannot start there; no topic was created.
            CoverageChangedError: see rule 4.
            CardinalError: of the feed or the stream.

        """
        is_new = await self._is_new()
        if is_new:
            self._first = await first_block(self._feed, self._start, self._stop)
        self._producer = await self._connected()
        found = await asyncio.wrap_future(run_in_thread(self._survey, _THREAD))
        self._chain = found.chain
        if isinstance(self._feed, Learning):
            self._feed.learn({ref.hash: found.batches[ref.hash].weight for ref in found.chain})
        if not self._settings.allow_coverage_change:
            await check_newest(self._feed, self._app, found)
        if not found.chain and not is_new:
            self._first = await first_block(self._feed, self._start, self._stop)
        self._partial.begin(found)
        self._looks = True
        newest = found.chain[-1] if found.chain else None
        self._published, self._highest = newest, newest.number if newest else -1
        self._weight = found.batches[newest.hash].weight if newest else -1
        self._grouping = ReorgGrouping(
            getattr(self._app, "reorg_threshold", REORG_THRESHOLD),
            found.chain,
            max(0, self._weight),
            together=self._producer.transactional,
        )
        self._log_start()
        return found.chain

    async def run(self) -> None:
        """Publish until the feed ends, or until cancelled; then wait for what is in flight.

        Raises:
            CardinalError: of the feed, or of the stream where a retry does not help.

        """
        self._is_running = True
        retrying = asyncio.create_task(self._queue.retry())
        pump = asyncio.create_task(self._pump())
        completing = asyncio.create_task(self._complete_later())
        watching = asyncio.create_task(self._watch())
        try:
            running = {retrying, pump, completing, watching}
            while not pump.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            completing.cancel()
            await self._queue.drain(retrying, watching)
            self._looks = False
            await self._partial.look()
            await self._partial.request(self._highest)
            await self._queue.drain(retrying, watching)
        finally:
            tasks = (pump, retrying, completing, watching)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and release the connections."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)
            if (self._looks or self._partial.left) and not self._queue.unsealed:
                await self._partial.look()  # another producer may have completed it since
            self._looks = False
        await self._feed.close()

    # --- start ---------------------------------------------------------------------------------------------

    async def _is_new(self) -> bool:
        """True where the stream's topics do not exist."""
        if find_url(self._url).scheme in ("ws", "wss"):
            return False  # connecting refuses it
        return self._app.default_topic not in await self._check.topics()

    async def _connected(self) -> Producer:
        connecting = run_in_thread(self._connect, _THREAD)  # a daemon thread: a stop does not wait for the broker
        try:
            return await asyncio.wrap_future(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unwanted)
            raise

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

    def _survey(self) -> Survey:
        return survey_members(self._url, self._app, producer_id=self._settings.producer_id)

    def _log_start(self) -> None:
        name, published = self._app.default_topic, self._published
        if published is None:
            first = "the feed's first block" if self._first is None else f"block {self._first}"
            LOG.info("the stream %s begins with %s", name, first)
        elif self._stop is not None and self._stop <= published.number:
            LOG.info("the stream %s is at block %d: nothing to publish up to %d", name, published.number, self._stop)
        else:
            ignored = "" if self._start is None else "; its start is ignored, which is for new streams"
            LOG.info("the stream %s continues after block %d%s", name, published.number, ignored)

    # --- blocks --------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        async for payload in self._feed.follow(self._chain, start=self._first, until=self._stop):
            for step in self._grouping.receive(payload):
                await self._add(step)
            if self._grouping.switch is not None:
                self._reorged(self._grouping.switch)
            self._newest = payload
            self._highest = max(payload.number, self._highest)
        for step in self._grouping.rest():
            await self._add(step)

    async def _complete_later(self) -> None:
        """Of a feed that is followed: look once more after a while, and request blocks as the feed gets there."""
        await asyncio.sleep(self._settings.look_again_seconds)
        await self._partial.look()
        while await self._partial.request(self._highest):  # noqa: ASYNC110 - the request is the condition
            await asyncio.sleep(self._settings.look_again_seconds)

    async def _add(self, step: Step) -> None:
        if isinstance(step, Branch) and step.missing:
            step = await self._filled(step)
        self._partial.sends(step.hashes if isinstance(step, Branch) else (step.hash,))
        await self._queue.add(step)

    async def _filled(self, branch: Branch) -> Branch:
        """A branch to which the node returned, with the content of blocks that were published long ago."""
        first, last = branch.ancestor.number + 1, branch.newest.number
        fetched = {payload.hash: payload async for payload in self._feed.follow(start=first, until=last)}
        held = {
            one: payload for one in branch.hashes if (payload := branch.held.get(one) or fetched.get(one)) is not None
        }
        if len(held) < len(branch.hashes):
            raise NodeAnswerError(
                f"the node moved to a branch above block {branch.ancestor.number} and lacks some of it: start again"
            )
        return replace(branch, held=held)

    def _submit(self, step: Step) -> Future[None]:
        if self._producer is None:
            raise ConfigurationError("prepare the service before it runs")
        if isinstance(step, Branch):
            return self._producer.reorg(step.ancestor, step.payloads)
        return self._producer.add(payloads_of(step)[0])

    def _sealed(self, payload: Payload, seconds: float) -> None:
        self._partial.sealed(payload.hash)
        self._sealed_at, self._is_failing = time.monotonic(), self._is_failing and self._queue.failing
        self._check.answered()
        if payload.weight > self._weight:
            self._published, self._weight = payload.ref, payload.weight
        if self._observer is not None:
            self._observer.published(payload, seconds, max(0, (self._target or 0) - payload.number))

    def _failed(self, payload: Payload, error: CardinalError) -> None:
        if not self._is_failing:
            LOG.warning("block %d is sent again: %s", payload.number, error)
        self._is_failing = True

    def _reorged(self, switch: Switch) -> None:
        self._reorgs += 1
        before, after = switch.before, switch.after
        LOG.info(
            "reorg of depth %d above block %d: from block %d 0x%s to block %d 0x%s",
            *(switch.depth, switch.ancestor.number, before.number, before.hash.hex(), after.number, after.hash.hex()),
        )
        if self._observer is not None:
            self._observer.reorged(switch.depth)

    async def _renew(self, error: CardinalError) -> None:
        """Replace the producer, however long the broker is away. A stream whose topics were deleted is not begun."""
        producer, pause = self._producer, self._settings.watch_seconds
        if producer is None:
            raise error
        LOG.warning("the producer failed and is replaced: %s", error)
        await asyncio.to_thread(producer.close)
        self._past = _sum(self._past, producer.stats)._replace(in_flight=0, queued_messages=0, queued_bytes=0)
        while True:
            if await self._check.query():
                try:
                    self._producer = await self._connected()
                except CardinalError as failure:
                    if not failure.retriable:
                        raise
                else:
                    LOG.info("a new producer is connected")
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    # --- the watch -----------------------------------------------------------------------------------------

    @property
    def _target(self) -> int | None:
        return self._feed.target if isinstance(self._feed, Aiming) else None

    @property
    def _report(self) -> FeedReport:
        return self._feed.report if isinstance(self._feed, HasHead) else FeedReport()

    async def _watch(self) -> None:
        """Look at what may hold the service up. TopicError: a topic was deleted."""
        querying: asyncio.Task[bool] | None = None
        try:
            while True:
                now = time.monotonic()
                if querying is not None and querying.done():
                    querying.result()
                    querying = None
                if querying is None and now - self._queried >= self._settings.query_seconds and self._is_in_doubt():
                    self._queried, querying = now, asyncio.create_task(self._check.query())
                self._look(now)
                await asyncio.sleep(self._settings.watch_seconds)
        finally:
            if querying is not None:
                querying.cancel()

    def _is_in_doubt(self) -> bool:
        if self._check.failure is not None:
            return True
        silent = max(self._producer.ping_waits if self._producer else 0.0, self._queue.oldest_seconds)
        return silent > _DOUBT_SECONDS and time.monotonic() - self._sealed_at > _DOUBT_SECONDS

    def _look(self, now: float) -> None:
        head = self._report.head if self._report.head is not None else self._target
        if head != self._head[0]:
            self._head = head, now
        if self._newest is not None:
            self._rate.sample(now, self._newest.number)
        pending = bool(self._queue.unsealed) or (
            self._target is not None and self._published is not None and self._target > self._published.number
        )
        self._pending_since = (self._pending_since or now) if pending else None
        self._conditions.update(self._holding(now, head))
        producers = self._producer.producer_count if self._producer else None
        if producers is not None and producers.doubled and not self._is_doubled:
            self._is_doubled = True
            LOG.warning(
                "another running producer of this stream has the id %r: both take themselves for one, and each block "
                "may be sent twice; give each a --producer-id of its own",
                self._settings.producer_id,
            )

    def _stalled(self, now: float) -> float:
        return 0.0 if self._pending_since is None else now - max(self._pending_since, self._sealed_at)

    def _holding(self, now: float, head: int | None) -> dict[str, Condition]:
        """The conditions that hold, by name."""
        holding: dict[str, Condition] = {}
        target, published = self._target, self._published
        if self._report.waits_for:
            holding["node"] = Condition(self._report.waits_for, "")  # the feed logs it
        if self._check.failure is not None:
            unsealed = len(self._queue.unsealed)
            holding["broker"] = Condition(
                f"the broker does not answer, and {unsealed} blocks wait for it: {self._check.failure}",
                "the broker answers again",
            )
        if published is None and self._first is not None and target is not None and target < self._first:
            holding["first"] = Condition(
                f"the stream begins with block {self._first}, and the node's chain may be published up to block "
                f"{target} now; the service waits",
                f"the node's chain may be published from block {self._first} on",
            )
        elif published is not None and head is not None and head < published.number:
            holding["behind"] = Condition(
                f"the node is at block {head}, behind the published block {published.number}; the service waits",
                "the node has reached the published block",
            )
        elif published is not None and target is not None and target < published.number and self._stop is None:
            holding["held"] = Condition(
                f"the stream is at block {published.number}, and the node's chain may be published up to block "
                f"{target} now, by lag or finality; the service waits",
                "the node's chain may be published above the stream's end",
            )
        if not holding and (seconds := self._stalled(now)) >= self._settings.stalled_seconds:
            holding["stalled"] = Condition(
                f"nothing was published for {seconds:.0f} s, though the node has newer blocks",
                "blocks are published again",
            )
        return holding


def _sum(past: ProducerStats, now: ProducerStats) -> ProducerStats:
    return ProducerStats(*(one + other for one, other in zip(past, now, strict=True)))


def _finality(app: Stream, payload: Payload) -> Finality | None:
    """The marks that a payload carries."""
    if app.finality_paths is None:
        return None
    safe, finalized = (payload.updates.get(path) for path in app.finality_paths)
    return Finality(int.from_bytes(safe) if safe else None, int.from_bytes(finalized) if finalized else None)


def _close_unwanted(connecting: Future[Producer]) -> None:
    """Release a connection that nobody waited for."""
    if connecting.exception() is None:
        connecting.result().close()
