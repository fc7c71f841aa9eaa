"""The producing service: a feed's blocks to a stream, from where the topics end, until it is told to stop.

Rules:

1. Blocks are handed over in the feed's order. The feed is not asked for more while the producer has no room.
2. A block that was not acknowledged is sent again, for as long as that can help; an error that time does not heal
   ends the service.
3. Told to stop, it takes no further block and waits for those under way.
4. It publishes nothing where a recent block is on the topics with other entries than its own application gives it
   (:mod:`.coverage`).
5. Blocks that are half published where the topics end are completed as the node gives them, or gives them by their
   hash where its feed can: when the feed has ended, or has been followed for a while (:mod:`.completing`). The rest is
   left and named: consumers expire it.
6. A producer that has stopped for good is replaced: the service begins again from where the topics end, as after a
   restart of the process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from cardinal._concurrency import run_in_thread
from cardinal.apps.base import REORG_THRESHOLD
from cardinal.errors import CardinalError, ClientStoppedError, ConfigurationError, NodeAnswerError
from cardinal.feeds import Aiming, BlockFeed, Learning
from cardinal.producer import Producer
from cardinal.producing.survey.batch_index import is_repairing
from cardinal.producing.survey.mux import survey_members
from cardinal.server.branches import Branch, Branches, Step
from cardinal.server.completing import Completing
from cardinal.server.coverage import check_coverage
from cardinal.server.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.frontier import Survey
    from cardinal.producing.survey.partial import HalfPublished
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.transports import TransportUrl

__all__ = ["ProduceService", "ProduceSettings", "Progress"]

_THREAD: Final = "cardinal-produce-connecting"
_RECONNECT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """How to produce.

    Attributes:
        producer_id: the producer's configured id.
        redundancy: see :class:`cardinal.Producer`.
        allow_coverage_change: publish also where recent blocks have other entries on the topics.
        reorg_channels: see :class:`cardinal.Producer`.
        look_again_seconds: when to look again for half-published blocks, and complete them, where the feed goes on.

    Raises:
        ConfigurationError: the id is one that marks repairs.

    """

    producer_id: str
    redundancy: Literal["all", "standby"] = "all"
    allow_coverage_change: bool = False
    reorg_channels: bool = True
    look_again_seconds: float = 30.0

    def __post_init__(self) -> None:
        if is_repairing(self.producer_id):
            raise ConfigurationError(
                f"{self.producer_id!r} ends as the names of repairs do, and a start would pass over what it sent: "
                "give another producer id",
                setting="producer_id",
            )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the service is. ``number`` and ``hash`` are the newest block handed over, None before the first.

    ``skipped`` blocks were left to other producers; ``half`` are the half-published ones that are not completed,
    ``above`` those of them that are higher than what was followed; ``producers`` is what is known of the stream's
    producers; ``target`` the number of the block that the feed goes to.
    """

    number: int | None
    hash: bytes | None
    blocks: int
    messages: int
    under_way: int
    again: int
    skipped: int = 0
    half: tuple[HalfPublished, ...] = ()
    producers: ProducerCount | None = None
    target: int | None = None
    above: tuple[HalfPublished, ...] = ()


