"""Polygon's state-sync transaction: what nodes add to a block's transactions and receipts, under no root.

A block that takes deposits from the chain below has, until the fork Madhugiri, one more transaction in JSON-RPC than
in its body. Its hash is derived from the block's number and hash. It is taken off before the roots are computed;
its receipt's bloom and its logs are published below paths of their own, as the reference's plugin for this chain does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from cardinal.errors import ApplicationError

from .keccak import keccak
from .rpc import RpcBlock, RpcReceipt, raw

_PREFIX: Final = b"matic-bor-receipt-"


def derived_hash(number: int, block_hash: bytes) -> bytes:
    """The hash (32 bytes) of a block's state-sync transaction (maticjs, getStateSyncTxHash)."""
    return keccak(_PREFIX + number.to_bytes(8, "big") + block_hash)


def without_derived(
    block: RpcBlock, receipts: Sequence[RpcReceipt]
) -> tuple[RpcBlock, list[RpcReceipt], RpcReceipt | None]:
    """The block and its receipts without what its node added, and the receipt that was added; None without such.

    Raises:
        ApplicationError: the transaction was added without a receipt, or with several.

    """
    last = block.transactions[-1] if block.transactions else None
    if last is None or raw(last.hash) != derived_hash(int(block.number, 16), raw(block.hash)):
        return block, list(receipts), None
    added = [receipt for receipt in receipts if receipt.transaction_hash == last.hash]
    if len(added) != 1:
        raise ApplicationError(f"{len(added)} receipts for the block's state-sync transaction, not 1", path="receipts")
    kept = [receipt for receipt in receipts if receipt.transaction_hash != last.hash]
    return structs.replace(block, transactions=block.transactions[:-1]), kept, added[0]
