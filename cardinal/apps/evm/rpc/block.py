"""A node's block with every part that is hashed or published already written: checks and payload share the bytes."""

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
    """See :func:`encode_block`.

    Attributes:
        number: block number.
        hash: 32 bytes, as the node said.
        shown: the block as JSON-RPC shows it, and its receipts in order.
        header: the header's RLP.
        transactions: canonical bytes, in order.
        blooms: the RLP of every receipt's bloom.
        bloom: what those are together, as a number; None where one is not that of its receipt's logs.
        logs: for every receipt the RLP of its logs.
        withdrawals: the RLP of each; None where the block has no such list.
        uncles: the RLP of the uncles' headers.
        derived: the receipt of a transaction that the node added to the block (:mod:`.state_sync`), in none of the
            above.
        derived_logs: the RLP of its logs.
        without_withdrawals: its chain has none, and the header's root of them may be of something else.

    """

    number: int
    hash: bytes
    shown: RpcBlock
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
    """Write down every part of a block with full transactions, its receipts and its uncles' headers.

    Arguments:
        block: as JSON-RPC shows it.
        receipts: the same, in order.
        uncles: the headers of its uncles, in order.
        chain: what is known of its chain; None means that a block shows nothing but its own parts.

    Raises:
        ApplicationError: a field is missing or no value of its kind.

    """
    shown = read(RpcBlock, block)
    answered = [read(RpcReceipt, receipt) for receipt in receipts]
    ommers = [read(RpcHeader, uncle) for uncle in uncles]
    with hexadecimal("the block"):
        shown, answered, derived = without_derived(with_creations(shown), answered, chain)
        blooms, bloom = write_blooms(answered)
        return EncodedBlock(
            int(shown.number, 16),
            raw(shown.hash),
            shown,
            answered,
            write_header(shown),
            write_transactions(shown, chain),
            blooms,
            bloom,
            write_logs(answered),
            None if shown.withdrawals is None else write_withdrawals(shown.withdrawals),
            [write_header(uncle) for uncle in ommers],
            derived,
            () if derived is None else write_logs((derived,))[0],
            chain is not None and not chain.withdrawals,
        )
