"""Whether a producer would publish what the stream already holds: the same entries for the same block.

A producer with other prefixes than the ones before it (an option left out, another release) would change under its
consumers' feet what a block consists of, and redundant producers that differ in it never agree. So a published block
that the node still has is rebuilt, and its entries compared: paths, kinds and counts, not values.

Which one: of a stream that goes on, the newest. Where the node has left it, others are tried, each twice as far down as
the one before: if the node has any of them, it has one that is tried. Of a range that is completed, the one next to the
first block that is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from cardinal.errors import CoverageChangedError
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

_MEANT: Final = ", or --allow-coverage-change where the change is meant"
_SHOWN: Final = 3


async def check_coverage(feed: BlockFeed, app: Stream, found: Survey) -> None:
    """Compare the newest published blocks with what the node's payload of one of them would declare.

    Raises:
        CoverageChangedError: they differ.
        CardinalError: of the feed; SplitError: the payload does not fit the application.

    """
    await _check_one(feed, app, [found.batches[ref.hash] for ref in reversed(found.chain)], _MEANT)


async def check_near(feed: BlockFeed, app: Stream, batches: Iterable[Batch], number: int) -> None:
    """Compare what is published at this number, below it, or else above; raises as :func:`check_coverage`."""
    near = sorted(batches, key=lambda batch: (batch.number > number, abs(batch.number - number), batch.hash))
    await _check_one(feed, app, near, "")


async def _check_one(feed: BlockFeed, app: Stream, batches: Sequence[Batch], otherwise: str) -> None:
    """Compare the first of these that the node has, of those at the places 0, 1, 2, 4, 8… and at the end."""
    farther = [1 << power for power in range(len(batches).bit_length())]
    for place in sorted({0, *farther, len(batches) - 1}.intersection(range(len(batches)))):
        published = batches[place]
        payload = await _given(feed, published.number)
        if payload is not None and payload.hash == published.hash:
            compare(payload, published, app, otherwise)
            return


async def _given(feed: BlockFeed, number: int) -> Payload | None:
    """The node's block of this number, and no more: to a feed of one block alone any reorg is too deep."""
    blocks = feed.follow(start=number, until=number)
    try:
        return await anext(aiter(blocks), None)
    finally:
        if isinstance(blocks, AsyncGenerator):
            await blocks.aclose()


def compare(payload: Payload, published: Batch, app: Stream, otherwise: str = "") -> None:
    """Refuse a payload whose Batch would have other entries than the published one.

    Arguments:
        payload: what the node gave.
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
        f"publish ({(_shown('not ours', missing) + _shown('only ours', added)).rstrip('; ')}): use the options that it "
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


def _shown(what: str, entries: tuple[str, ...]) -> str:
    if not entries:
        return ""
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return f"{what}: {', '.join(entries[:_SHOWN])}{more}; "
