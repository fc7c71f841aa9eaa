"""Compatibility of a producer with the stream: the same entries for the same block.

A producer with other prefixes than the ones before it (an option left out, another release) would change what a block
consists of while consumers read it, and redundant producers that differ in it never agree. So a published block that
the node still has is rebuilt, and its entries compared: paths, kinds and counts, not values.

Of a stream that continues, the newest block up to the node's head is compared. Where it left the node's chain, others
are tried, each twice as far down as the one before: if the node has any of them, it has one that is tried. Of a range
that is repaired, the block next to the first missing one is compared.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from cardinal.errors import CoverageChangedError
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
    await _check_one(feed, app, [found.batches[ref.hash] for ref in reversed(found.chain)], _ALLOWED)


async def check_near(feed: BlockFeed, app: Stream, batches: Iterable[Batch], number: int) -> None:
    """Compare a block that is published at this number, below it, or else above; raises as :func:`check_newest`."""
    near = sorted(batches, key=lambda batch: (batch.number > number, abs(batch.number - number), batch.hash))
    await _check_one(feed, app, near, "")


async def _check_one(feed: BlockFeed, app: Stream, batches: Sequence[Batch], otherwise: str) -> None:
    """Compare the first of these that the node has, of those at the indexes 0, 1, 2, 4, 8… and the last."""
    head = await feed.head() if isinstance(feed, HasHead) else None
    batches = [batch for batch in batches if head is None or batch.number <= head]  # the feed would wait for others
    farther = [1 << power for power in range(len(batches).bit_length())]
    for index in sorted({0, *farther, len(batches) - 1}.intersection(range(len(batches)))):
        published = batches[index]
        payload = await _block_at(feed, published.number)
        if payload is not None and payload.hash == published.hash:
            compare(payload, published, app, otherwise)
            return


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
