"""Columns of the typed tables as lists, from decoded blocks; :mod:`.frames` converts them to Arrow.

Rules:

1. A list has a value for every row of its table, in the order of the blocks; None is null.
2. Numbers are ``int`` of any size, times microseconds and dates days since 1970, hashes and data ``0x`` text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from cardinal_ethereum import rlp
from cardinal_ethereum.chains import chain_of, family_of
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import Block, Header, Transaction
from cardinal_ethereum.model.block_decoder import RAW
from cardinal_ethereum.model.transaction import Authorization, state_sync_hash
from cardinal_ethereum.model.transaction_types import BLOB, DEPOSIT, FIELDS, SET_CODE
from cardinal_ethereum.times import microseconds

Columns: TypeAlias = dict[str, list[Any]]

KINDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "blocks": frozenset({"h", "d", "w", "u", RAW}),
        "transactions": frozenset({"h", "t"}),
        "receipts": frozenset({"h", "t", "r"}),
        "logs": frozenset({"h", "l", "bl", RAW}),
        "withdrawals": frozenset({"h", "w"}),
    }
)
"""Kinds of paths that each table needs."""

_HEADER_TEXTS: Final = (
    *("nonce", "sha3_uncles", "logs_bloom", "transactions_root", "state_root", "receipts_root", "miner"),
    *("extra_data", "withdrawals_root", "mix_hash", "parent_beacon_block_root", "requests_hash"),
    "block_access_list_hash",
)
_HEADER_NUMBERS: Final = (
    *("difficulty", "gas_limit", "gas_used", "base_fee_per_gas", "blob_gas_used", "excess_blob_gas", "slot_number"),
)
_NO_UNCLES: Final = keccak(b"\xc0")
_DAY: Final = 86_400_000_000
_TOPICS: Final = 4
_SHORT: Final = 56
_LIST: Final = 0xC0
_MIX: Final = 32
_ARBOS_VERSION: Final = slice(16, 24)
_ARBOS_WITH_TIPS: Final = (9).to_bytes(8, "big")
_TIPS: Final = 25
"""Information in an Arbitrum header's mix hash (nitro's go-ethereum, arb_types: HeaderInfo)."""

_GAS_PER_BLOB: Final = 1 << 17  # EIP-4844


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Block with the values that its rows share.

    ``raw`` and ``hashes`` are the transactions' bytes and hashes by index, where known. ``has_status`` is false before
    Byzantium, where receipts have a root instead of a status and the stream carries 0.
    """

    block: Block
    raw: Mapping[int, bytes]
    hash: str
    time: int | None
    base_fee: int | None
    transactions: Mapping[int, Transaction]
    hashes: Mapping[int, str]
    has_status: bool


def block_rows(block: Block, raw: Mapping[int, bytes]) -> BlockRows:
    """Collect the shared values of a decoded block and the bytes of its transactions."""
    header = block.header
    transactions = {entry.index: entry for entry in block.transactions}
    hashes = {
        index: text(transactions[index].hash if index in transactions else keccak(value))
        for index, value in raw.items()
    }
    for log in block.derived_logs[:1]:  # all belong to one transaction, which has no bytes, only a hash
        hashes[log.transaction_index] = text(state_sync_hash(block.number, block.hash))
    return BlockRows(
        block,
        raw,
        text(block.hash),
        None if header is None else microseconds(header.timestamp),
        None if header is None else header.base_fee_per_gas,
        transactions,
        hashes,
        block.chain_id is None or block.number >= chain_of(block.chain_id).status_from,
    )


def rows_of(table: str, blocks: Sequence[BlockRows], *, senders: bool) -> Columns:
    """Columns of one of ``schemas.TABLES``; ``senders`` as in :func:`.frames.frames`."""
    if table == "transactions":
        return _transactions(blocks, senders=senders)
    return _COLUMNS_OF[table](blocks)


def text(value: bytes) -> str:
    """Bytes as ``0x`` text."""
    return "0x" + value.hex()


def _optional(value: bytes | None) -> str | None:
    return None if value is None else "0x" + value.hex()


