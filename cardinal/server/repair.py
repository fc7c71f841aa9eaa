"""Repair of a range of blocks by hand: what the node has and the topics do not hold complete is sent again.

Rules:

1. First the content of the topics is counted, sealed blocks included, then the node is asked for the range. Nothing
   is written before both have answered, and nothing at all in a dry run.
2. A block that is complete, of a mux in every member, is not sent again. To send one twice does no harm: copies are
   equal.
3. A block is sent with the entries that the stream has: the block itself where its Batch is there, the one before it,
   and the one next to the first gap, are compared with what would be sent (:mod:`.coverage`).
4. What is half published and not given by the node is left and named: consumers expire it. What has no Batch, and so
   no number, is asked for by its hash where the feed can.
5. A range that ends above what the node gives is refused: its feed would wait for these blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError, FeedError
from cardinal.feeds import Aiming, ByHash, Learning
from cardinal.producer import Producer
from cardinal.producing.survey.batch_index import repairing
from cardinal.producing.survey.mux import range_in_members
from cardinal.producing.survey.partial import HalfPublished, place
from cardinal.protocols.streams.types import BlockRef
from cardinal.server.coverage import check_near, compare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Future

    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.height_range import HeightRange
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.wire.messages import Batch
    from cardinal.transports import TransportUrl

_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Repairing:
    """What to repair: blocks ``first`` to ``last``, in the name of ``producer_id``; ``dry_run`` only looks.

    The name gets ``-repair`` at its end, by which a producer that starts knows what was sent long after its time.
    """

    first: int
    last: int
    producer_id: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found, and done unless it was a dry run.

    Attributes:
        complete: how many blocks that the node gave are complete on the topics.
        missing: blocks that were not there at all, or without their Batch.
        half: blocks whose Batch was there and not everything that it counts.
        left: half-published blocks that the node did not give, those without a number last.
        sent: how many were sent again.
        looked: whether blocks without a Batch were looked for: not in a very wide range.

    """

    complete: int
    missing: tuple[BlockRef, ...]
    half: tuple[BlockRef, ...]
    left: tuple[HalfPublished, ...]
    sent: int
    looked: bool = True


async def repair(
    feed: BlockFeed, url: str | TransportUrl, app: Stream, what: Repairing, found: Callable[[BlockRef], None]
) -> Repaired:
    """Complete what is not complete.

    Arguments:
        feed: the node.
        url: the stream; it exists.
        app: the application.
        what: the range.
        found: told of every block that is sent, or would be.

    Raises:
        ConfigurationError: the range is none, or ends above what the node has.
        CoverageChangedError: the stream holds its blocks with other entries than would be sent.
        TopicError: the stream does not exist.
        CardinalError: of the feed or of the stream; run it again then.

    """
    if not 0 <= what.first <= what.last:
        raise ConfigurationError(
            f"there are no blocks from {what.first} to {what.last}: give the lower number first", setting="first"
        )
    await _check_last(feed, what.last)
    # The block below the range, too: the first one's weight has to fit its.
    kept = await asyncio.to_thread(range_in_members, url, app, max(0, what.first - 1), what.last)
    if isinstance(feed, Learning):
        feed.learn({block: kept.batches[block].weight for block in kept.complete})
    there = {kept.batches[block].number for block in kept.complete}
    missing = next((number for number in range(what.first, what.last + 1) if number not in there), what.first)
    await check_near(feed, app, kept.batches.values(), missing)
    work = _Work(app, kept, what)
    producer: Producer | None = None
    try:
        async for payload in work.given(feed):
            found(payload.ref)
            if not what.dry_run:
                if producer is None:
                    producer = await asyncio.to_thread(Producer, url, app, producer_id=repairing(what.producer_id))
                work.sent.append(await asyncio.to_thread(producer.add, payload))
        for future in work.sent:
            await asyncio.wrap_future(future)
    finally:
        if producer is not None:
            await asyncio.to_thread(producer.close)
    return work.report()


async def _check_last(feed: BlockFeed, last: int) -> None:
    """Refuse what the node does not have yet, as soon as it is known how far it goes."""
    if not isinstance(feed, Aiming):
        return
    blocks = feed.follow(start=last, until=last)
    first = asyncio.ensure_future(anext(aiter(blocks), None))
    try:
        while feed.target is None and not first.done():
            await asyncio.wait({first}, timeout=_LOOK_SECONDS)
        if feed.target is None:
            first.result()
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        if isinstance(blocks, AsyncGenerator):
            await blocks.aclose()
    if feed.target is not None and feed.target < last:
        raise ConfigurationError(
            f"the node gives blocks up to {feed.target} now, and block {last} is above that: give a lower last block, "
            "or wait for it (a lag or finality among the node's options keeps blocks back)",
            setting="last",
        )


class _Work:
    """What the topics hold, and what of it the node gave."""

    def __init__(self, app: Stream, kept: HeightRange, what: Repairing) -> None:
        self._app = app
        self._what = what
        self._before: tuple[Payload, Batch] | None = None
        self._batches = {block: one for block, one in kept.batches.items() if what.first <= one.number <= what.last}
        self._complete = kept.complete
        self._headless = kept.headless
        self._given: set[bytes] = set()
        self._beyond: set[bytes] = set()
        self._missing: list[BlockRef] = []
        self._half: list[BlockRef] = []
        self.sent: list[Future[None]] = []

    async def given(self, feed: BlockFeed) -> AsyncIterator[Payload]:
        """What has to be sent, of the node's chain, then of what has no Batch."""
        async for payload in feed.follow(start=self._what.first, until=self._what.last):
            if self._inside(payload) and self.wants(payload):
                yield payload
        if isinstance(feed, ByHash):
            for block in sorted((self._headless or set()) - self._given):
                with contextlib.suppress(FeedError):  # it stays named
                    payload_or_none = await feed.block(block)
                    if payload_or_none is None:
                        continue
                    if not self._inside(payload_or_none):
                        self._beyond.add(block)
                    elif self.wants(payload_or_none):
                        yield payload_or_none

    def _inside(self, payload: Payload) -> bool:
        return self._what.first <= payload.number <= self._what.last

    def wants(self, payload: Payload) -> bool:
        """Whether a block that the node gave has to be sent; CoverageChangedError where its entries would differ."""
        if payload.hash in self._given:
            return False
        self._given.add(payload.hash)
        if (published := self._batches.get(payload.hash)) is not None:
            self._before = payload, published
        if payload.hash in self._complete:
            return False
        if self._before is not None:
            compare(*self._before, self._app)
            self._before = None
        (self._half if payload.hash in self._batches else self._missing).append(payload.ref)
        return True

    def report(self) -> Repaired:
        """What came of it."""
        left = [
            HalfPublished(block, batch.number, 0)
            for block, batch in self._batches.items()
            if block not in self._complete and block not in self._given
        ]
        left += [HalfPublished(one, None, 0) for one in (self._headless or set()) - self._given - self._beyond]
        return Repaired(
            len(self._given & self._complete),
            tuple(self._missing),
            tuple(self._half),
            tuple(sorted(left, key=place)),
            len(self.sent),
            self._headless is not None,
        )
