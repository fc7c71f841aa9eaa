"""Layout of a message's key: type byte, block hash, rest (``schemas/SPEC.md``, section 1).

The partition is chosen by the key, so that copies of one (block, key) from any number of producers are in one
partition.
"""

from __future__ import annotations

from typing import Final

from cardinal.protocols.streams.types import HASH_SIZE

HASH_END: Final = 1 + HASH_SIZE
"""A key's block hash is ``key[1:HASH_END]``; what follows depends on the type."""

ID_END: Final = HASH_END + HASH_SIZE
"""A sub batch message's id is ``key[HASH_END:ID_END]``."""


def block_key(kind: int, block_hash: bytes, rest: bytes = b"") -> bytes:
    """The key of a message of ``kind`` for the block with this hash (32 bytes)."""
    return bytes((kind,)) + block_hash + rest