def _blocks(blocks: Sequence[BlockRows]) -> Columns:
    headers = [each.block.header for each in blocks]

    def plain(name: str) -> list[Any]:
        return [None if header is None else getattr(header, name) for header in headers]

    keys = _keys([(each, 1) for each in blocks])
    return {
        **keys,
        "number": keys["block_number"],
        "hash": keys["block_hash"],
        "timestamp": keys["block_timestamp"],
        "parent_hash": [text(each.block.parent) for each in blocks],
        "total_difficulty": [each.block.total_difficulty for each in blocks],
        "size": [_size(each) for each in blocks],
        "transaction_count": [_count(each) for each in blocks],
        **{name: list(map(_optional, plain(name))) for name in _HEADER_TEXTS},
        **{name: plain(name) for name in _HEADER_NUMBERS},
    }


def _transactions(blocks: Sequence[BlockRows], *, senders: bool) -> Columns:
    rows = [entry for each in blocks for entry in each.block.transactions]
    deposits = [entry.deposit for entry in rows]
    return {
        **_keys([(each, len(each.block.transactions)) for each in blocks]),
        "transaction_index": [entry.index for entry in rows],
        "hash": [each.hashes[entry.index] for each in blocks for entry in each.block.transactions],
        "nonce": [entry.nonce for entry in rows],
        "from_address": [_optional(entry.sender) if senders else None for entry in rows],
        "to_address": [_optional(entry.to) for entry in rows],
        "value": [entry.value for entry in rows],
        "gas": [entry.gas for entry in rows],
        "gas_price": [entry.effective_gas_price(each.base_fee) for each in blocks for entry in each.block.transactions],
        "input": [_optional(entry.input) for entry in rows],
        "max_fee_per_gas": [entry.max_fee_per_gas for entry in rows],
        "max_priority_fee_per_gas": [entry.max_priority_fee_per_gas for entry in rows],
        "transaction_type": [entry.type for entry in rows],
        "max_fee_per_blob_gas": [entry.max_fee_per_blob_gas for entry in rows],
        "blob_versioned_hashes": [
            None if entry.opaque else list(map(text, entry.blob_versioned_hashes)) for entry in rows
        ],
        "access_list": [_access_list(entry) for entry in rows],
        "authorization_list": [_authorizations(entry, senders=senders) for entry in rows],
        "source_hash": [None if deposit is None else text(deposit.source_hash) for deposit in deposits],
        "mint": [None if deposit is None else deposit.mint for deposit in deposits],
    }


def _access_list(entry: Transaction) -> list[Any] | None:
    if "access_list" not in (FIELDS.get(entry.type, ()) if entry.layout is None else entry.layout):
        return None
    return [
        {"address": text(each.address), "storage_keys": list(map(text, each.storage_keys))}
        for each in entry.access_list
    ]


def _authorizations(entry: Transaction, *, senders: bool) -> list[Any] | None:
    if entry.type != SET_CODE:
        return None
    return [_authorization(each, senders=senders) for each in entry.authorizations]


def _authorization(entry: Authorization, *, senders: bool) -> dict[str, Any]:
    return {
        # A valid transaction may have any value here: text always fits.
        **{name: str(getattr(entry, name)) for name in ("chain_id", "nonce", "y_parity")},
        **{name: hex(getattr(entry, name)) for name in ("r", "s")},
        "address": text(entry.address),
        "authority": _optional(entry.authority) if senders else None,
    }


def _receipts(blocks: Sequence[BlockRows]) -> Columns:
    rows = [(each, entry) for each in blocks for entry in each.block.receipts]
    sent = [each.transactions.get(entry.transaction_index) for each, entry in rows]
    return {
        **_keys([(each, len(each.block.receipts)) for each in blocks]),
        "transaction_index": [entry.transaction_index for _, entry in rows],
        "transaction_hash": [each.hashes.get(entry.transaction_index) for each, entry in rows],
        "cumulative_gas_used": [entry.cumulative_gas_used for _, entry in rows],
        "gas_used": [entry.gas_used for _, entry in rows],
        "contract_address": [_optional(entry.contract_address) for _, entry in rows],
        "status": [entry.status if each.has_status else None for each, entry in rows],
        "effective_gas_price": [
            None if transaction is None else _price(each, transaction)
            for transaction, (each, _) in zip(sent, rows, strict=True)
        ],
        "blob_gas_used": [
            None if entry is None or entry.type != BLOB else _GAS_PER_BLOB * len(entry.blob_versioned_hashes)
            for entry in sent
        ],
    }


