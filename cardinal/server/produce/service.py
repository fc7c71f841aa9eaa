"""The producing service: a feed's blocks to a stream, from where the topics end, until it is stopped.

Rules:

1. Blocks are submitted in the feed's order. No more are requested from the feed while the producer has no capacity.
2. An unreachable node or broker is waited for, at the start too (:mod:`.conditions`). A block that was not
   acknowledged is submitted again (:mod:`.retry_queue`), to a new producer where one has failed (:mod:`.connection`).
   An error that time does not heal ends the service.
3. When it is stopped it takes no further block and waits for those in flight.
4. It publishes nothing where a recent block is on the topics with other entries than its own application gives it
   (:mod:`.compatibility`).
5. Blocks that are partially published where the topics end are completed as the feed yields them, or by requesting
   them by hash: when the feed has ended, or has been followed for a while (:mod:`.partial_blocks`).
6. Where a new stream starts is checked before topics are created (:mod:`.start`). The origin of its weights is settled
   on the topics before the first block is sent (:mod:`cardinal.producing.origin`).
7. An ingest node that needs blocks which are not held any more gets them: the feed is read again from there.
8. It logs on ``cardinal.produce`` what holds it up (:mod:`.watch`), and every reorg in one line.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.errors import CardinalError, ConfigurationError, IntegrityError, NodeAnswerError, NodeBehindError
from cardinal.feeds import Learning, Originating
from cardinal.protocols.streams.types import Finality, path_expression
from cardinal.server.log_fields import LoggedHash
from cardinal.server.produce.compatibility import check_newest
from cardinal.server.produce.conditions import LOG, Conditions
from cardinal.server.produce.connection import connection_of
from cardinal.server.produce.partial_blocks import PartialBlocks
from cardinal.server.produce.progress import Progress
from cardinal.server.produce.reorg_grouping import Branch, ReorgGrouping
from cardinal.server.produce.retry_queue import RetryQueue
from cardinal.server.produce.settings import ProduceSettings
from cardinal.server.produce.start import first_block
from cardinal.server.produce.watch import Position, Watch

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.server.produce.reorg_grouping import Step, Switch
    from cardinal.server.produce.settings import Observer
    from cardinal.server.produce.start import Start
    from cardinal.transports import TransportUrl


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
        conditions: logs what holds the service up.

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
        conditions: Conditions | None = None,
    ) -> None:
        self._feed = feed
        self._app = app
        self._settings = settings or ProduceSettings(producer_id or "")
        self._start = start
        self._stop = stop
        self._observer = observer
        self._first: int | None = None
        self._chain: list[BlockRef] = []
        self._stream = connection_of(url, app, self._settings)
        self._partial = PartialBlocks(feed, url, app, self._add)
        self._queue = RetryQueue(
            self._stream.submit, renew=self._stream.renew, sealed=self._sealed, failed=self._failed
        )
        self._conditions = conditions or Conditions()
        self._watch = Watch(feed, self._stream, self._queue, self._settings, self._conditions, self._position)
        self._grouping = ReorgGrouping(1)
        self._newest: Payload | None = None
        self._highest = -1
        self._published: int | None = None
        self._weight = -1
        self._reorgs = 0
        self._looks = self._is_failing = self._is_running = False

    @property
    def progress(self) -> Progress:
        """Snapshot of what was done, what is in flight, and what it waits for."""
        at = self._position()
        return Progress(
            number=at.newest,
            hash=self._newest.hash if self._newest else None,
            first=at.first,
            published=at.published,
            target=self._watch.target,
            stats=self._stream.stats,
            retries=self._queue.retries,
            renewals=self._queue.renewals,
            reorgs=self._reorgs,
            partial=self._partial.left,
            above=self._partial.above(self._highest),
            absent=self._partial.absent,
            producers=self._stream.producer_count,
            arrivals=self._stream.arrivals,
            finality=None if self._newest is None else _finality(self._app, self._newest),
            oldest_seconds=self._queue.oldest_seconds,
            idle_seconds=self._watch.idle_seconds,
            stalled_seconds=self._watch.stalled_seconds,
            eta_seconds=self._watch.eta_seconds,
            connected=self._stream.is_connected,
            nodes=self._watch.nodes,
            waits_for=self._conditions.waits_for
            or ("" if self._is_running else "the service is connecting to the stream"),
        )

    def _position(self) -> Position:
        return Position(self._first, self._newest.number if self._newest else None, self._published, self._stop)

    @property
    def unsealed(self) -> tuple[Payload, ...]:
        """The blocks that were submitted and are not sealed, by number."""
        return self._queue.unsealed

    async def prepare(self) -> list[BlockRef]:
        """Connect, create missing topics, and find where the topics end: the published chain, oldest first.

        Raises:
            ConfigurationError: a new stream cannot start there; no topic was created.
            CoverageChangedError: see rule 4.
            CardinalError: of the feed or the stream, where waiting does not heal it.

        """
        return await self._conditions.answer(self._prepare, self._stream.check.peer)

    async def _prepare(self) -> list[BlockRef]:
        try:
            return await self._begun()
        except CardinalError:
            await self._stream.close()  # a producer that waits is not one of those that run
            raise

    async def _begun(self) -> list[BlockRef]:
        is_new = await self._stream.is_new()
        if is_new:
            self._first = await first_block(self._feed, self._start, self._stop)
        await self._stream.open()
        found = await self._stream.survey()
        self._chain = found.chain
        if isinstance(self._feed, Learning):
            self._feed.learn({ref.hash: found.batches[ref.hash].weight for ref in found.chain})
        if not found.chain and found.following is None:
            if not is_new:
                self._first = await first_block(self._feed, self._start, self._stop)
            await self._settle_origin()
        if not self._settings.allow_coverage_change:
            await check_newest(self._feed, self._app, found)
        if found.following is not None:
            self._first = found.following
        self._partial.begin(found)
        self._looks = True
        newest = found.chain[-1] if found.chain else None
        self._published = newest.number if newest else found.last
        self._highest = newest.number if newest else -1
        self._weight = found.batches[newest.hash].weight if newest else -1
        self._grouping = ReorgGrouping(
            getattr(self._app, "reorg_threshold", REORG_THRESHOLD),
            found.chain,
            max(0, self._weight),
            together=self._stream.transactional,
        )
        self._log_start()
        return found.chain

    async def _settle_origin(self) -> None:
        """Let the weights of a stream without blocks count from the origin that its producers agree on."""
        if not isinstance(self._feed, Originating):
            return
        proposal = await self._feed.origin(self._first)
        if proposal and (origin := await self._stream.settle_origin(proposal)):
            self._feed.adopt(origin)

    async def run(self) -> None:
        """Publish until the feed ends, or until cancelled; then wait for what is in flight.

        Raises:
            CardinalError: of the feed, or of the stream where a retry does not help.

        """
        while True:
            try:
                return await self._run()
            except NodeBehindError as behind:
                LOG.info(
                    "%(error)s: the feed is read again", {"kind": "behind", "error": behind, "block": behind.number}
                )
                self._read_again(behind.number)

    def _read_again(self, first: int) -> None:
        """Forget what is in flight, and begin again with another block."""
        self._queue.clear()
        self._chain, self._first = [], first
        self._grouping = ReorgGrouping(
            getattr(self._app, "reorg_threshold", REORG_THRESHOLD), together=self._stream.transactional
        )

    async def _run(self) -> None:
        self._is_running = True
        retrying = asyncio.create_task(self._queue.retry())
        pump = asyncio.create_task(self._pump())
        completing = asyncio.create_task(self._complete_later())
        watching = asyncio.create_task(self._watch.run())
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
        await self._stream.close()
        if (self._looks or self._partial.left) and not self._queue.unsealed:
            await self._partial.look()  # another producer may have completed it since
        self._looks = False
        await self._feed.close()

    # --- start ---------------------------------------------------------------------------------------------

    def _log_start(self) -> None:
        name, published = self._app.default_topic, self._published
        fields: dict[str, object]
        if published is None:
            first = "the feed's first block" if self._first is None else f"block {self._first}"
            fields = {"kind": "begins", "topic": name, "first": first}
            LOG.info("the stream %(topic)s begins with %(first)s", fields)
        elif self._stop is not None and self._stop <= published:
            fields = {"kind": "done", "topic": name, "block": published, "stop": self._stop}
            LOG.info("the stream %(topic)s is at block %(block)d: nothing to publish up to %(stop)d", fields)
        else:
            ignored = "" if self._start is None else "; its start is ignored, which is for new streams"
            fields = {"kind": "continues", "topic": name, "block": published}
            LOG.info(f"the stream %(topic)s continues after block %(block)d{ignored}", fields)

    # --- blocks --------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        if self._first is not None and self._stop is not None and self._first > self._stop:
            return  # an ingest node has it, and all that a reorg of it may reach
        async for payload in self._feed.follow(self._chain, start=self._first, until=self._stop):
            self._check(payload)
            for step in self._grouping.receive(payload):
                await self._add(step)
            if self._grouping.switch is not None:
                self._reorged(self._grouping.switch)
            self._newest = payload
            self._highest = max(payload.number, self._highest)
        for step in self._grouping.rest():
            await self._add(step)

    def _check(self, payload: Payload) -> None:
        """Refuse a feed of another application, and a number that does not follow its parent's."""
        before, paths = self._newest, payload.updates
        if before is not None and payload.parent == before.hash and payload.number != before.number + 1:
            raise IntegrityError(
                f"block {payload.number} follows block {before.number}: a chain's numbers are consecutive",
                number=payload.number,
                block_hash=payload.hash,
                check="number",
            )
        if before is None and paths and getattr(self._app, "names", None):  # it has no other entries than it declares
            known = [path_expression(one) for one in (*self._app.topics, *getattr(self._app, "prefixes", ()))]
            if not any(one.match(path) for path in paths for one in known):
                raise ConfigurationError(
                    f"block {payload.number} holds nothing that belongs on {self._app.default_topic}, but "
                    f"{next(iter(paths))!r}: name the application of its feed by --app",
                    setting="app",
                )

    async def _complete_later(self) -> None:
        """Of a feed that is followed: look once more after a while, and request blocks as the feed reaches them."""
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

    def _sealed(self, payload: Payload, seconds: float) -> None:
        self._partial.sealed(payload.hash)
        self._watch.sealed()
        self._is_failing = self._is_failing and self._queue.failing
        if payload.weight > self._weight:
            self._published, self._weight = payload.number, payload.weight
        if self._observer is not None:
            self._observer.published(payload, seconds, max(0, (self._watch.target or 0) - payload.number))

    def _failed(self, payload: Payload, error: CardinalError) -> None:
        if not self._is_failing:
            fields = {"kind": "retry", "block": payload.number, "hash": LoggedHash(payload.hash), "error": error}
            LOG.warning("block %(block)d is sent again: %(error)s", fields)
        self._is_failing = True

    def _reorged(self, switch: Switch) -> None:
        self._reorgs += 1
        before, after = switch.before, switch.after
        LOG.info(
            "reorg of depth %(depth)d above block %(ancestor)d: from block %(old_block)d %(old_hash)s "
            "to block %(block)d %(hash)s",
            {
                "kind": "reorg",
                "depth": switch.depth,
                "ancestor": switch.ancestor.number,
                "old_block": before.number,
                "old_hash": LoggedHash(before.hash),
                "block": after.number,
                "hash": LoggedHash(after.hash),
            },
        )
        if self._observer is not None:
            self._observer.reorged(switch.depth)


def _finality(app: Stream, payload: Payload) -> Finality | None:
    """The marks that a payload carries."""
    if app.finality_paths is None:
        return None
    safe, finalized = (payload.updates.get(path) for path in app.finality_paths)
    return Finality(int.from_bytes(safe) if safe else None, int.from_bytes(finalized) if finalized else None)
