"""Polygon's state-sync transaction, which applies messages of the parent chain.

Before the fork Madhugiri a block has one more transaction in JSON-RPC than in its body. Its hash is derived from the
block's number and hash. It is removed before the roots are computed; its receipt's bloom and its logs are published
under paths of their own, as by the reference's plugin for this chain.

From Madhugiri on (PIP-74) it is the last transaction of the body, of type 127: its bytes are the type and the RLP of
[[id, contract, data, hash on the parent chain], ...], and hash, receipt, roots and bloom are like those of other
transactions. Nodes do not return that list in a block, only on request (``eth_getRawTransactionByHash``): the caller
adds the bytes to the transaction as ``raw``. On a chain that has no state sync the type is unknown.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from cardinal.errors import ApplicationError
from cardinal_ethereum.chains import Chain
from cardinal_ethereum.model.transaction import STATE_SYNC, state_sync_hash

from .structures import RpcBlock, RpcReceipt, RpcTransaction, raw
from .transactions import write_all

_ZERO_ADDRESS: Final = "0x" + bytes(20).hex()


def without_derived(
    block: RpcBlock, receipts: list[RpcReceipt], chain: Chain | None
) -> tuple[RpcBlock, list[RpcReceipt], RpcReceipt | None]:
    """Remove the state-sync transaction that a node added to a block.

    Returns:
        The block, its receipts, and the removed receipt; None where the node added nothing.

    Raises:
        ApplicationError: the transaction has no receipt, or several.

    """
    if chain is None or not chain.state_sync or not block.transactions:
        return block, receipts, None
    at, last = int(block.number, 16), block.transactions[-1]
    if chain.state_sync_in_body is not None and at >= chain.state_sync_in_body:
        return _creating_nothing(block), receipts, None
    if raw(last.hash) != state_sync_hash(at, raw(block.hash)):
        return block, receipts, None
    added = [receipt for receipt in receipts if receipt.transaction_hash == last.hash]
    if len(added) != 1:
        raise ApplicationError(f"{len(added)} receipts for the block's state-sync transaction, not 1", path="receipts")
    kept = [receipt for receipt in receipts if receipt.transaction_hash != last.hash]
    return structs.replace(block, transactions=block.transactions[:-1]), kept, added[0]


def _creating_nothing(block: RpcBlock) -> RpcBlock:
    """The block with a state sync to address zero: its bytes have no receiver, and null would be a creation."""
    *others, last = block.transactions
    if last.to or not _is_state_sync(last):
        return block
    return structs.replace(block, transactions=[*others, structs.replace(last, to=_ZERO_ADDRESS)])


def write_transactions(block: RpcBlock, chain: Chain | None) -> list[bytes]:
    """Canonical bytes of a block's transactions, within :func:`.structures.hexadecimal`.

    Arguments:
        block: with full transactions.
        chain: parameters of its chain; None for an unknown chain.

    Raises:
        ApplicationError: a field is missing or invalid; a type is unknown and its bytes are missing; a state-sync
            transaction is not the last one, or comes too early.

    """
    transactions = block.transactions
    if chain is None:
        return write_all(transactions, None)
    if chain.state_sync:
        _check_place(block, chain)
    return write_all(transactions, chain.family)


def _check_place(block: RpcBlock, chain: Chain) -> None:
    """Refuse a state sync that is not the last transaction, or comes before the fork that added it."""
    at, first = int(block.number, 16), chain.state_sync_in_body
    for index, transaction in enumerate(block.transactions):
        if not _is_state_sync(transaction):
            continue
        if first is None or at < first:
            since = "" if first is None else f" before block {first}"
            raise ApplicationError(
                f"block {at} has a transaction of type {STATE_SYNC}, and {chain.name} has none{since}", path="type"
            )
        if index < len(block.transactions) - 1:
            raise ApplicationError("a state-sync transaction (type 127) is not the last of its block", path="type")


def _is_state_sync(rpc: RpcTransaction) -> bool:
    return rpc.type is not None and int(rpc.type, 16) == STATE_SYNC