def _price(each: BlockRows, transaction: Transaction) -> int | None:
    """Price that a transaction paid. On Arbitrum it is the base fee, unless the header says that tips are collected."""
    if each.block.chain_id is None or family_of(each.block.chain_id) != "arbitrum":
        return transaction.effective_gas_price(each.base_fee)
    mix = b"" if each.block.header is None else each.block.header.mix_hash or b""
    with_tips = mix[_ARBOS_VERSION] == _ARBOS_WITH_TIPS or bool(mix[_TIPS] & 1) if len(mix) == _MIX else False
    return transaction.effective_gas_price(each.base_fee) if with_tips else each.base_fee


def _logs(blocks: Sequence[BlockRows]) -> Columns:
    rows = [(each, entry) for each in blocks for entry in (*each.block.logs, *each.block.derived_logs)]
    return {
        **_keys([(each, len(each.block.logs) + len(each.block.derived_logs)) for each in blocks]),
        "log_index": [entry.log_index for _, entry in rows],
        "transaction_index": [entry.transaction_index for _, entry in rows],
        "transaction_hash": [each.hashes.get(entry.transaction_index) for each, entry in rows],
        "address": [text(entry.address) for _, entry in rows],
        "data": [text(entry.data) for _, entry in rows],
        "topics": (topics := [list(map(text, entry.topics)) for _, entry in rows]),
        **{f"topic{at}": [each[at] if at < len(each) else None for each in topics] for at in range(_TOPICS)},
    }


def _withdrawals(blocks: Sequence[BlockRows]) -> Columns:
    rows = [entry for each in blocks for entry in each.block.withdrawals or ()]
    return {
        **_keys([(each, len(each.block.withdrawals or ())) for each in blocks]),
        "index": [entry.index for entry in rows],
        "validator_index": [entry.validator_index for entry in rows],
        "address": [text(entry.address) for entry in rows],
        "amount": [entry.amount for entry in rows],
    }


_COLUMNS_OF: Final[Mapping[str, Callable[[Sequence[BlockRows]], Columns]]] = MappingProxyType(
    {"blocks": _blocks, "receipts": _receipts, "logs": _logs, "withdrawals": _withdrawals}
)


def _keys(blocks: list[tuple[BlockRows, int]]) -> Columns:
    """Columns of every table: each block's values, repeated for each of its rows."""
    return {
        "block_number": [number for each, rows in blocks for number in [each.block.number] * rows],
        "block_hash": [hashed for each, rows in blocks for hashed in [each.hash] * rows],
        "block_timestamp": [time for each, rows in blocks for time in [each.time] * rows],
        "block_date": [day for each, rows in blocks for day in [day_of(each.time)] * rows],
    }


def day_of(time: int | None) -> int | None:
    """Day of a time in microseconds."""
    return None if time is None else time // _DAY


def _count(each: BlockRows) -> int | None:
    """Number of transactions of a block; None where the payload lacks them."""
    header = each.block.header
    empty = header is not None and header.transactions_root == EMPTY_ROOT
    return len(each.raw) if each.raw or empty else None


def _size(each: BlockRows) -> int | None:
    """Size of the complete block's RLP in bytes, like the nodes' ``size``; None where a part is missing."""
    block, header = each.block, each.block.header
    if header is None or _count(each) is None or not _has_rest(each, header):
        return None
    transactions = sum(len(raw) if raw[:1] >= bytes((_LIST,)) else len(rlp.encode(raw)) for raw in each.raw.values())
    uncles = sum(len(uncle.encode()) for uncle in block.uncles)
    parts = len(header.encode()) + _wrapped(transactions) + _wrapped(uncles)
    if header.withdrawals_root is not None:
        parts += len(rlp.encode([entry.items() for entry in block.withdrawals or ()]))
    return _wrapped(parts)


def _has_rest(each: BlockRows, header: Header) -> bool:
    """True if the payload has the uncles and withdrawals that the header commits to."""
    uncles = bool(each.block.uncles) or header.sha3_uncles == _NO_UNCLES
    # A block without withdrawals has no entry for them, before and after the fork that added them. Blocks of the OP
    # Stack, which begin with a deposit, never have any, and the root covers something else.
    of_op_stack = each.raw.get(0, b"")[:1] == bytes((DEPOSIT,))
    none = header.withdrawals_root in (None, EMPTY_ROOT) or of_op_stack
    return uncles and (each.block.withdrawals is None) == none


def _wrapped(size: int) -> int:
    """Size of an RLP list whose items have ``size`` bytes."""
    return 1 + size + (0 if size < _SHORT else (size.bit_length() + 7) // 8)
