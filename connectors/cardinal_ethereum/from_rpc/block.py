"""Encoding of a node's block: every hashed or published part, once, for checks and payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from cardinal.errors import ApplicationError
from cardinal_ethereum.chains import Chain
from cardinal_ethereum.model.transaction_types import Family

from .faults import fault_of
from .header import write_header, write_withdrawals
from .receipts import write_blooms, write_logs
from .state_sync import without_derived, write_transactions
from .structures import UNREADABLE, JsonObject, RpcBlock, RpcHeader, RpcReceipt, raw, read
from .transactions import with_creations
from .unknown_fields import with_unknown_fields


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
        family: of the chain; None where it is unknown.
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
    family: Family | None = None


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
        ApplicationError: a field is missing or malformed; the error names the block, the part and the field.

    """
    rpc, receipt_list, ommers = _read(block, receipts, uncles)
    with _named(rpc, receipt_list, ommers, chain):
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
            None if chain is None else chain.family,
        )


def checked_form(block: EncodedBlock, chain: Chain | None) -> AbstractContextManager[None]:
    """Map conversion errors of the checks to an error that names the block, the part and the field."""
    return _named(block.rpc, block.receipts, (), chain)


def _read(
    block: RpcBlock | JsonObject,
    receipts: Sequence[RpcReceipt | JsonObject],
    uncles: Sequence[RpcHeader | JsonObject],
) -> tuple[RpcBlock, list[RpcReceipt], list[RpcHeader]]:
    """The parts as structures."""
    try:
        if isinstance(receipts, Sequence) and isinstance(uncles, Sequence):
            rpc = read(RpcBlock, block)
            return (
                rpc if isinstance(block, RpcBlock) else with_unknown_fields(rpc, block),
                [read(RpcReceipt, receipt) for receipt in receipts],
                [read(RpcHeader, uncle) for uncle in uncles],
            )
    except ApplicationError as error:
        raise ApplicationError(f"{named(block)} cannot be verified: {error}", path=error.path) from None
    raise ApplicationError(f"{named(block)} cannot be verified: its receipts or uncles are no list", path="receipts")


def named(block: RpcBlock | JsonObject) -> str:
    """Number and hash of a block as claimed, for messages; texts that are neither are cut."""
    texts = (block.number, block.hash) if isinstance(block, RpcBlock) else (block.get("number"), block.get("hash"))
    try:
        number = str(int(texts[0] or "", 16))
    except (TypeError, ValueError):
        number = f"of number {str(texts[0])[:_SHOWN]!r}"
    return f"block {number} ({str(texts[1])[:_HASH_TEXT]})"


@contextmanager
def _named(
    block: RpcBlock, receipts: Sequence[RpcReceipt], uncles: Sequence[RpcHeader], chain: Chain | None
) -> Iterator[None]:
    """Map every failure to an error that names the block, the part and the field."""
    try:
        yield
    except (ApplicationError, *UNREADABLE) as error:
        found = fault_of(block, receipts, uncles, chain)
        own = (str(error), error.path) if isinstance(error, ApplicationError) else ("a field cannot be read", None)
        reason, path = found or own
        raise ApplicationError(f"{named(block)} cannot be verified: {reason}", path=path) from None


_SHOWN: Final = 20
_HASH_TEXT: Final = 66
