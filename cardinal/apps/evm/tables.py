"""Arrow tables of blocks, transactions, receipts, logs and withdrawals.

Rules:

1. Columns are those of :mod:`.schemas`, always all of them and in their order; a table without rows has them too.
2. Rows stand in the order of the payloads, and within a block in the order of the chain.
3. What a payload does not have is null: a transaction's hash in a log of a payload without transactions, the size of
   a block of which only the header is there. ``blocks`` has a row for every payload.
4. A number that does not fit its column is an error, never a wrong number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from cardinal.errors import ApplicationError, MissingExtraError
from cardinal.protocols.streams.payload import Payload

try:
    import pyarrow as pa
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Arrow tables", "arrow") from absent

from . import rlp
from .decoding import decode
from .keccak import keccak
from .schemas import DIGITS, TABLES, schema, wide_columns
from .statesync import derived_hash
from .transactions import LEGACY
from .trie import EMPTY_ROOT
from .values import Block, Header, Transaction

__all__ = ["frames"]

_Columns: TypeAlias = dict[str, list[Any]]

_HEADER_TEXTS: Final = (
    *("nonce", "sha3_uncles", "logs_bloom", "transactions_root", "state_root", "receipts_root", "miner"),
    *("extra_data", "withdrawals_root", "mix_hash", "parent_beacon_block_root", "requests_hash"),
)
_HEADER_NUMBERS: Final = (
    *("difficulty", "gas_limit", "gas_used", "base_fee_per_gas", "blob_gas_used", "excess_blob_gas"),
)
_NO_UNCLES: Final = keccak(b"\xc0")
_MICROSECONDS: Final = 1_000_000
_SHORT: Final = 56
_WIDE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Found:
    """A block and what many of its rows repeat."""

    block: Block
    hash: str
    time: int | None
    base_fee: int | None
    transactions: dict[int, Transaction]
    hashes: dict[int, str]


def frames(
    payloads: Iterable[Payload],
    *,
    integers: str = "string",
    tables: Sequence[str] | None = None,
    senders: bool = True,
) -> dict[str, pa.Table]:
    """The typed tables of some blocks.

    Arguments:
        payloads: blocks, whole or with some of their parts.
        integers: how 256-bit numbers are kept: ``string`` (decimal text), ``decimal`` (38 digits) or ``binary``
            (32 bytes, big-endian).
        tables: which of ``schemas.TABLES``; None means all.
        senders: fill ``from_address`` by recovering signatures, which takes more time than all the rest; else null.

    Raises:
        ApplicationError: a payload is none of this application, or a number does not fit its column.
        ConfigurationError: there is no such table or way to keep numbers.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    wanted = TABLES if tables is None else tuple(tables)
    columns = {name: schema(name, integers) for name in wanted}
    found = [_found(decode(payload)) for payload in payloads]
    makers: dict[str, Callable[[list[_Found]], _Columns]] = {
        "blocks": _blocks,
        "transactions": lambda found: _transactions(found, senders=senders),
        "receipts": _receipts,
        "logs": _logs,
        "withdrawals": _withdrawals,
    }
    return {name: _table(name, columns[name], makers[name](found), _WAYS[integers]) for name in wanted}


def _found(block: Block) -> _Found:
    header = block.header
    hashes = {entry.index: _text(entry.hash) for entry in block.transactions}
    for log in block.derived_logs[:1]:  # all are of one transaction, which has no bytes, only a hash
        hashes[log.transaction_index] = _text(derived_hash(block.number, block.hash))
    return _Found(
        block,
        _text(block.hash),
        None if header is None else header.timestamp * _MICROSECONDS,
        None if header is None else header.base_fee_per_gas,
        {entry.index: entry for entry in block.transactions},
        hashes,
    )


def _blocks(found: list[_Found]) -> _Columns:
    headers = [each.block.header for each in found]

    def plain(name: str) -> list[Any]:
        return [None if header is None else getattr(header, name) for header in headers]

    def texts(name: str) -> list[str | None]:
        return [None if value is None else _text(value) for value in plain(name)]

    keys = _keys([(each, 1) for each in found])
    return {
        **keys,
        "number": keys["block_number"],
        "hash": keys["block_hash"],
        "timestamp": keys["block_timestamp"],
        "parent_hash": [_text(each.block.parent) for each in found],
        "total_difficulty": [each.block.total_difficulty for each in found],
        "size": [_size(each.block) for each in found],
        "transaction_count": [_count(each.block) for each in found],
        **{name: texts(name) for name in _HEADER_TEXTS},
        **{name: plain(name) for name in _HEADER_NUMBERS},
    }


def _transactions(found: list[_Found], *, senders: bool) -> _Columns:
    rows = [entry for each in found for entry in each.block.transactions]
    recovered = [entry.sender if senders else None for entry in rows]
    return {
        **_keys([(each, len(each.block.transactions)) for each in found]),
        "transaction_index": [entry.index for entry in rows],
        "hash": [each.hashes[entry.index] for each in found for entry in each.block.transactions],
        "nonce": [entry.nonce for entry in rows],
        "from_address": [None if sender is None else _text(sender) for sender in recovered],
        "to_address": [None if entry.to is None else _text(entry.to) for entry in rows],
        "value": [entry.value for entry in rows],
        "gas": [entry.gas for entry in rows],
        "gas_price": [entry.effective_gas_price(each.base_fee) for each in found for entry in each.block.transactions],
        "input": [_text(entry.input) for entry in rows],
        "max_fee_per_gas": [entry.max_fee_per_gas for entry in rows],
        "max_priority_fee_per_gas": [entry.max_priority_fee_per_gas for entry in rows],
        "transaction_type": [entry.type for entry in rows],
        "max_fee_per_blob_gas": [entry.max_fee_per_blob_gas for entry in rows],
        "blob_versioned_hashes": [[_text(value) for value in entry.blob_versioned_hashes] for entry in rows],
    }


