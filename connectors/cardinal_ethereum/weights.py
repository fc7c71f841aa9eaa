"""Weights of blocks whose total difficulty is not on the chain, or that nobody knows."""

from __future__ import annotations

from typing import Final

MERGED_AT_GENESIS: Final = 1
"""Total difficulty of a merged chain without a preset (the reference's fall-back)."""

ORIGIN: Final = 1 << 193
"""Weight of the block from which the weights of a stream count whose total difficulties nobody knows.

Far above every total difficulty (Gnosis, the largest, stays below 2**153), so a weight shows by itself what it is, in
any copy of the stream and after any retention."""

_RELATIVE: Final = 1 << 192
"""Weights from here on are relative to an origin; below ``ORIGIN``, since a producer may begin below the origin."""


def is_relative(weight: int) -> bool:
    """True where a weight, or a total, counts from a stream's origin: the block's total difficulty is unknown."""
    return weight >= _RELATIVE
