"""Integrity checks of a node's block: its hash, and the roots in its header.

Every check recomputes from the parts and trusts none of the node's claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final

from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import rlp
from cardinal_ethereum.chains import CHECK_NAMES, Chain
from cardinal_ethereum.from_rpc.block import EncodedBlock, checked_form, encode_block
from cardinal_ethereum.from_rpc.receipts import (
    bloom_of,
    created_contract,
    creation_nonce,
    published_contract,
    write_receipt,
)
from cardinal_ethereum.from_rpc.structures import JsonObject, RpcBlock, raw
from cardinal_ethereum.from_rpc.transactions import bytes_advice, lacking_bytes
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import NO_CONTRACT
from cardinal_ethereum.model.transaction_decoder import decode_transaction

from . import gas
from .advice import advice
from .trie import ordered_root

_SHOWN: Final = 40
_SHOWN_NAMES: Final = 5
_PLACES: Final = tuple(map(hex, range(4096)))
"""Log indexes as nodes write them, of more logs than most blocks have."""


def _hash(block: EncodedBlock) -> bool:
    return keccak(block.header) == block.hash


def _transaction_hashes(block: EncodedBlock) -> bool:
    claimed = [transaction.hash for transaction in block.rpc.transactions]
    own = [f"0x{keccak(written).hex()}" for written in block.transactions]
    return claimed == own or [raw(text) for text in claimed] == [raw(text) for text in own]


def _transactions_root(block: EncodedBlock) -> bool:
    return ordered_root(block.transactions) == raw(block.rpc.transactions_root)


def _receipts_match(block: EncodedBlock) -> bool:
    """One receipt per transaction, in order, of this block; also for a transaction that the node added."""
    if block.derived is not None and raw(block.derived.block_hash or "") != block.hash:
        return False
    if len(block.receipts) != len(block.transactions):
        return False
    named = [transaction.hash for transaction in block.rpc.transactions]
    return _all_same([receipt.transaction_hash for receipt in block.receipts], named) and _all_same(
        [receipt.block_hash for receipt in block.receipts], [block.rpc.hash] * len(named)
    )


def _all_same(claimed: Sequence[str | None], wanted: Sequence[str]) -> bool:
    """Compare data texts one by one; nodes differ in case."""
    return claimed == wanted or [(text or "").lower() for text in claimed] == [text.lower() for text in wanted]


def _receipts_root(block: EncodedBlock) -> bool:
    parts = zip(block.receipts, block.blooms, block.logs, strict=True)
    written = [write_receipt(receipt, bloom, logs) for receipt, bloom, logs in parts]
    return ordered_root(written) == raw(block.rpc.receipts_root)


def _bloom(block: EncodedBlock) -> bool:
    """Every receipt's bloom matches its logs, and the header's bloom is their union."""
    derived = block.derived  # the header's bloom does not include it
    if derived is not None and int(derived.logs_bloom, 16) != bloom_of(derived.logs):
        return False
    return int(block.rpc.logs_bloom, 16) == block.bloom


def _log_indexes(block: EncodedBlock) -> bool:
    receipts = block.receipts if block.derived is None else [*block.receipts, block.derived]
    indexes = tuple([log.log_index for receipt in receipts for log in receipt.logs])
    return indexes == _PLACES[: len(indexes)] or [int(index or "", 16) for index in indexes] == [*range(len(indexes))]


def _gas(block: EncodedBlock) -> bool:
    """Gas of the receipts adds up, and the header's follows from it."""
    used = 0
    for receipt in block.receipts:
        used += int(receipt.gas_used, 16)
        if int(receipt.cumulative_gas_used, 16) != used:
            return False
    return gas.fits(int(block.rpc.gas_used, 16), used, amsterdam=block.rpc.block_access_list_hash is not None)


def _contracts(block: EncodedBlock) -> bool:
    """The published contracts are those that the senders created.

    No root covers a receipt's contract. For a creation it follows from nonce and sender, recovered from the signature
    (80 microseconds, only for creations) or named by the bytes of an unsigned transaction.
    """
    pairs = zip(block.rpc.transactions, block.receipts, strict=True)
    for index, (transaction, receipt) in enumerate(pairs):
        if transaction.to:
            if receipt.contract_address and raw(receipt.contract_address) != NO_CONTRACT:
                return False
            continue
        if (nonce := creation_nonce(transaction, receipt)) is None:
            continue  # its contract is not published: nothing proves the node's claim
        sender = decode_transaction(block.transactions[index], index, block.family).sender
        if sender is None or published_contract(transaction, receipt) != created_contract(f"0x{sender.hex()}", nonce):
            return False
    return True