def _receipts(found: list[_Found]) -> _Columns:
    rows = [(each, entry) for each in found for entry in each.block.receipts]
    sent = [each.transactions.get(entry.transaction_index) for each, entry in rows]
    return {
        **_keys([(each, len(each.block.receipts)) for each in found]),
        "transaction_index": [entry.transaction_index for _, entry in rows],
        "transaction_hash": [each.hashes.get(entry.transaction_index) for each, entry in rows],
        "cumulative_gas_used": [entry.cumulative_gas_used for _, entry in rows],
        "gas_used": [entry.gas_used for _, entry in rows],
        "contract_address": [
            None if entry.contract_address is None else _text(entry.contract_address) for _, entry in rows
        ],
        "status": [entry.status for _, entry in rows],
        "effective_gas_price": [
            None if transaction is None else transaction.effective_gas_price(each.base_fee)
            for transaction, (each, _) in zip(sent, rows, strict=True)
        ],
    }


def _logs(found: list[_Found]) -> _Columns:
    rows = [(each, entry) for each in found for entry in (*each.block.logs, *each.block.derived_logs)]
    return {
        **_keys([(each, len(each.block.logs) + len(each.block.derived_logs)) for each in found]),
        "log_index": [entry.log_index for _, entry in rows],
        "transaction_index": [entry.transaction_index for _, entry in rows],
        "transaction_hash": [each.hashes.get(entry.transaction_index) for each, entry in rows],
        "address": [_text(entry.address) for _, entry in rows],
        "data": [_text(entry.data) for _, entry in rows],
        "topics": [[_text(topic) for topic in entry.topics] for _, entry in rows],
    }


def _withdrawals(found: list[_Found]) -> _Columns:
    rows = [entry for each in found for entry in each.block.withdrawals or ()]
    return {
        **_keys([(each, len(each.block.withdrawals or ())) for each in found]),
        "index": [entry.index for entry in rows],
        "validator_index": [entry.validator_index for entry in rows],
        "address": [_text(entry.address) for entry in rows],
        "amount": [entry.amount for entry in rows],
    }


def _keys(blocks: list[tuple[_Found, int]]) -> _Columns:
    """The first columns of every table: each block's values as many times as it has rows."""
    return {
        "block_number": [number for each, rows in blocks for number in [each.block.number] * rows],
        "block_hash": [text for each, rows in blocks for text in [each.hash] * rows],
        "block_timestamp": [time for each, rows in blocks for time in [each.time] * rows],
    }


def _table(name: str, columns: pa.Schema, values: _Columns, way: Callable[[int], object]) -> pa.Table:
    wide = wide_columns(name)
    arrays = []
    for field in columns:
        cells = values[field.name]
        try:
            if field.name in wide:
                cells = [None if cell is None else way(cell) for cell in cells]
            arrays.append(pa.array(cells, type=field.type))
        except (OverflowError, pa.ArrowInvalid):
            kept = "; keep 256-bit numbers as string or binary" if field.name in wide else ""
            raise ApplicationError(f"a number does not fit {field.type} of {name}.{field.name}{kept}") from None
    return pa.Table.from_arrays(arrays, schema=columns)


def _decimal(number: int) -> int:
    if number >= 10**DIGITS:
        raise OverflowError
    return number


def _big_endian(number: int) -> bytes:
    return number.to_bytes(_WIDE_BYTES, "big")


_WAYS: Final[Mapping[str, Callable[[int], object]]] = MappingProxyType(
    {"string": str, "decimal": _decimal, "binary": _big_endian}
)


def _text(value: bytes) -> str:
    return "0x" + value.hex()


def _count(block: Block) -> int | None:
    """How many transactions a block has; None where the payload does not tell."""
    empty = block.header is not None and block.header.transactions_root == EMPTY_ROOT
    return len(block.transactions) if block.transactions or empty else None


def _size(block: Block) -> int | None:
    """The bytes of a whole block's RLP, as nodes give it; None where a part is missing."""
    header = block.header
    if header is None or _count(block) is None or not _has_rest(block, header):
        return None
    transactions = sum(
        len(entry.raw) if entry.type == LEGACY else len(rlp.encode(entry.raw)) for entry in block.transactions
    )
    uncles = sum(len(uncle.encode()) for uncle in block.uncles)
    parts = len(header.encode()) + _wrapped(transactions) + _wrapped(uncles)
    if header.withdrawals_root is not None:
        parts += len(rlp.encode([entry.items() for entry in block.withdrawals or ()]))
    return _wrapped(parts)


def _has_rest(block: Block, header: Header) -> bool:
    """Whether the uncles and withdrawals that the header promises are there."""
    uncles = bool(block.uncles) or header.sha3_uncles == _NO_UNCLES
    # A block without withdrawals has no entry for them, before and after the fork that brought them.
    none = header.withdrawals_root in (None, EMPTY_ROOT)
    return uncles and (block.withdrawals is None) == none


def _wrapped(size: int) -> int:
    """The bytes of an RLP list whose items have ``size`` bytes."""
    return 1 + size + (0 if size < _SHORT else (size.bit_length() + 7) // 8)
