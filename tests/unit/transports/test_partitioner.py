"""The partition of a key is that of the Go implementation: FNV-1a of 32 bits, signed, made positive, modulo."""

from __future__ import annotations

import pytest

from cardinal.transports.partitioner import fnv1a_partition

# Published values of the hash; from the second column on as Go's int32(hash) % n, its sign taken off.
PUBLISHED = {
    b"": 0x811C9DC5,
    b"a": 0xE40C292C,
    b"b": 0xE70C2DE5,
    b"foo": 0xA9F37ED7,
    b"foobar": 0xBF9CF968,
    b"hello": 0x4F9F2CAB,
}


@pytest.mark.parametrize(("key", "value"), PUBLISHED.items())
@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 12, 64, 1000])
def test_the_partition_is_that_of_the_reference(key: bytes, value: int, partitions: int) -> None:
    signed = value - (1 << 32) if value >= 1 << 31 else value
    remainder = abs(signed) % partitions * (1 if signed >= 0 else -1)  # Go's % keeps the sign of the first
    assert fnv1a_partition(key, partitions) == abs(remainder)


def test_a_modulus_beyond_all_hashes_shows_the_hash() -> None:
    assert fnv1a_partition(b"hello", 1 << 32) == PUBLISHED[b"hello"]
    assert fnv1a_partition(b"foobar", 1 << 32) == (1 << 32) - PUBLISHED[b"foobar"]
