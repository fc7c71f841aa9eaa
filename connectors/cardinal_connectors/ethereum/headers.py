"""What the feed needs of a block's header. Apart from where it comes from: worker processes need it, and no node."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.rpc.header import write_header
from cardinal.apps.evm.rpc.structures import RpcBlock, RpcHeader, hexadecimal
from cardinal.errors import ApplicationError, NodeAnswerError

Hash: TypeAlias = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{64}$")]
Quantity: TypeAlias = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]+$", max_length=66)]


class Header(msgspec.Struct, frozen=True, rename="camel"):
    """What the feed needs of a header; texts as JSON-RPC has them."""

    number: Quantity
    hash: Hash
    parent_hash: Hash
    difficulty: Quantity = "0x0"
    timestamp: Quantity = "0x0"
    total_difficulty: Quantity | None = None

    @property
    def height(self) -> int:
        """The block number."""
        return int(self.number, 16)

    @property
    def id(self) -> bytes:
        """The block hash, 32 bytes."""
        return bytes.fromhex(self.hash[2:])

    @property
    def parent(self) -> bytes:
        """The parent's hash, 32 bytes."""
        return bytes.fromhex(self.parent_hash[2:])


def header_of(block: RpcBlock) -> Header:
    """A block's header; NodeAnswerError where its number, hashes or difficulties are none."""
    texts = {
        "number": block.number,
        "hash": block.hash,
        "parentHash": block.parent_hash,
        "difficulty": block.difficulty,
        "timestamp": block.timestamp,
        "totalDifficulty": block.total_difficulty,
    }
    try:
        return msgspec.convert(texts, Header)
    except msgspec.ValidationError as other:
        raise NodeAnswerError(f"The node gave an object that is no block: {other}.") from other


def is_named(header: RpcHeader, block_hash: bytes) -> bool:
    """Whether a header, also that of a whole block, is the one with this hash (32 bytes)."""
    try:
        with hexadecimal("a header"):
            return keccak(write_header(header)) == block_hash
    except ApplicationError:
        return False
