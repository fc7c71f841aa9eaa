"""Repair of a range of blocks: those that the node has and the topics do not hold complete are sent.

Rules:

1. First the content of the topics is counted, sealed blocks included, then the range is requested from the node.
   Nothing is written before both have answered, and nothing at all in a dry run.
2. A block that is complete, of a mux in every member, is not sent. To send one twice does no harm: copies are equal.
3. A block is sent with the entries that the stream has: the block itself where its Batch is there, the one before it,
   and the one next to the first gap, are compared with what would be sent (:mod:`.compatibility`). A node that has
   none of the range's published blocks is refused, and so is a range that begins above the block at which the node's
   chain leaves the published one: consumers would never receive what is sent.
4. Partially published blocks that the node does not have are left and reported: consumers abandon them. One without a
   Batch, and so without a number, is requested by its hash where the feed can.
5. A range that ends above the node's head is refused: its feed would wait for these blocks.
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
from cardinal.producing.survey.partial import PartialBlock, place
from cardinal.protocols.streams.types import BlockRef
from cardinal.server.produce.compatibility import check_near, compare
from cardinal.texts import short_hash

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
class RepairRange:
    """The range of a repair: blocks ``start`` to ``stop``, sent as ``producer_id``; ``dry_run`` sends nothing.

    The id gets the suffix ``-repair``, by which a producer that starts recognises blocks sent long after their time.
    """

    start: int
    stop: int
    producer_id: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair.

    Attributes:
        complete: number of the node's blocks that are complete on the topics.
        missing: blocks of which nothing was on the topics, or no Batch.
        partial: blocks whose Batch was on the topics, without all that it counts.
        left: partially published blocks that the node does not have, those without a number last.
        sent: number of blocks that were sent.
        looked: blocks without a Batch were searched; not in a very wide range.

    """

    complete: int
    missing: tuple[BlockRef, ...]
    partial: tuple[BlockRef, ...]
    left: tuple[PartialBlock, ...]
    sent: int
    looked: bool = True


async def repair(
    feed: BlockFeed, url: str | TransportUrl, app: Stream, what: RepairRange, found: Callable[[BlockRef], None]
) -> Repaired:
    """Complete the blocks of a range.

    Arguments:
        feed: the node.
        url: the stream; it exists.
        app: the application.
        what: the range.
        found: called with every block that is sent, or would be.

    Raises:
        ConfigurationError: the range is empty, or ends above the node's head, or begins above a block that is to be
            sent first.
        CoverageChangedError: the stream holds its blocks with other entries than would be sent.
        TopicError: the stream does not exist.
        WrongChainError: the node has none of the blocks that are published in the range.
        CardinalError: of the feed or of the stream; run it again then.

    """
    if not 0 <= what.start <= what.stop:
        raise ConfigurationError(
            f"there are no blocks from {what.start} to {what.stop}: start with the lower number", setting="start"
        )
    await _check_stop(feed, what.stop)
    # The block below the range, too: the first one's weight has to fit its.
    kept = await asyncio.to_thread(range_in_members, url, app, max(0, what.start - 1), what.stop)
    if isinstance(feed, Learning):
        feed.learn({block: kept.batches[block].weight for block in kept.complete})
    there = {kept.batches[block].number for block in kept.complete}
    missing = next((number for number in range(what.start, what.stop + 1) if number not in there), what.start)
    await check_near(feed, app, kept.batches.values(), missing)
    work = _Work(app, kept, what)
    producer: Producer | None = None
    try:
        async for payload in work.missing_blocks(feed):
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


async def _check_stop(feed: BlockFeed, stop: int) -> None:
    """Refuse what the node does not have yet, as soon as its head is known."""
    if not isinstance(feed, Aiming):
        return
    blocks = feed.follow(start=stop, until=stop)
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
    if feed.target is not None and feed.target < stop:
        raise ConfigurationError(
            f"the node has blocks up to {feed.target} now, and block {stop} is above that: stop at a lower block, "
            "or wait for it (a lag or finality among the node's options holds blocks back)",
            setting="stop",
        )


class _Work:
    """The blocks of the topics and of the node."""

    def __init__(self, app: Stream, kept: HeightRange, what: RepairRange) -> None:
        self._app = app
        self._what = what
        self._before: tuple[Payload, Batch] | None = None
        self._batches = {block: one for block, one in kept.batches.items() if what.start <= one.number <= what.stop}
        self._complete = kept.complete
        self._below = {block for block, one in kept.batches.items() if one.number < what.start}
        self._headless = kept.headless
        self._seen: set[bytes] = set()
        self._beyond: set[bytes] = set()
        self._missing: list[BlockRef] = []
        self._partial: list[BlockRef] = []
        self.sent: list[Future[None]] = []

    async def missing_blocks(self, feed: BlockFeed) -> AsyncIterator[Payload]:
        """The blocks to send, of the node's chain, then those without a Batch."""
        async for payload in feed.follow(start=self._what.start, until=self._what.stop):
            if self._inside(payload) and self.is_missing(payload):
                self._check_parent(payload)
                yield payload
        if isinstance(feed, ByHash):
            for block in sorted((self._headless or set()) - self._seen):
                with contextlib.suppress(FeedError):  # it stays reported
                    payload_or_none = await feed.block(block)
                    if payload_or_none is None:
                        continue
                    if not self._inside(payload_or_none):
                        self._beyond.add(block)
                    elif self.is_missing(payload_or_none):
                        yield payload_or_none

    def _check_parent(self, payload: Payload) -> None:
        """Refuse the range's first block where the stream has its parent's number, and not its parent whole.

        Where the stream has no block of that number, it begins here.
        """
        if payload.number != self._what.start or not self._below or payload.parent in self._below & self._complete:
            return
        below = payload.number - 1
        raise ConfigurationError(
            f"block {payload.number} of the node continues block {below} {short_hash(payload.parent)}, which is not "
            f"complete on the topics: start at {below}, or lower at the block where the node leaves the stream's chain",
            setting="start",
        )

    def _inside(self, payload: Payload) -> bool:
        return self._what.start <= payload.number <= self._what.stop

    def is_missing(self, payload: Payload) -> bool:
        """True for a block of the node that has to be sent; CoverageChangedError where its entries would differ."""
        if payload.hash in self._seen:
            return False
        self._seen.add(payload.hash)
        if (published := self._batches.get(payload.hash)) is not None:
            self._before = payload, published
        if payload.hash in self._complete:
            return False
        if self._before is not None:
            compare(*self._before, self._app)
            self._before = None
        (self._partial if payload.hash in self._batches else self._missing).append(payload.ref)
        return True

    def report(self) -> Repaired:
        """The result."""
        left = [
            PartialBlock(block, batch.number, 0)
            for block, batch in self._batches.items()
            if block not in self._complete and block not in self._seen
        ]
        left += [PartialBlock(one, None, 0) for one in (self._headless or set()) - self._seen - self._beyond]
        return Repaired(
            len(self._seen & self._complete),
            tuple(self._missing),
            tuple(self._partial),
            tuple(sorted(left, key=place)),
            len(self.sent),
            self._headless is not None,
        )
