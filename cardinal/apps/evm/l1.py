"""What a block of the OP Stack says of the chain below it: the call of its first transaction.

Every such block begins with a deposit by which the contract L1Block is told of a block below: its number, hash, time
and prices, and the scalars by which transactions pay for it. Nothing else in a block says this, and the roots cover it.

The call is setL1BlockValues of one of four forks: Bedrock with words of the ABI, the others packed (OP Stack
specification, L1 attributes; Ecotone, Isthmus and Jovian).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from cardinal.errors import ApplicationError

from .keccak import keccak
from .values import Block, Transaction

DEPOSITOR: Final = bytes.fromhex("deaddeaddeaddeaddeaddeaddeaddeaddead0001")
"""Who tells it."""
L1_BLOCK: Final = bytes.fromhex("4200000000000000000000000000000000000015")
"""The contract that is told."""

_DOMAIN: Final = (1).to_bytes(32, "big")
_ECOTONE: Final = (
    *(("base_fee_scalar", 4), ("blob_base_fee_scalar", 4), ("sequence_number", 8), ("timestamp", 8), ("number", 8)),
    *(("base_fee", 32), ("blob_base_fee", 32), ("hash", 32), ("batcher_hash", 32)),
)
_ISTHMUS: Final = (*_ECOTONE, ("operator_fee_scalar", 4), ("operator_fee_constant", 8))
_CALLS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = MappingProxyType(
    {
        "015d8eb9": tuple(
            (name, 32)
            for name in (
                *("number", "timestamp", "base_fee", "hash", "sequence_number", "batcher_hash"),
                *("fee_overhead", "fee_scalar"),
            )
        ),
        "440a5e20": _ECOTONE,
        "098999be": _ISTHMUS,
        "3db6be2b": (*_ISTHMUS, ("da_footprint_gas_scalar", 2)),
    }
)
"""For every selector the fields of the call, in order, and their bytes."""
_HASHES: Final = frozenset({"hash", "batcher_hash"})
_LONGS: Final = frozenset({"number", "timestamp", "sequence_number"})


@dataclass(frozen=True, slots=True)
class L1Attributes:
    """What a block is told of the chain below; None where its fork does not tell it.

    Attributes:
        number: of the block below, as ``hash`` (32 bytes), ``timestamp`` (seconds since 1970) and ``base_fee`` (wei).
        sequence_number: how many blocks before this one were told of the same block below.
        batcher_hash: who may write batches below: an address in 32 bytes.
        fee_overhead: gas, until Ecotone, as ``fee_scalar`` (millionths).
        blob_base_fee: wei, from Ecotone on, as the scalars (millionths) of both base fees.
        operator_fee_scalar: from Isthmus on (millionths), as ``operator_fee_constant`` (wei).
        da_footprint_gas_scalar: from Jovian on.

    """

    number: int
    timestamp: int
    base_fee: int
    hash: bytes
    sequence_number: int
    batcher_hash: bytes
    fee_overhead: int | None = None
    fee_scalar: int | None = None
    base_fee_scalar: int | None = None
    blob_base_fee_scalar: int | None = None
    blob_base_fee: int | None = None
    operator_fee_scalar: int | None = None
    operator_fee_constant: int | None = None
    da_footprint_gas_scalar: int | None = None


def l1_attributes(block: Block) -> L1Attributes | None:
    """What a block is told of the chain below; None where it has no such transaction, or none are there.

    Raises:
        ApplicationError: the call is none that is known, or not the one that its source hash names.

    """
    first = next((entry for entry in block.transactions if entry.index == 0), None)
    if first is None or first.deposit is None or (first.deposit.sender, first.to) != (DEPOSITOR, L1_BLOCK):
        return None
    told = _told(block, first)
    of_block = keccak(told.hash + told.sequence_number.to_bytes(32, "big"))
    if first.deposit.source_hash != keccak(_DOMAIN + of_block):
        raise _refused(block, "is not the one that its source hash names")
    return told


def _told(block: Block, transaction: Transaction) -> L1Attributes:
    data = transaction.input
    fields = _CALLS.get(data[:4].hex())
    if fields is None:
        raise _refused(block, f"has the selector 0x{data[:4].hex()}, which is not known to this release")
    if len(data) != 4 + sum(size for _, size in fields):
        raise _refused(block, f"has {len(data)} bytes, which is not what its selector takes")
    found: dict[str, int | bytes] = {}
    at = 4
    for name, size in fields:
        part = data[at : at + size]
        at += size
        found[name] = part if name in _HASHES else int.from_bytes(part, "big")
        if name in _LONGS and any(part[:-8]):
            raise _refused(block, f"has a {name} of more than 64 bits")
    return L1Attributes(**found)  # type: ignore[arg-type]  # names and kinds are those of the tables above


def _refused(block: Block, why: str) -> ApplicationError:
    path = f"c/{block.chain_id or 0:x}/b/{block.hash.hex()}/t/0"
    return ApplicationError(f"block {block.number}: the call that tells of the chain below {why}", path=path)
