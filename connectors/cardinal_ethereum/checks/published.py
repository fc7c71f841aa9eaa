"""Integrity checks of a published block: what its payload proves by itself.

Rules:

1. Everything is recomputed from the payload's own entries. The header must hash to the block, and every part to its
   root in the header.
2. A payload has all parts of its block, and no entry that is none of them: what is absent fails the check of its root.
3. Not checked, because no published bytes prove it: finality, accounts and storage, a total difficulty before
   the merge, a state-sync transaction outside the body. Receipts before Byzantium (their state roots are not
   published), in a block with deposits (their nonces are not) or with fees in another currency (Celo: their base fees
   are not) are held to bloom, gas and signers, not to their root.
4. A check that honest blocks of a chain do not pass (``Chain.unchecked``) is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import rlp
from cardinal_ethereum.bloom import BLOOM_SIZE, bloom_bits
from cardinal_ethereum.chains import Chain
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import Block, Header, Log, ReceiptMeta
from cardinal_ethereum.model.block_decoder import decode
from cardinal_ethereum.model.transaction import Transaction
from cardinal_ethereum.model.transaction_types import CELO_2, LEGACY, STATE_SYNC
from cardinal_ethereum.rlp.cache import Memo
from cardinal_ethereum.rlp.fields import number
from cardinal_ethereum.weights import is_relative

from . import gas
from .trie import ordered_root

_STATE: Final = re.compile("a/[0-9a-f]{64}/(d|s/[0-9a-f]{1,64})")
_ACCOUNT: Final = re.compile("a/[0-9a-f]{64}")
_CODE: Final = re.compile("c/([0-9a-f]{64})")
_MARKS: Final = ("n/safe", "n/finalized")
_bits: Final = Memo(bloom_bits, maxsize=8192)


@dataclass(frozen=True, slots=True)
class _Published:
    """A block with what the checks share.

    Attributes:
        root: path of the chain's entries, ``prefix`` of the block's own.
        logs: bytes of the logs of each receipt; empty where the receipts do not fit the logs.

    """

    chain: Chain
    block: Block
    header: Header
    updates: Mapping[str, bytes]
    root: str
    prefix: str
    logs: list[list[bytes]]

    @property
    def merged(self) -> bool:
        return not self.header.difficulty


def verify_payload(payload: Payload, chain: Chain) -> None:
    """Check a published block.

    Arguments:
        payload: as a publisher sends it: sub batches are apart.
        chain: parameters of its chain (``chain_of``).

    Raises:
        ApplicationError: it is no block of this chain, or contradicts itself; the first failed check is named.

    """
    block = decode(payload)
    root = f"c/{chain.chain_id:x}"
    prefix = f"{root}/b/{payload.hash.hex()}"
    without = block.total_difficulty is None and not is_relative(block.weight)
    if block.header is None or without or block.chain_id != chain.chain_id:
        raise ApplicationError(f"block {payload.number} lacks its header or its difficulty on chain {chain.chain_id}")
    published = _Published(chain, block, block.header, payload.updates, root, prefix, _logs(block, payload, prefix))
    failures = (name for name, check in CHECKS.items() if name not in chain.unchecked and not check(published))
    failed = next(failures, None)
    if failed is not None:
        raise ApplicationError(f"block {payload.number} (0x{payload.hash.hex()}) contradicts itself: {failed}")


def _logs(block: Block, payload: Payload, prefix: str) -> list[list[bytes]]:
    """Bytes of the logs of each receipt, by the receipts' own counts."""
    written = [payload.updates[f"{prefix}/l/{log.transaction_index:x}/{log.log_index:x}"] for log in block.logs]
    counts = [receipt.log_count for receipt in block.receipts]
    if sum(counts) != len(written):
        return []
    ends = list(accumulate(counts))
    return [written[end - count : end] for end, count in zip(ends, counts, strict=True)]


# --- the block and its entries ------------------------------------------------------------------------------------


def _hash(published: _Published) -> bool:
    return keccak(published.updates[f"{published.prefix}/h"]) == published.block.hash


def _number_and_parent(published: _Published) -> bool:
    return (published.header.number, published.header.parent_hash) == (published.block.number, published.block.parent)


