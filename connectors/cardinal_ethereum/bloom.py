"""Bloom filter of 2,048 bits over the addresses and topics of logs (yellow paper, 4.4.1)."""

from __future__ import annotations

from typing import Final

from .keccak import keccak

BLOOM_SIZE: Final = 256
"""Bytes of a bloom."""

_BIT: Final = tuple(1 << place for place in range(8 * BLOOM_SIZE))


def bloom_bits(value: bytes) -> int:
    """The three bits of an address or a topic, in a number of 2,048 bits."""
    places = int.from_bytes(keccak(value)[:6], "big")
    return _BIT[places >> 32 & 2047] | _BIT[places >> 16 & 2047] | _BIT[places & 2047]
