"""From a node's head down to what was given already: by parent hash, or by bisection where the way is long.

Rules:

1. A head is a hint. What counts is the way from it, hash by hash, to a block that was given (facts on nodes, rule 1).
2. Blocks are fetched by hash, with their content: a later look may find the orphan gone (rules 2 and 5).
3. A hash that the node no longer has ends the walk with :class:`ChainMovedError`: look at the head again.
4. A chain that has none of the blocks that are remembered is refused, never followed from scratch. That it has none
   is no matter of a node's bare word: a number is read from a header that has its hash, and ``null`` below the head
   tells nothing, as a node says it that is not in step with the one that told the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import FeedError, ReorgTooDeepError
from cardinal.protocols.streams.types import BlockRef

from .headers import is_named

if TYPE_CHECKING:
    from .fetch import BlockFetcher, Fetched, Header
    from .known import KnownBlocks


class ChainMovedError(FeedError):
    """The node's chain changed while it was read. Never leaves the feed: it looks at the head again."""

    retriable = True


async def walk_back(fetcher: BlockFetcher, known: KnownBlocks, head: Header, *, limit: int) -> list[Fetched] | None:
    """The blocks between what is known and a head.

    Arguments:
        fetcher: where blocks come from.
        known: not empty.
        head: the node's head; it may be known, lower than what is known, or on another branch.
        limit: blocks after which the walk is given up.

    Returns:
        Blocks, parents first, the first of them a child of a known block; None where there are more than ``limit``.

    Raises:
        ChainMovedError: the node lacks a block on the way.
        ReorgTooDeepError: the way passes below everything that is known.

    """
    path: list[Fetched] = []
    floor = known.oldest().number
    wanted = head.id
    while wanted not in known:
        if len(path) == limit:
            return None
        fetched = await fetcher.by_hash(wanted)
        if fetched is None or fetched.header.id != wanted:
            raise ChainMovedError(f"The node does not have block 0x{wanted.hex()} (any more, or yet).")
        path.append(fetched)
        if fetched.header.height <= floor:
            if not is_named(fetched.block, wanted):
                raise ChainMovedError(f"The node gave something else as block 0x{wanted.hex()}.")
            raise too_deep(known)
        wanted = fetched.header.parent
    path.reverse()
    return path


async def common_block(fetcher: BlockFetcher, known: KnownBlocks, head: Header) -> BlockRef:
    """The highest known block that the node's chain has.

    What is known is closed under parents, and so is the node's chain: below the block that is looked for every height
    agrees, above it none does. So it is bisected, after a look at the highest, which mostly agrees.

    Arguments:
        fetcher: the node.
        known: not empty.
        head: the node's head; nothing above it is asked for.

    Raises:
        ReorgTooDeepError: the node's chain has none of them.
        ChainMovedError: the node lacks blocks below its head.

    """
    numbers = [number for number in known.numbers() if number <= head.height]
    lacking: int | None = None
    found: BlockRef | None = None
    low, high = 0, len(numbers)
    probe = high - 1
    while low < high:
        header = await fetcher.header(numbers[probe])
        if header is not None and header.id in known:
            found = BlockRef(header.height, header.id)
            low = probe + 1
        else:
            high = probe
            lacking = numbers[probe] if header is None else lacking
        probe = (low + high) // 2
    if found is None:
        if lacking is not None:
            raise ChainMovedError(f"The node does not have block {lacking}, and has the head {head.height}.")
        raise too_deep(known)
    return found


def too_deep(known: KnownBlocks) -> ReorgTooDeepError:
    """The sentence for a chain that has nothing of what is known."""
    oldest = known.oldest()
    return ReorgTooDeepError(
        f"The node's chain has none of the blocks that are published or remembered, down to {oldest.number} "
        f"(0x{oldest.hash.hex()}): use a node of the chain that is streamed, or start a new stream.",
        number=oldest.number,
        block_hash=oldest.hash,
    )