class ProduceService:
    """One feed, one producer.

    Arguments:
        feed: where blocks come from.
        url: the stream's transport.
        app: the application.
        producer_id, settings: how to produce; the id alone, or all of it.
        again: told of every block that has to be sent again, with the reason.

    """

    def __init__(
        self,
        feed: BlockFeed,
        url: str | TransportUrl,
        app: Stream,
        *,
        producer_id: str | None = None,
        settings: ProduceSettings | None = None,
        again: Callable[[Payload, CardinalError], None] = lambda payload, error: None,  # noqa: ARG005 - names for callers
    ) -> None:
        self._feed = feed
        self._url = url
        self._app = app
        self._again = again
        self._outbox, self._completing = self._begin(0)
        self._settings = settings or ProduceSettings(producer_id or "")
        self._producer: Producer | None = None
        self._branches = Branches(1)
        self._newest: Payload | None = None
        self._highest = -1
        self._looks = False

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
            self._outbox.again_count,
            stats.skipped if stats else 0,
            self._completing.left,
            self._producer.producer_count if self._producer else None,
            self._feed.target if isinstance(self._feed, Aiming) else None,
            self._completing.above(self._highest),
        )

    @property
    def unsealed(self) -> tuple[Payload, ...]:
        """The blocks that were taken and are not sealed, by number."""
        return self._outbox.unsealed

    async def prepare(self) -> list[BlockRef]:
        """Connect, create what is missing, and find where the topics end: the published chain, oldest first.

        Raises:
            CoverageChangedError: see rule 4.
            CardinalError: of the feed or the stream.

        """
        # On threads that nobody waits for who is told to stop before the stream has answered.
        connecting = run_in_thread(self._connect, _THREAD)
        try:
            self._producer = await asyncio.wrap_future(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unwanted)
            raise
        found = await asyncio.wrap_future(run_in_thread(self._survey, _THREAD))
        if isinstance(self._feed, Learning):
            self._feed.learn({ref.hash: found.batches[ref.hash].weight for ref in found.chain})
        if not self._settings.allow_coverage_change:
            await check_coverage(self._feed, self._app, found)
        self._completing.begin(found)
        self._looks = True
        newest = found.chain[-1] if found.chain else None
        self._highest = newest.number if newest else -1
        self._branches = Branches(
            getattr(self._app, "reorg_threshold", REORG_THRESHOLD),
            found.chain,
            found.batches[newest.hash].weight if newest else 0,
            together=self._producer.transactional,
        )
        return found.chain

    async def run(self, published: Sequence[BlockRef], *, start: int | None, until: int | None) -> None:
        """Publish until the feed ends, or until cancelled; then wait for what is under way.

        Raises:
            CardinalError: of the feed, or of the stream where sending again does not help.

        """
        while True:
            try:
                await self._run(published, start, until)
            except ClientStoppedError as error:
                published = await self._restart(error)
            else:
                return

    async def _restart(self, stopped: ClientStoppedError) -> list[BlockRef]:
        """Replace the producer; the published chain as :meth:`prepare` returns it."""
        for payload in self._outbox.unsealed:
            self._again(payload, stopped)
        self._outbox, self._completing = self._begin(self._outbox.again_count + len(self._outbox.unsealed))
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)
        while True:
            try:
                return await self.prepare()
            except CardinalError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)

    def _begin(self, again_count: int) -> tuple[Outbox, Completing]:
        completing = Completing(self._feed, self._url, self._app, self._add)
        outbox = Outbox(self._hand_over, again=self._again, sealed=completing.sealed)
        outbox.again_count = again_count
        return outbox, completing

    async def _run(self, published: Sequence[BlockRef], start: int | None, until: int | None) -> None:
        resend = asyncio.create_task(self._outbox.resend())
        pump = asyncio.create_task(self._pump(published, start, until))
        completing = asyncio.create_task(self._complete_later())
        try:
            running = {resend, pump, completing}
            while not pump.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            completing.cancel()
            await self._outbox.drain(resend)
            self._looks = False
            await self._completing.look()
            await self._completing.ask(self._highest)
            await self._outbox.drain(resend)
        finally:
            for task in (pump, resend, completing):
                task.cancel()
            await asyncio.gather(pump, resend, completing, return_exceptions=True)

    async def close(self) -> None:
        """Wait for what is under way, for a bounded time, and release the connections."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)
            if (self._looks or self._completing.left) and not self._outbox.unsealed:
                await self._completing.look()  # another producer may have completed it since
            self._looks = False
        await self._feed.close()

    # --- inside --------------------------------------------------------------------------------------------

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

    async def _pump(self, published: Sequence[BlockRef], start: int | None, until: int | None) -> None:
        async for payload in self._feed.follow(published, start=start, until=until):
            for step in self._branches.receive(payload):
                await self._add(step)
            self._newest = payload
            self._highest = max(payload.number, self._highest)
        for step in self._branches.rest():
            await self._add(step)

    async def _complete_later(self) -> None:
        """Of a feed that goes on: look again after a while, and ask for what is half as the feed gets there."""
        await asyncio.sleep(self._settings.look_again_seconds)
        await self._completing.look()
        above = True
        while above:
            above = await self._completing.ask(self._highest)
            if above:
                await asyncio.sleep(self._settings.look_again_seconds)

    async def _add(self, step: Step) -> None:
        if isinstance(step, Branch) and step.missing:
            step = await self._filled(step)
        self._completing.taken(step.hashes if isinstance(step, Branch) else (step.hash,))
        await self._outbox.add(step)

    async def _filled(self, branch: Branch) -> Branch:
        """A branch to which the node came back, with the content of what was published long ago."""
        first, last = branch.ancestor.number + 1, branch.newest.number
        given = {payload.hash: payload async for payload in self._feed.follow(start=first, until=last)}
        held = {
            one: payload for one in branch.hashes if (payload := branch.held.get(one) or given.get(one)) is not None
        }
        if len(held) < len(branch.hashes):
            raise NodeAnswerError(
                f"the node went to a branch above block {branch.ancestor.number} and lacks some of it: start again"
            )
        return replace(branch, held=held)

    def _hand_over(self, step: Step) -> Future[None]:
        if self._producer is None:
            raise ConfigurationError("prepare the service before it runs")
        if isinstance(step, Branch):
            return self._producer.reorg(step.ancestor, step.payloads)
        return self._producer.add(step)


def _close_unwanted(connecting: Future[Producer]) -> None:
    """Release a connection that nobody waited for."""
    if connecting.exception() is None:
        connecting.result().close()
