"""Partitioner: the same for every transport and for the Go implementation's topics."""

from __future__ import annotations

from typing import Final

_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_SIGN: Final = 0x80000000


def fnv1a_partition(key: bytes, partitions: int) -> int:
    """The partition of a key: FNV-1a of 32 bits, taken as a signed number, made positive, modulo.

    So copies of one key from any number of producers meet in one partition.
    """
    value = _OFFSET
    for byte in key:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return ((1 << 32) - value if value & _SIGN else value) % partitions
