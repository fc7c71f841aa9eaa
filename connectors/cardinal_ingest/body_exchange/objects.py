"""Blocks as objects of diffusion: an object is the body of a block, its id is the block's number and hash.

Where headers carry no hash, the hash of an id is the number's, as on the topics.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cardinal_ingest.items import block_hash
from cardinal_ingest.protocols.diffusion import ObjectId
from cardinal_ingest.protocols.publish import BlockId, Header, read_item

_FRAME: Final = 0x0A
"""First byte of a framed item: a length-delimited field 1."""
_MOST_LENGTH_BYTES: Final = 5
_MORE: Final = 0x80


def object_of(block: BlockId) -> ObjectId:
    """The id of a block's body."""
    return ObjectId(block.number, block.hash or block_hash(block.number))


class Named(NamedTuple):
    """The block that a body is of, by its own words, and its parent."""

    block: BlockId
    parent: BlockId


class Objects:
    """Reader of objects.

    Arguments:
        forks: whether headers carry hashes.

    """

    def __init__(self, *, forks: bool) -> None:
        self._forks = forks

    def block_of(self, one: ObjectId) -> BlockId:
        """The block of an id."""
        return BlockId(one.number, one.hash if self._forks else b"")

    def identify(self, body: bytes) -> ObjectId | None:
        """The id of a body by its header; None where it has none. Only the header is read."""
        named = self.read(body)
        return None if named is None else object_of(named.block)

    def read(self, body: bytes) -> Named | None:
        """The block and parent that a body's header names; None where it has none."""
        header = read_item(_first_item(body))
        if not isinstance(header, Header):
            return None
        if not self._forks:
            return Named(BlockId(header.number), BlockId(header.number - 1))
        hashes = {len(header.hash), len(header.parent)}
        if hashes != {32}:
            return None
        return Named(BlockId(header.number, header.hash), BlockId(header.number - 1, header.parent))


def _first_item(body: bytes) -> bytes:
    """The first item of a body; empty where there is none."""
    length = shift = 0
    for at in range(1, 1 + _MOST_LENGTH_BYTES):
        if body[0:1] != bytes((_FRAME,)) or at >= len(body):
            break
        length |= (body[at] & ~_MORE) << shift
        shift += 7
        if body[at] < _MORE:
            return body[at + 1 : at + 1 + length]
    return b""
