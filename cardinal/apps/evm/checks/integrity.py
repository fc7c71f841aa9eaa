"""Whether a block from a node agrees with itself: the hash that names it, and the roots that its header holds.

Every check recomputes from the parts; nothing that the node says about a part is taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Final

from cardinal.apps.evm import rlp
from cardinal.apps.evm.chains import CHECK_NAMES, Chain
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.model.block import NO_CONTRACT
from cardinal.apps.evm.model.transaction_decoder import decode_transaction
from cardinal.apps.evm.rpc.block import EncodedBlock, encode_block
from cardinal.apps.evm.rpc.receipts import (
    bloom_of,
    created_contract,
    creation_nonce,
    published_contract,
    write_receipt,
)
from cardinal.apps.evm.rpc.structures import JsonObject, hexadecimal, raw
from cardinal.errors import ApplicationError, IntegrityError

from .trie import ordered_root

_PLACES: Final = tuple(map(hex, range(4096)))
"""Indexes as nodes write them, of more logs than most blocks have."""


def _hash(block: EncodedBlock) -> bool:
    return keccak(block.header) == block.hash


def _transaction_hashes(block: EncodedBlock) -> bool:
    claimed = [transaction.hash for transaction in block.shown.transactions]
    own = [f"0x{keccak(written).hex()}" for written in block.transactions]
    return claimed == own or [raw(text) for text in claimed] == [raw(text) for text in own]


def _transactions_root(block: EncodedBlock) -> bool:
    return ordered_root(block.transactions) == raw(block.shown.transactions_root)


def _receipts_match(block: EncodedBlock) -> bool:
    """One receipt a transaction, in order, and of this block; also of one that the node added."""
    if block.derived is not None and raw(block.derived.block_hash or "") != block.hash:
        return False
    if len(block.receipts) != len(block.transactions):
        return False
    named = [transaction.hash for transaction in block.shown.transactions]
    return _all_same([receipt.transaction_hash for receipt in block.receipts], named) and _all_same(
        [receipt.block_hash for receipt in block.receipts], [block.shown.hash] * len(named)
    )


def _all_same(claimed: Sequence[str | None], wanted: Sequence[str]) -> bool:
    """Whether texts are the same data one by one; nodes differ in capitals."""
    return claimed == wanted or [(text or "").lower() for text in claimed] == [text.lower() for text in wanted]


def _receipts_root(block: EncodedBlock) -> bool:
    parts = zip(block.receipts, block.blooms, block.logs, strict=True)
    written = [write_receipt(receipt, bloom, logs) for receipt, bloom, logs in parts]
    return ordered_root(written) == raw(block.shown.receipts_root)


def _bloom(block: EncodedBlock) -> bool:
    """Every receipt's bloom is that of its logs, and the header's is theirs together."""
    derived = block.derived  # its receipt alone holds its bloom: the header's does not
    if derived is not None and int(derived.logs_bloom, 16) != bloom_of(derived.logs):
        return False
    return int(block.shown.logs_bloom, 16) == block.bloom


def _log_indexes(block: EncodedBlock) -> bool:
    receipts = block.receipts if block.derived is None else [*block.receipts, block.derived]
    indexes = tuple([log.log_index for receipt in receipts for log in receipt.logs])
    return indexes == _PLACES[: len(indexes)] or [int(index or "", 16) for index in indexes] == [*range(len(indexes))]


def _gas(block: EncodedBlock) -> bool:
    """Gas adds up over the receipts to the header's."""
    used = 0
    for receipt in block.receipts:
        used += int(receipt.gas_used, 16)
        if int(receipt.cumulative_gas_used, 16) != used:
            return False
    return used == int(block.shown.gas_used, 16)


def _contracts(block: EncodedBlock) -> bool:
    """The contracts that are published are those that the senders created.

    No root covers a receipt's contract. For a creation it follows from the nonce and from who signed, and that is
    recovered from the signature (measured at 80 microseconds, and only for creations).
    """
    pairs = zip(block.shown.transactions, block.receipts, strict=True)
    for index, (transaction, receipt) in enumerate(pairs):
        if transaction.to and not receipt.contract_address:
            continue
        named = published_contract(transaction, receipt)
        if transaction.to:
            if named not in (None, NO_CONTRACT):
                return False
            continue
        sender = decode_transaction(block.transactions[index], index).sender
        if sender is None or named != created_contract("0x" + sender.hex(), creation_nonce(transaction, receipt)):
            return False
    return True


def _withdrawals_root(block: EncodedBlock) -> bool:
    if block.without_withdrawals:
        return not block.withdrawals
    root = block.shown.withdrawals_root
    if block.withdrawals is None or root is None:
        return block.withdrawals is None and root is None
    return ordered_root(block.withdrawals) == raw(root)


def _uncles_hash(block: EncodedBlock) -> bool:
    return keccak(rlp.wrap(block.uncles)) == raw(block.shown.sha3_uncles)


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
"""Every check by name, in the order in which they run."""


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
        block: as JSON-RPC shows it, as a mapping or an :class:`cardinal.apps.evm.rpc.structures.RpcBlock`.
        receipts: the same, in order.
        uncles: the headers of its uncles, in order.
        chain: what is known of its chain (:func:`cardinal.apps.evm.chains.chain_of`): which checks its blocks pass, and what its
            nodes show that is no part of a block.
        checks: names of :data:`CHECKS` instead of the chain's.

    Returns:
        The block as it was written down for the checks; :func:`cardinal.apps.evm.rpc.payload.payload_of` makes a payload of it without
        writing it again.

    Raises:
        IntegrityError: ``check`` names the first that failed, or ``form`` where a field is missing.
        KeyError: there is no such check.

    """
    if checks is None:
        checks = CHECKS if chain is None else chain.checks
    chosen = [(name, CHECKS[name]) for name in checks]
    try:
        encoded = encode_block(block, receipts, uncles, chain=chain)
        with hexadecimal("the block"):
            failed = next((name for name, check in chosen if not check(encoded)), None)
    except ApplicationError as error:
        at, block_hash = _claimed(block)
        raise IntegrityError(
            f"block {at} (0x{block_hash.hex()}) is not as JSON-RPC shows blocks: {error}",
            number=at,
            block_hash=block_hash,
            check="form",
        ) from error
    if failed is not None:
        raise IntegrityError(
            f"block {encoded.number} (0x{encoded.hash.hex()}) contradicts itself: {failed}; "
            "ask another node, or this one later",
            number=encoded.number,
            block_hash=encoded.hash,
            check=failed,
        )
    return encoded


def _claimed(block: JsonObject) -> tuple[int, bytes]:
    """The number and hash that a malformed block says it has, as far as they can be read."""
    try:
        return int(block["number"], 16), bytes.fromhex(block["hash"][2:])
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0, b""
