"""Ancestry of a node's head down to a delivered block: by parent hash, or by bisection for a long range.

Rules:

1. A head is a hint. Only its chain of parent hashes down to a delivered block counts
   (``connectors/cardinal_ethereum/docs/nodes.md``, rule 1).
2. Blocks are fetched by hash, with their content: the node may drop an orphan at any time (rules 2 and 5 there).
3. If the node no longer has a hash, :class:`ChainMovedError` is raised, and the feed re-reads the head.
4. A chain without any recent block is refused, never followed from scratch. This needs more than a node's claim: a
   number counts only from a header with the matching hash, and ``null`` below the head counts for nothing, since
   another node behind the same gateway may have returned the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ReorgTooDeepError
from cardinal.protocols.streams.types import BlockRef

from .blocks import BlockHeader, ChainMovedError, Fetched, is_named

if TYPE_CHECKING:
    from .fetch import BlockFetcher
    from .recent_blocks import RecentBlocks


async def walk_back(
    fetcher: BlockFetcher, recent: RecentBlocks, head: BlockHeader, *, limit: int
) -> list[Fetched] | None:
    """Fetch the blocks between the recent blocks and a head.

    Arguments:
        fetcher: fetches the blocks.
        recent: recent blocks, not empty.
        head: the node's head; may be recent, below all recent blocks, or on another branch.
        limit: maximum number of blocks.

    Returns:
        Blocks, parents first, the first of them a child of a recent block; None if there are more than ``limit``.

    Raises:
        ChainMovedError: the node lacks one of the blocks.
        ReorgTooDeepError: the common ancestor is below all recent blocks.

    """
    path: list[Fetched] = []
    floor = recent.oldest().number
    wanted = head.id
    while wanted not in recent:
        if len(path) == limit:
            return None
        fetched = await fetcher.by_hash(wanted)
        if fetched is None or fetched.header.id != wanted:
            raise ChainMovedError(f"the node does not have block 0x{wanted.hex()} now: re-read the head")
        path.append(fetched)
        if fetched.header.height <= floor:
            if not is_named(fetched.block, wanted):
                raise ChainMovedError(f"the node returned another block than 0x{wanted.hex()}")
            raise too_deep(recent)
        wanted = fetched.header.parent
    path.reverse()
    return path


async def common_block(fetcher: BlockFetcher, recent: RecentBlocks, head: BlockHeader) -> BlockRef:
    """Find the highest recent block on the node's chain.

    Both sets are closed under parents: up to the result every height matches, above it none. So bisection finds it,
    after a test of the highest one, which usually matches.

    Arguments:
        fetcher: fetches headers.
        recent: recent blocks, not empty.
        head: the node's head; nothing above it is requested.

    Raises:
        ReorgTooDeepError: the node's chain has no recent block.
        ChainMovedError: the node lacks blocks below its head.

    """
    numbers = [number for number in recent.numbers() if number <= head.height]
    lacking: int | None = None
    highest: BlockRef | None = None
    low, high = 0, len(numbers)
    probe = high - 1
    while low < high:
        header = await fetcher.header(numbers[probe])
        if header is not None and header.id in recent:
            highest = BlockRef(header.height, header.id)
            low = probe + 1
        else:
            high = probe
            lacking = numbers[probe] if header is None else lacking
        probe = (low + high) // 2
    if highest is None:
        if lacking is not None:
            raise ChainMovedError(f"the node does not have block {lacking}, and has the head {head.height}")
        raise too_deep(recent)
    return highest


def too_deep(recent: RecentBlocks) -> ReorgTooDeepError:
    """Error for a chain without any recent block."""
    oldest = recent.oldest()
    return ReorgTooDeepError(
        f"the node's chain has none of the published or delivered blocks down to {oldest.number} "
        f"(0x{oldest.hash.hex()}): use a node of the chain that is streamed, or start a new stream (--topic)",
        number=oldest.number,
        block_hash=oldest.hash,
    )