def _weight(published: _Published) -> bool:
    """Weight and difficulty; after the merge the total is the chain's final one. From an origin there is no total."""
    block, total = published.block, published.block.total_difficulty or 0
    if is_relative(block.weight):
        known = published.merged and published.chain.final_total_difficulty is not None
        return block.total_difficulty is None and not known
    if not published.merged:
        return block.weight == total >= published.header.difficulty
    return block.weight == total + block.number and published.chain.final_total_difficulty in (None, total)


def _entries(published: _Published) -> bool:
    """Other entries: the block's number, finality after the merge, a state-sync bloom, accounts and code."""
    block, root = published.block, f"{published.root}/"
    rest = {path.removeprefix(root): value for path, value in block.rest.items() if path.startswith(root)}
    marks = [rest.pop(path, None) for path in _MARKS]
    if len(rest) + sum(mark is not None for mark in marks) != len(block.rest):
        return False
    if any((mark is not None) != published.merged or (mark is not None and not _is_number(mark)) for mark in marks):
        return False
    if rest.pop(f"n/{block.number:x}", None) != block.hash:
        return False
    rest.pop(f"{published.prefix.removeprefix(root)}/br/{len(block.receipts):x}", None)
    return (
        all(_STATE.fullmatch(path) or _is_code(path, value) for path, value in rest.items())
        and _all_match(_ACCOUNT, block.deletes, root)
        and _storage(published)
    )


def _all_match(form: re.Pattern[str], paths: Iterable[str], root: str) -> bool:
    return all(path.startswith(root) and form.fullmatch(path, len(root)) for path in paths)


def _is_number(value: bytes) -> bool:
    try:
        return number(value) < 1 << 64
    except ApplicationError:
        return False


def _is_code(path: str, value: bytes) -> bool:
    code = _CODE.fullmatch(path)
    return code is not None and keccak(value).hex() == code[1]


def _storage(published: _Published) -> bool:
    """At most one sub batch, with the block's storage."""
    own, root = published.block.number.to_bytes(32, "big"), f"{published.root}/"
    return all(
        batch_id == own
        and part is not None
        and part.path == f"{root}s"
        and _all_match(_STATE, part.updates, root)
        and _all_match(_ACCOUNT, part.deletes, root)
        for batch_id, part in published.block.sub_batches.items()
    )


# --- the parts under the header's roots ---------------------------------------------------------------------------


def _transactions_root(published: _Published) -> bool:
    """Includes a state sync at the end, on a chain and at a height that have it."""
    transactions, first = published.block.transactions, published.chain.state_sync_in_body
    if published.chain.state_sync:
        if any(one.type == STATE_SYNC for one in transactions[:-1]):
            return False
        if transactions and transactions[-1].type == STATE_SYNC and (first is None or published.block.number < first):
            return False
    return _in_order([one.index for one in transactions]) and (
        ordered_root([one.raw for one in transactions]) == published.header.transactions_root
    )


def _in_order(indexes: list[int]) -> bool:
    return indexes == list(range(len(indexes)))


def _receipt_order(published: _Published) -> bool:
    """One receipt per transaction, in order."""
    indexes = [receipt.transaction_index for receipt in published.block.receipts]
    return len(indexes) == len(published.block.transactions) and _in_order(indexes)


def _log_order(published: _Published) -> bool:
    """Logs count through the block, each with its receipt."""
    block = published.block
    logs = [*block.logs, *block.derived_logs]
    if not _in_order([log.log_index for log in logs]) or len(published.logs) != len(block.receipts):
        return False
    offset = 0
    for receipt in block.receipts:
        count = receipt.log_count
        if receipt.log_offset != (offset if count else 0):
            return False
        if any(log.transaction_index != receipt.transaction_index for log in block.logs[offset : offset + count]):
            return False
        offset += count
    return True


def _receipts_root(published: _Published) -> bool:
    block = published.block
    if block.number < published.chain.status_from or any(map(_has_more, block.transactions)):
        return True  # not checked: rule 3
    parts = zip(block.transactions, block.receipts, published.logs, strict=True)
    return ordered_root([_consensus(*part) for part in parts]) == published.header.receipts_root


def _has_more(transaction: Transaction) -> bool:
    """True if its receipt may have parts under the root that are not published."""
    return transaction.deposit is not None or transaction.type == CELO_2


