"""RLP items as what a field asks for; anything else is refused, so that what decodes also encodes."""

from __future__ import annotations

from typing import Final

from cardinal.errors import ApplicationError

from . import codec as rlp

_WIDEST: Final = 32
_from_bytes: Final = int.from_bytes  # big-endian is what it takes where nothing is said
HASH: Final = 32
"""Bytes of a hash."""
ADDRESS: Final = 20
"""Bytes of an address."""


def number(item: rlp.Decoded) -> int:
    """A number of up to 256 bits, without leading zeros."""
    if isinstance(item, bytes) and len(item) <= _WIDEST and item[:1] != b"\0":
        return _from_bytes(item)
    raise ApplicationError("a number was expected: up to 32 bytes, the first not zero")


def exactly(item: rlp.Decoded, size: int | None = None) -> bytes:
    """Bytes; so many of them, where a size is given."""
    if not isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"{'bytes' if size is None else f'{size} bytes'} were expected")
    return item


def items_of(item: rlp.Decoded, size: int | None = None) -> list[rlp.Decoded]:
    """The items of a list; so many of them, where a size is given."""
    if isinstance(item, bytes) or (size is not None and len(item) != size):
        raise ApplicationError(f"a list{'' if size is None else f' of {size} items'} was expected")
    return item


def hashes(item: rlp.Decoded) -> tuple[bytes, ...]:
    """A list of hashes."""
    return tuple([exactly(entry, HASH) for entry in items_of(item)])
