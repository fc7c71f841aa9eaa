"""Blocks whose totals are known, and the sum of difficulties between them and others.

Rules:

1. A sum is over headers of the node's chain, each linked to the one before, in either direction. At one end is the
   block with the known total, found by its hash.
2. A sum is at most ``sum_blocks`` headers long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from cardinal.errors import ConfigurationError, FeedError
from cardinal_ethereum.feed.chain.blocks import ChainMovedError

if TYPE_CHECKING:
    from cardinal_ethereum.feed.chain.blocks import BlockHeader
    from cardinal_ethereum.feed.chain.fetch import BlockFetcher

HEADERS_AT_ONCE: Final = 500
"""Headers in a batch of the sum."""


@dataclass(frozen=True, slots=True)
class KnownTotal:
    """Block with a known total difficulty, or with a weight that counts from the stream's origin.

    Attributes:
        number: its number.
        hash: its hash, 32 bytes.
        total: its total, its own difficulty included.

    """

    number: int
    hash: bytes
    total: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the origin of a stream, as :meth:`__str__` writes it.

        Raises:
            ConfigurationError: it has another form.

        """
        parts = text.split()
        try:
            number, block_hash, total = parts
            return cls(int(number), bytes.fromhex(block_hash.removeprefix("0x")), int(total))
        except ValueError:
            raise ConfigurationError(
                f"the stream's origin {text[:100]!r} is of another release: use that one, or start a new stream",
                setting="topic",
            ) from None

    def __str__(self) -> str:
        return f"{self.number} 0x{self.hash.hex()} {self.total}"


class OutOfReachError(FeedError):
    """The block with the known total is not on the node's chain, or the node lacks headers in between."""


async def parent_total(fetcher: BlockFetcher, known: KnownTotal, header: BlockHeader) -> int:
    """Total of a block's parent, from a known total below or above it.

    Raises:
        OutOfReachError: the node's chain does not have the known block, or the node lacks headers in between.
        ChainMovedError: the node's chain changed meanwhile.

    """
    if known.number < header.height:
        difficulty, first, last = await _summed(fetcher, known.number + 1, header.height - 1)
        below = header.parent if first is None else first.parent
        if below != known.hash:
            raise _absent(known)
        if last is not None and last.id != header.parent:
            raise _moved()
        return known.total + difficulty
    difficulty, first, last = await _summed(fetcher, header.height, known.number)
    if last is None or last.id != known.hash:
        raise _absent(known)
    if first is None or first.parent != header.parent:
        raise _moved()
    return known.total - difficulty


async def _summed(fetcher: BlockFetcher, first: int, last: int) -> tuple[int, BlockHeader | None, BlockHeader | None]:
    """Sum of the difficulties of these blocks, with the lowest and the highest of them; None where there are none."""
    total, lowest, highest = 0, None, None
    for begin in range(first, last + 1, HEADERS_AT_ONCE):
        for following in await fetcher.headers(range(begin, min(begin + HEADERS_AT_ONCE, last + 1))):
            if following is None:
                raise OutOfReachError(f"the node lacks headers of the blocks from {first} to {last}")
            if highest is not None and following.parent != highest.id:
                raise _moved()
            lowest = lowest or following
            total, highest = total + int(following.difficulty, 16), following
    return total, lowest, highest


def _moved() -> ChainMovedError:
    return ChainMovedError("the node's chain changed during the sum of its difficulties")


def _absent(known: KnownTotal) -> OutOfReachError:
    return OutOfReachError(f"the node's chain does not have block {known.number} (0x{known.hash.hex()})")
