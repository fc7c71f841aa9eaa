"""Compatibility of a producer with the stream: the same entries for the same block.

A producer with other prefixes than the ones before it (an option left out, another release) would change what a block
consists of while consumers read it, and redundant producers that differ in it never agree. So a published block that
the node still has is rebuilt, and its entries compared: paths, kinds and counts, not values.

Of a stream that continues, the newest block up to the node's head is compared. Where it left the node's chain, others
are tried, each twice as far down as the one before: if the node has any of them, it has one that is tried. Of a range
that is repaired, the block next to the first missing one is compared, and where the node has none of the published
blocks, it is the node of another chain.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from cardinal.errors import CoverageChangedError, WrongChainError
from cardinal.feeds import HasHead
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import NO_ID
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import Batch, Update

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.feeds import BlockFeed
    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.frontier import Survey
    from cardinal.protocols.streams.payload import Payload

_ALLOWED: Final = ", or --allow-coverage-change where the change is intended"
_NAMED: Final = 3


async def check_newest(feed: BlockFeed, app: Stream, found: Survey) -> None:
    """Compare the newest published blocks with the Batch that would be published for one of them.

    Raises:
        CoverageChangedError: they differ.
        CardinalError: of the feed; SplitError: the payload does not fit the application.

    """
    await _check_one(feed, app, [[found.batches[ref.hash]] for ref in reversed(found.chain)], _ALLOWED)


async def check_near(feed: BlockFeed, app: Stream, batches: Iterable[Batch], number: int) -> None:
    """Compare a block that is published at this number, below it, or else above.

    Raises:
        WrongChainError: the node has none of the blocks that are published there.
        CardinalError: as :func:`check_newest`.

    """
    heights: dict[int, list[Batch]] = {}
    for batch in batches:
        heights.setdefault(batch.number, []).append(batch)
    near = sorted(heights, key=lambda height: (height > number, abs(height - number)))
    if near and not await _check_one(feed, app, [heights[height] for height in near], ""):
        raise WrongChainError(
            f"the node has none of the blocks that are published from {min(near)} to {max(near)}: it is the node of "
            "another chain, or a reorg replaced them all; check its URL, or start the range lower"
        )


async def _check_one(feed: BlockFeed, app: Stream, heights: Sequence[Sequence[Batch]], otherwise: str) -> bool:
    """Compare the first of these that the node has, and return whether it has any.

    Of the heights, those at the indexes 0, 1, 2, 4, 8… are tried, the last one and the lowest one.
    """
    head = await feed.head() if isinstance(feed, HasHead) else None
    # The feed would wait for blocks above its head.
    heights = [batches for batches in heights if head is None or batches[0].number <= head]
    tried = {0, len(heights) - 1, *(1 << power for power in range(len(heights).bit_length()))}
    lowest = min((batches[0].number for batches in heights), default=0)
    for index, batches in enumerate(heights):
        if index in tried or batches[0].number == lowest:
            payload = await _block_at(feed, batches[0].number)
            for published in batches:
                if payload is not None and payload.hash == published.hash:
                    compare(payload, published, app, otherwise)
                    return True
    return False


async def _block_at(feed: BlockFeed, number: int) -> Payload | None:
    """The node's block of this number, alone: to a feed of one block any reorg is too deep."""
    blocks = feed.follow(start=number, until=number)
    try:
        return await anext(aiter(blocks), None)
    finally:
        if isinstance(blocks, AsyncGenerator):
            await blocks.aclose()


def compare(payload: Payload, published: Batch, app: Stream, otherwise: str = "") -> None:
    """Refuse a payload whose Batch would have other entries than the published one.

    Arguments:
        payload: the node's.
        published: the Batch of the same block that is on the topics.
        app: the application.
        otherwise: what else can be done, for the error.

    Raises:
        CoverageChangedError: they differ.
        SplitError: the payload does not fit the application.

    """
    ours = decode(*split(payload, app.topics, app.default_topic)[-1][1:])
    if not isinstance(ours, Batch):
        return
    here, there = _entries(ours.updates), _entries(published.updates)
    if here == there:
        return
    missing, added = tuple(sorted(there - here)), tuple(sorted(here - there))
    raise CoverageChangedError(
        f"block {payload.number} (0x{payload.hash.hex()}) is on the topics with other entries than this producer would "
        f"publish ({(_named('not ours', missing) + _named('only ours', added)).rstrip('; ')}): use the options that it "
        f"was published with{otherwise}",
        number=payload.number,
        block_hash=payload.hash,
        missing=missing,
        added=added,
    )


def _entries(updates: Mapping[str, Update]) -> set[str]:
    """Path and kind of every entry, as a reader would write them down."""
    return {f"{path}{_kind(update)}" for path, update in updates.items() if update.sub_batch == NO_ID} | {
        f"sub batch {update.sub_batch.hex()}" for update in updates.values() if update.sub_batch != NO_ID
    }


def _kind(update: Update) -> str:
    if update.count:
        return f" ×{update.count}"
    return " deleted" if update.delete else ""


def _named(label: str, entries: tuple[str, ...]) -> str:
    if not entries:
        return ""
    more = f" and {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
    return f"{label}: {', '.join(entries[:_NAMED])}{more}; "
