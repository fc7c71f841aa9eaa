"""Whether a block from a node agrees with itself: the hash that names it, and the roots that its header holds.

Every check recomputes from the parts; nothing that the node says about a part is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from cardinal.errors import ApplicationError, IntegrityError

from . import rlp
from .header import encode_header, encode_withdrawal
from .jsonrpc import JsonObject, data, number
from .keccak import keccak
from .receipts import encode_receipt, logs_bloom
from .transactions import encode_transaction
from .trie import ordered_root


class _Parts(NamedTuple):
    block: JsonObject
    receipts: Sequence[JsonObject]
    transactions: list[bytes]
    uncles: Sequence[JsonObject]


def _hash(parts: _Parts) -> bool:
    return keccak(encode_header(parts.block)) == data(parts.block, "hash")


def _transaction_hashes(parts: _Parts) -> bool:
    claimed = [data(transaction, "hash") for transaction in parts.block["transactions"]]
    return claimed == [keccak(raw) for raw in parts.transactions]


def _transactions_root(parts: _Parts) -> bool:
    return ordered_root(parts.transactions) == data(parts.block, "transactionsRoot")


def _receipts_match(parts: _Parts) -> bool:
    """One receipt a transaction, in order, and of this block."""
    claimed = [(data(receipt, "transactionHash"), data(receipt, "blockHash")) for receipt in parts.receipts]
    return claimed == [(keccak(raw), data(parts.block, "hash")) for raw in parts.transactions]


def _receipts_root(parts: _Parts) -> bool:
    return ordered_root([encode_receipt(receipt) for receipt in parts.receipts]) == data(parts.block, "receiptsRoot")


def _bloom(parts: _Parts) -> bool:
    blooms = [data(receipt, "logsBloom") == logs_bloom(receipt["logs"]) for receipt in parts.receipts]
    logs = [log for receipt in parts.receipts for log in receipt["logs"]]
    return all(blooms) and logs_bloom(logs) == data(parts.block, "logsBloom")


def _log_indexes(parts: _Parts) -> bool:
    indexes = [number(log, "logIndex") for receipt in parts.receipts for log in receipt["logs"]]
    return indexes == list(range(len(indexes)))


def _gas(parts: _Parts) -> bool:
    """Gas adds up over the receipts to the header's."""
    used = 0
    for receipt in parts.receipts:
        used += number(receipt, "gasUsed")
        if number(receipt, "cumulativeGasUsed") != used:
            return False
    return used == number(parts.block, "gasUsed")


def _withdrawals_root(parts: _Parts) -> bool:
    withdrawals = parts.block.get("withdrawals")
    if withdrawals is None:
        return parts.block.get("withdrawalsRoot") is None
    return ordered_root([encode_withdrawal(one) for one in withdrawals]) == data(parts.block, "withdrawalsRoot")


def _uncles_hash(parts: _Parts) -> bool:
    if len(parts.uncles) != len(parts.block.get("uncles") or ()):
        return False
    headers = [rlp.decode(encode_header(uncle)) for uncle in parts.uncles]
    return keccak(rlp.encode(headers)) == data(parts.block, "sha3Uncles")


CHECKS: Final[dict[str, Callable[[_Parts], bool]]] = {
    "hash": _hash,
    "transaction hashes": _transaction_hashes,
    "transactions root": _transactions_root,
    "receipts": _receipts_match,
    "receipts root": _receipts_root,
    "bloom": _bloom,
    "log indexes": _log_indexes,
    "gas": _gas,
    "withdrawals root": _withdrawals_root,
    "uncles hash": _uncles_hash,
}
"""Every check by name, in the order in which they run."""


def verify(
    block: JsonObject,
    receipts: Sequence[JsonObject],
    *,
    uncles: Sequence[JsonObject] = (),
    checks: Iterable[str] = tuple(CHECKS),
) -> None:
    """Check a block with full transactions, its receipts and its uncles' headers.

    Arguments:
        block: as JSON-RPC shows it.
        receipts: the same, in order.
        uncles: the headers of its uncles, in order.
        checks: names of :data:`CHECKS`; a chain that does not satisfy one leaves it out.

    Raises:
        IntegrityError: ``check`` names the first that failed, or ``form`` where a field is missing.

    """
    at = int(str(block.get("number") or "0x0"), 16)
    block_hash = bytes.fromhex(str(block.get("hash") or "0x")[2:])
    try:
        parts = _Parts(block, receipts, [encode_transaction(one) for one in block["transactions"]], uncles)
        failed = next((name for name in checks if not CHECKS[name](parts)), None)
    except (ApplicationError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"block {at} (0x{block_hash.hex()}) is not as JSON-RPC shows blocks: {error}",
            number=at,
            block_hash=block_hash,
            check="form",
        ) from error
    if failed is not None:
        raise IntegrityError(
            f"block {at} (0x{block_hash.hex()}) contradicts itself: {failed}; ask another node, or this one later",
            number=at,
            block_hash=block_hash,
            check=failed,
        )
