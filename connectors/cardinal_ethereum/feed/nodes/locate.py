"""Location of a block by its number, its hash, or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from cardinal.errors import ConfigurationError, NodeAnswerError
from cardinal_ethereum.feed.chain.blocks import BlockHeader
from cardinal_ethereum.feed.chain.fetch import BlockFetcher
from cardinal_ethereum.times import microseconds

_HASH: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{64})")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def locate(fetcher: BlockFetcher, text: str) -> int:
    """Number of a block on the node's chain.

    Arguments:
        fetcher: fetches headers.
        text: a number; a hash of 64 hexadecimal digits, with or without 0x; or a time in ISO 8601, by default in UTC,
            for the first block not before it.

    Raises:
        ConfigurationError: the text is none of the three.
        NodeAnswerError: the node's chain has no such block.

    """
    if text.isdecimal():
        return int(text)
    if named := _HASH.fullmatch(text):
        return await _of_hash(fetcher, bytes.fromhex(named[1]))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"a block is named by its number, its hash or a time such as 2022-01-13T22:00:00Z, not by {text[:70]!r}",
            setting="start",
        ) from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return await _at(fetcher, since // timedelta(microseconds=1), text)


async def _of_hash(fetcher: BlockFetcher, block_hash: bytes) -> int:
    header = await fetcher.header_by_hash(block_hash)
    canonical = None if header is None else await fetcher.header(header.height)
    if header is None or canonical is None or canonical.id != block_hash:
        raise NodeAnswerError(f"the node's chain has no block 0x{block_hash.hex()}; it may have left the chain")
    return header.height


async def _at(fetcher: BlockFetcher, moment: int, text: str) -> int:
    """First block not before ``moment``, in microseconds since 1970, by bisection, since times rise with numbers."""
    head = await fetcher.header("latest")
    if head is None or _time(head) < moment:
        raise NodeAnswerError(f"the node's chain has no block at or after {text} yet")
    low, high = 0, head.height
    while low < high:
        middle = (low + high) // 2
        header = await fetcher.header(middle)
        if header is not None and _time(header) >= moment:
            high = middle
        else:  # a pruned node lacks the lowest blocks
            low = middle + 1
    return low


def _time(header: BlockHeader) -> float:
    time = microseconds(int(header.timestamp, 16))
    return inf if time is None else time