def _withdrawals_root(block: EncodedBlock) -> bool:
    if block.without_withdrawals:
        return not block.withdrawals
    root = block.rpc.withdrawals_root
    if block.withdrawals is None or root is None:
        return block.withdrawals is None and root is None
    return ordered_root(block.withdrawals) == raw(root)


def _uncles_hash(block: EncodedBlock) -> bool:
    return keccak(rlp.wrap(block.uncles)) == raw(block.rpc.sha3_uncles)


CHECKS: Final = MappingProxyType[str, Callable[[EncodedBlock], bool]](
    dict(
        zip(
            CHECK_NAMES,
            (
                *(_hash, _transaction_hashes, _transactions_root, _receipts_match, _receipts_root, _bloom),
                *(_log_indexes, _gas, _contracts, _withdrawals_root, _uncles_hash),
            ),
            strict=True,
        )
    )
)
"""Checks by name, in execution order."""


def verify(
    block: JsonObject,
    receipts: Sequence[JsonObject],
    *,
    uncles: Sequence[JsonObject] = (),
    chain: Chain | None = None,
    checks: Iterable[str] | None = None,
) -> EncodedBlock:
    """Check a block with full transactions, its receipts and its uncles' headers.

    Arguments:
        block: from JSON-RPC, as a mapping or an ``RpcBlock``.
        receipts: its receipts, in order.
        uncles: headers of its uncles, in order.
        chain: parameters of its chain (``chain_of``): the checks that its blocks pass, and what its nodes add.
        checks: names of :data:`CHECKS` instead of the chain's.

    Returns:
        The encoded block; ``rpc.payload.payload_of`` makes a payload of it without re-encoding it.

    Raises:
        IntegrityError: ``check`` names the first failed check, or ``form`` where a field is missing.
        KeyError: there is no such check.

    """
    if checks is None:
        checks = CHECKS if chain is None else chain.checks
    chosen = [(name, CHECKS[name]) for name in checks]
    try:
        encoded = encode_block(block, receipts, uncles, chain=chain)
        with checked_form(encoded, chain):
            failed = next((name for name, check in chosen if not check(encoded)), None)
    except ApplicationError as error:
        number, block_hash = _claimed(block)
        raise IntegrityError(str(error), number=number, block_hash=block_hash, check="form") from error
    if failed is not None:
        raise IntegrityError(
            f"block {encoded.number} (0x{encoded.hash.hex()}) contradicts itself: {failed}; "
            f"{_reason(encoded, failed, chain)}",
            number=encoded.number,
            block_hash=encoded.hash,
            check=failed,
        )
    return encoded


def _reason(block: EncodedBlock, failed: str, chain: Chain | None) -> str:
    """Likely reason of a failed check, and what to do."""
    if failed == "hash" and block.rpc.unknown and not (chain is not None and chain.foreign_hashes):
        names = ", ".join(name[:_SHOWN] for name in block.rpc.unknown[:_SHOWN_NAMES])
        more = len(block.rpc.unknown) - _SHOWN_NAMES
        others = f" and {more} more" if more > 0 else ""
        return (
            f"the node returns fields that this release does not know ({names}{others}), and none of them make up "
            "the hash: this release is too old, or the node is wrong"
        )
    if failed == "transaction hashes" and (odd := lacking_bytes(block.rpc.transactions, block.family)):
        one = block.rpc.transactions[odd[0]]
        kind = int(one.type or "0x0", 16)
        return f"transaction {odd[0]} ({one.hash[:66]}, type {kind}): {bytes_advice(kind, block.family)}"
    return advice(failed, chain)


def _claimed(block: JsonObject | RpcBlock) -> tuple[int, bytes]:
    """Number and hash that a malformed block claims; zero and nothing where they cannot be read."""
    texts = (block.number, block.hash) if isinstance(block, RpcBlock) else (block.get("number"), block.get("hash"))
    try:
        return int(texts[0] or "", 16), raw(texts[1])
    except (TypeError, ValueError, AttributeError):
        return 0, b""
