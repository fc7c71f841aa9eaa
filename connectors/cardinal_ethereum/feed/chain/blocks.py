"""Values of fetched blocks: header, block with receipts, evidence of state changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict

import msgspec

from cardinal.errors import ApplicationError, FeedError
from cardinal_ethereum.feed.rpc.faults import MalformedResultError
from cardinal_ethereum.from_rpc.header import write_header
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcHeader, RpcReceipt, hexadecimal
from cardinal_ethereum.keccak import keccak

Hash: TypeAlias = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{64}$")]
Quantity: TypeAlias = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]+$", max_length=66)]


class BlockHeader(msgspec.Struct, frozen=True, rename="camel"):
    """Header fields that the feed needs, as JSON-RPC texts."""

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


class SlotProof(TypedDict, total=False):
    """Proof of a storage slot (EIP-1186)."""

    proof: list[str]


class AccountProof(TypedDict, total=False):
    """Proof of an account (EIP-1186)."""

    accountProof: list[str]
    storageProof: list[SlotProof] | None


class Evidence(NamedTuple):
    """Evidence of a block's state changes, unverified.

    Attributes:
        traces: traces of its transactions.
        parent: header of its parent.
        proofs: proofs of what it may have changed, before and after it.
        size: size of the responses in bytes.

    """

    traces: list[Any]
    parent: RpcHeader
    proofs: list[AccountProof]
    size: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Block as fetched from a node, unverified.

    ``size`` is the size of the responses in bytes, ``text`` the JSON of ``block``. ``evidence`` is set if it was
    requested together with the block.
    """

    header: BlockHeader
    block: RpcBlock
    receipts: list[RpcReceipt]
    uncles: list[RpcHeader]
    size: int
    evidence: Evidence | None = None
    text: msgspec.Raw | bytes = b"{}"


class ChainMovedError(FeedError):
    """The node's chain changed during a read. Never leaves the feed, which re-reads the head."""

    retriable = True


def header_of(block: RpcBlock) -> BlockHeader:
    """Header of a block; MalformedResultError where its number, hashes or difficulties are malformed."""
    texts = {
        "number": block.number,
        "hash": block.hash,
        "parentHash": block.parent_hash,
        "difficulty": block.difficulty,
        "timestamp": block.timestamp,
        "totalDifficulty": block.total_difficulty,
    }
    try:
        return msgspec.convert(texts, BlockHeader)
    except msgspec.ValidationError as other:
        raise MalformedResultError(f"the node returned an object that is no block: {other}") from other


def is_named(header: RpcHeader, block_hash: bytes) -> bool:
    """True if the hash of a header, or of a block's header, is ``block_hash`` (32 bytes)."""
    try:
        with hexadecimal("a header"):
            return keccak(write_header(header)) == block_hash
    except ApplicationError:
        return False
