"""Polygon's state-sync transaction, by which a block takes what was sent from the chain below.

Before the fork Madhugiri such a block has one more transaction in JSON-RPC than in its body. Its hash is derived from
the block's number and hash. It is taken off before the roots are computed; its receipt's bloom and its logs are
published below paths of their own, as the reference's plugin for this chain does.

From Madhugiri on (PIP-74) it is the last transaction of the body, of type 127: its bytes are the type and the RLP of
[[id, contract, data, hash below], ...], its hash is theirs, its receipt is one like all others, and the roots and the
bloom cover all of it. Nodes show nothing of that list in a block, but give the bytes for the asking
(``eth_getRawTransactionByHash``): whoever asks adds them to the transaction as ``raw``. Other chains use the type for
something else: it is taken only where the chain's presets say so.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from cardinal.apps.evm.chains import Chain
from cardinal.apps.evm.model.transaction import STATE_SYNC, state_sync_hash
from cardinal.apps.evm.model.transaction_decoder import decode_transaction
from cardinal.errors import ApplicationError

from .structures import RpcBlock, RpcReceipt, RpcTransaction, raw
from .transactions import write_all

_NOBODY: Final = "0x" + bytes(20).hex()


def without_derived(
    block: RpcBlock, receipts: list[RpcReceipt], chain: Chain | None
) -> tuple[RpcBlock, list[RpcReceipt], RpcReceipt | None]:
    """The block and its receipts without what its node added, and the receipt that was added; None without such.

    Raises:
        ApplicationError: the transaction was added without a receipt, or with several.

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
    """The block with a state sync to address zero: its bytes do not say to whom, and null would be a creation."""
    *others, last = block.transactions
    if last.to or not _is_state_sync(last):
        return block
    return structs.replace(block, transactions=[*others, structs.replace(last, to=_NOBODY)])


def write_transactions(block: RpcBlock, chain: Chain | None) -> list[bytes]:
    """The canonical bytes of a block's transactions, within :func:`.structures.hexadecimal`.

    Arguments:
        block: with full transactions.
        chain: what is known of its chain; None means that it has no state-sync transactions.

    Raises:
        ApplicationError: a type is not known, or not on this chain at this block; a state-sync transaction stands
            elsewhere than at the end, or without its bytes.

    """
    transactions = block.transactions
    if chain is None or not transactions or not _is_state_sync(transactions[-1]):
        return write_all(transactions)
    first, at = chain.state_sync_in_body, int(block.number, 16)
    if first is None or at < first:
        since = "" if first is None else f" before block {first}"
        raise ApplicationError(
            f"block {at} has a transaction of type {STATE_SYNC}, and {chain.name} has none{since}", path="type"
        )
    return [*write_all(transactions[:-1]), _given(transactions[-1])]


def _is_state_sync(shown: RpcTransaction) -> bool:
    return shown.type is not None and int(shown.type, 16) == STATE_SYNC


def _given(shown: RpcTransaction) -> bytes:
    """The bytes that came with the transaction, where they are such a one's; the checks hold them to its hash."""
    if shown.raw is None:
        raise ApplicationError(
            "nodes do not show in a block what the bytes of a state-sync transaction (type 127) are made of: ask for "
            f"them with eth_getRawTransactionByHash({shown.hash}), and add them to the transaction as `raw`",
            path="raw",
        )
    written = raw(shown.raw)
    if written[:1] != bytes((STATE_SYNC,)):
        raise ApplicationError("the bytes of a state-sync transaction do not begin with its type, 127", path="raw")
    decode_transaction(written, 0)  # what nobody could decode again is not published
    return written