def _consensus(transaction: Transaction, receipt: ReceiptMeta, logs: list[bytes]) -> bytes:
    """A receipt's bytes under the root (EIP-658, EIP-2718)."""
    listed = b"".join(logs)
    body = b"".join(
        (
            *(rlp.encode_int(receipt.status), rlp.encode_int(receipt.cumulative_gas_used)),
            *(rlp.encode_bytes(receipt.logs_bloom), rlp.list_head[len(listed)], listed),
        )
    )
    written = rlp.list_head[len(body)] + body
    return written if transaction.type == LEGACY else bytes((transaction.type,)) + written


def _bloom(published: _Published) -> bool:
    """Every receipt's bloom is that of its logs, and the header's their union."""
    block, whole, offset = published.block, 0, 0
    for receipt in block.receipts:
        bits = _bloom_of(block.logs[offset : offset + receipt.log_count])
        if bits.to_bytes(BLOOM_SIZE, "big") != receipt.logs_bloom:
            return False
        whole |= bits
        offset += receipt.log_count
    return whole.to_bytes(BLOOM_SIZE, "big") == published.header.logs_bloom


def _bloom_of(logs: tuple[Log, ...]) -> int:
    bits = 0
    for log in logs:
        bits |= _bits[log.address]
        for topic in log.topics:
            bits |= _bits[topic]
    return bits


def _state_sync(published: _Published) -> bool:
    """A state sync outside the body: its logs fit its bloom; no root covers them."""
    block, chain, last = published.block, published.chain, len(published.block.receipts)
    bloom = block.rest.get(f"{published.prefix}/br/{last:x}")
    if bloom is None:
        return not block.derived_logs
    in_body = chain.state_sync_in_body is not None and block.number >= chain.state_sync_in_body
    return (
        chain.state_sync
        and not in_body
        and all(log.transaction_index == last for log in block.derived_logs)
        and _bloom_of(block.derived_logs).to_bytes(BLOOM_SIZE, "big") == bloom
    )


def _gas(published: _Published) -> bool:
    """Gas of the receipts adds up, and the header's follows from it."""
    used = list(accumulate(receipt.gas_used for receipt in published.block.receipts))
    claimed = [receipt.cumulative_gas_used for receipt in published.block.receipts]
    header = published.header
    total = used[-1] if used else 0
    return used == claimed and gas.fits(header.gas_used, total, amsterdam=header.block_access_list_hash is not None)


def _contracts(published: _Published) -> bool:
    """Contracts are those that the senders created; a deposit, whose nonce is not published, may create one."""
    for transaction, receipt in zip(published.block.transactions, published.block.receipts, strict=True):
        contract = receipt.contract_address
        if transaction.names_contract:
            if contract is None or contract != transaction.created:
                return False
        elif contract is not None and (transaction.to is not None or transaction.deposit is None):
            return False
    return True


def _withdrawals_root(published: _Published) -> bool:
    """There is an entry only where there are withdrawals."""
    withdrawals, root = published.block.withdrawals, published.header.withdrawals_root
    if withdrawals is not None and not withdrawals:
        return False
    if root is None or not published.chain.withdrawals:
        return withdrawals is None
    return ordered_root([rlp.encode(one.items()) for one in withdrawals or ()]) == root


def _uncles_hash(published: _Published) -> bool:
    return keccak(rlp.wrap(uncle.encode() for uncle in published.block.uncles)) == published.header.sha3_uncles


CHECKS: Final = MappingProxyType[str, Callable[[_Published], bool]](
    {
        "hash": _hash,
        "number and parent": _number_and_parent,
        "weight": _weight,
        "entries": _entries,
        "transactions root": _transactions_root,
        "receipt order": _receipt_order,
        "log order": _log_order,
        "receipts root": _receipts_root,
        "bloom": _bloom,
        "state sync": _state_sync,
        "gas": _gas,
        "contracts": _contracts,
        "withdrawals root": _withdrawals_root,
        "uncles hash": _uncles_hash,
    }
)
"""Checks by name, in execution order. Those that a chain may skip have the names of :mod:`.integrity`; the two of order
cannot be skipped, since the checks after them rely on them."""
