"""Encoding of a node's block: every hashed or published part, once, for checks and payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cardinal.apps.evm.chains import Chain

from .header import write_header, write_withdrawals
from .receipts import write_blooms, write_logs
from .state_sync import without_derived, write_transactions
from .structures import JsonObject, RpcBlock, RpcHeader, RpcReceipt, hexadecimal, raw, read
from .transactions import with_creations


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Block with its encoded parts.

    Attributes:
        number: block number.
        hash: 32 bytes, as claimed by the node.
        rpc: block as JSON-RPC structure.
        receipts: receipts as JSON-RPC structures, in order.
        header: RLP of the header.
        transactions: canonical bytes, in order.
        blooms: RLP of each receipt's bloom.
        bloom: union of the blooms as a number; None where one does not match its receipt's logs.
        logs: RLP of the logs of each receipt.
        withdrawals: RLP of each; None where the block has no such list.
        uncles: RLP of the uncles' headers.
        derived: receipt of the state-sync transaction that the node added (:mod:`.state_sync`), in none of the above.
        derived_logs: RLP of its logs.
        without_withdrawals: the chain has no withdrawals, and the header's root of them may cover something else.

    """

    number: int
    hash: bytes
    rpc: RpcBlock
    receipts: list[RpcReceipt]
    header: bytes
    transactions: list[bytes]
    blooms: list[bytes]
    bloom: int | None
    logs: list[list[bytes]]
    withdrawals: list[bytes] | None
    uncles: list[bytes]
    derived: RpcReceipt | None = None
    derived_logs: Sequence[bytes] = ()
    without_withdrawals: bool = False


def encode_block(
    block: RpcBlock | JsonObject,
    receipts: Sequence[RpcReceipt | JsonObject],
    uncles: Sequence[RpcHeader | JsonObject] = (),
    *,
    chain: Chain | None = None,
) -> EncodedBlock:
    """Encode every part of a block.

    Arguments:
        block: with full transactions.
        receipts: its receipts, in order.
        uncles: headers of its uncles, in order.
        chain: parameters of its chain; None for a chain without particularities.

    Raises:
        ApplicationError: a field is missing or has a wrong type.

    """
    rpc = read(RpcBlock, block)
    receipt_list = [read(RpcReceipt, receipt) for receipt in receipts]
    ommers = [read(RpcHeader, uncle) for uncle in uncles]
    with hexadecimal("the block"):
        rpc, receipt_list, derived = without_derived(with_creations(rpc), receipt_list, chain)
        blooms, bloom = write_blooms(receipt_list)
        return EncodedBlock(
            int(rpc.number, 16),
            raw(rpc.hash),
            rpc,
            receipt_list,
            write_header(rpc),
            write_transactions(rpc, chain),
            blooms,
            bloom,
            write_logs(receipt_list),
            None if rpc.withdrawals is None else write_withdrawals(rpc.withdrawals),
            [write_header(uncle) for uncle in ommers],
            derived,
            () if derived is None else write_logs((derived,))[0],
            chain is not None and not chain.withdrawals,
        )
