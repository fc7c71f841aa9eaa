"""Typed access to RLP items; an item of another type is refused, so decoded values encode to the same bytes."""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError

from . import codec as rlp

_WIDEST: Final = 32
_from_bytes: Final = int.from_bytes  # big-endian is its default
HASH: Final = 32
"""Size of a hash in bytes."""
ADDRESS: Final = 20
"""Size of an address in bytes."""


def number(item: rlp.Decoded) -> int:
    """Number of up to 256 bits, without leading zeros."""
    if isinstance(item, bytes) and len(item) <= _WIDEST and item[:1] != b"\0":
        return _from_bytes(item)
    raise ApplicationError("a number was expected: up to 32 bytes, the first not zero")


def bytes_of(item: rlp.Decoded, size: int | None = None) -> bytes:
    """Bytes, of exactly ``size`` unless that is None."""
    if not isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"{'bytes' if size is None else f'{size} bytes'} were expected")
    return item


def list_of(item: rlp.Decoded, size: int | None = None) -> list[rlp.Decoded]:
    """Items of a list, exactly ``size`` of them unless that is None."""
    if isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"a list{'' if size is None else f' of {size} items'} was expected")
    return item


def hashes(item: rlp.Decoded) -> tuple[bytes, ...]:
    """List of hashes."""
    return tuple([bytes_of(entry, HASH) for entry in list_of(item)])
