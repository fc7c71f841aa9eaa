"""Start of a new stream: from a position in the node's chain to a block number, refused before topics are created."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from cardinal.errors import ConfigurationError, NodeAnswerError
from cardinal.feeds import Bounded, HasHead, Locating

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed

Start: TypeAlias = "int | str | bytes | datetime | None"
"""Start of a new stream: a block number, ``earliest`` (the chain's first block), ``latest`` (the node's head), a
block hash (32 bytes, or hex text), or a time (the first block at or after it; ISO 8601 as text). None: ``latest``,
or ``earliest`` where the feed has no head to begin at, as one that plays a script or reads files."""


async def first_block(feed: BlockFeed, start: Start, stop: int | None) -> int | None:
    """The number of a new stream's first block; None: the feed's first.

    Arguments:
        feed: the node.
        start: the position.
        stop: the last block; None: the feed is followed for ever.

    Raises:
        ConfigurationError: there is no such block on the node's chain, or none from it to ``stop``; ``setting`` is
            ``start`` or ``stop``.
        FeedError: of the node.

    """
    first = await _number(feed, start)
    if isinstance(feed, Bounded):
        await feed.check_beginning(first, stop)
    if first is not None and stop is not None and stop < first:
        begins = "the node's head" if start in (None, "latest") else "the start"
        raise ConfigurationError(
            f"the stop, block {stop}, is below {begins}, block {first}: begin with a lower block", setting="start"
        )
    return first


async def _number(feed: BlockFeed, start: Start) -> int | None:
    if start == "earliest" or (start is None and not isinstance(feed, HasHead)):
        return None
    if isinstance(start, int) or (isinstance(start, str) and start.isascii() and start.isdecimal()):
        return await _checked(feed, int(start))
    if start is None or start == "latest":
        if not isinstance(feed, HasHead):
            raise ConfigurationError(
                "this feed has no head to begin at: start with `earliest` or a block number", setting="start"
            )
        return await feed.head()
    if not isinstance(feed, Locating):
        raise ConfigurationError(
            "this feed locates blocks by number only: start with `earliest` or a block number", setting="start"
        )
    text = f"0x{start.hex()}" if isinstance(start, bytes) else start if isinstance(start, str) else start.isoformat()
    try:
        return await feed.locate(text)
    except NodeAnswerError as absent:
        if absent.code is not None:
            raise
        raise ConfigurationError(f"the stream cannot start there: {absent}", setting="start") from None


async def _checked(feed: BlockFeed, first: int) -> int:
    """Refuse a number above the node's head, also one that lag or finality would not hold back."""
    if isinstance(feed, HasHead) and first > (head := max(await feed.head(), feed.report.head or 0)):
        raise ConfigurationError(
            f"the start, block {first}, is above the node's head, block {head}: begin with `latest` or a lower block",
            setting="start",
        )
    return first
