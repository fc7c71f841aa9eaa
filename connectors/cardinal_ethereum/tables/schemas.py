"""Columns of the typed tables: ethereum-etl's names and meanings, in a fixed order.

Rules:

1. Every table begins with ``block_number``, ``block_hash`` and ``block_timestamp``.
2. Hashes, addresses and data are text: ``0x`` and lower-case hex. Times are UTC with their zone; null
   from the year 10000 on.
3. Numbers of 256 bits (amounts, prices, difficulties) are *wide*: decimal text by default, a decimal of 38 digits or 32
   big-endian bytes by option; never a float. Every other number is a signed 64-bit one, except in authorizations, whose
   values are unbounded and therefore text.
4. A column that a payload with fewer parts, or a transaction of an unknown type, cannot fill is nullable. Columns are
   only ever added, as nullable ones.
5. Every table has ``block_date``, the day of ``block_timestamp`` in UTC, for partitioning.

``blocks`` repeats its first three columns under ethereum-etl's names ``number``, ``hash`` and ``timestamp``. The
meaning of every column, and the absent columns of ethereum-etl, are in ``schemas/evm-tables.json``.
"""

from __future__ import annotations

from typing import Final

from cardinal.errors import ConfigurationError, MissingExtraError

try:
    import pyarrow as pa
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Arrow tables", "arrow") from absent

TABLES: Final = ("blocks", "transactions", "receipts", "logs", "withdrawals")

INTEGERS: Final = ("string", "decimal", "binary")
"""Representations of wide numbers."""

DIGITS: Final = 38
"""Digits of a decimal."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.list_(pa.string())
_ACCESS: Final = pa.list_(pa.struct([("address", pa.string()), ("storage_keys", _TEXTS)]))
_AUTHORIZATIONS: Final = pa.list_(
    pa.struct(
        [(name, pa.string()) for name in ("chain_id", "address", "nonce", "y_parity", "r", "s", "authority")],
    )
)
_KINDS: Final = (
    *(("text", pa.string()), ("texts", _TEXTS), ("long", pa.int64()), ("time", _TIME), ("date", pa.date32())),
    *(("access", _ACCESS), ("authorizations", _AUTHORIZATIONS)),
)

_KEYS: Final = ("block_number long!", "block_hash text!", "block_timestamp time")
_DATE: Final = ("block_date date",)

_COLUMNS: Final = (
    (
        "blocks",
        ("number long!", "hash text!", "parent_hash text!", "nonce text", "sha3_uncles text", "logs_bloom text"),
        ("transactions_root text", "state_root text", "receipts_root text", "miner text"),
        ("difficulty wide", "total_difficulty wide", "size long", "extra_data text"),
        ("gas_limit long", "gas_used long", "timestamp time", "transaction_count long", "base_fee_per_gas wide"),
        ("withdrawals_root text", "blob_gas_used long", "excess_blob_gas long"),
        ("mix_hash text", "parent_beacon_block_root text", "requests_hash text"),
        ("block_access_list_hash text", "slot_number long"),
        _DATE,
    ),
    (
        "transactions",
        ("transaction_index long!", "hash text!", "nonce long", "from_address text", "to_address text"),
        ("value wide", "gas long", "gas_price wide", "input text"),
        ("max_fee_per_gas wide", "max_priority_fee_per_gas wide", "transaction_type long!"),
        ("max_fee_per_blob_gas wide", "blob_versioned_hashes texts"),
        ("access_list access", "authorization_list authorizations", "source_hash text", "mint wide"),
        _DATE,
    ),
    (
        "receipts",
        ("transaction_index long!", "transaction_hash text", "cumulative_gas_used long!", "gas_used long!"),
        ("contract_address text", "status long", "effective_gas_price wide", "blob_gas_used long"),
        _DATE,
    ),
    (
        "logs",
        ("log_index long!", "transaction_index long!", "transaction_hash text"),
        ("address text!", "data text!", "topics texts!"),
        ("topic0 text", "topic1 text", "topic2 text", "topic3 text"),
        _DATE,
    ),
    (
        "withdrawals",
        ("index long!", "validator_index long!", "address text!", "amount long!"),
        _DATE,
    ),
)
"""Per table: name and kind of each column; ``!`` where it is never null."""


def schema(table: str, integers: str = "string") -> pa.Schema:
    """Columns of one of ``TABLES``.

    Arguments:
        table: its name.
        integers: representation of wide numbers, one of ``INTEGERS``.

    Raises:
        ConfigurationError: there is no such table or representation.

    """
    if integers not in INTEGERS:
        raise ConfigurationError(f"integers must be one of {', '.join(INTEGERS)}, not {integers!r}", setting="integers")
    for name, *groups in _COLUMNS:
        if name == table:
            wide = {"string": pa.string(), "decimal": pa.decimal128(DIGITS, 0), "binary": pa.binary()}[integers]
            kinds = {**dict(_KINDS), "wide": wide}
            return pa.schema([_field(column, kinds) for group in (_KEYS, *groups) for column in group])
    raise ConfigurationError(f"there is no table {table!r}; choose one of {', '.join(TABLES)}", setting="tables")


def wide_columns(table: str) -> frozenset[str]:
    """Columns of a table with wide numbers."""
    return frozenset(
        column.split()[0]
        for name, *groups in _COLUMNS
        if name == table
        for group in groups
        for column in group
        if column.split()[1].rstrip("!") == "wide"
    )


def _field(column: str, kinds: dict[str, pa.DataType]) -> pa.Field:
    name, kind = column.split()
    return pa.field(name, kinds[kind.rstrip("!")], nullable=not kind.endswith("!"))
