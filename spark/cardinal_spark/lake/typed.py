"""Typed tables: the application's rows of a block's content, after the key columns.

Rules:

1. The application alone defines its columns; this file adds the keys and finds each row's block by its hash.
2. An application without typed tables has ``payload``, ``events`` and ``canonical`` only.
3. All columns are nullable in the lake, also the application's required ones: a lake outlives today's rules.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from .tables import KEYS, PAYLOAD, PAYLOAD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.payload import Payload
    from cardinal_spark.rows import AppSpec

    from .tables import LakeSettings

_EVM = "evm"
_BLOCK_HASH = "block_hash"
"""The column by which every typed row of ``evm`` names its block, as 0x text."""
_BLOCKS = "blocks"
_OF_EVERY_HEADER = ("timestamp", "gas_limit", "gas_used")
"""Null in a row with a header only where the header's number is beyond the column."""


def typed_schemas(app: AppSpec, settings: LakeSettings) -> dict[str, pa.Schema]:
    """The application's typed tables, key columns first. Empty for an application without any."""
    if app.name != _EVM:
        return {}
    from cardinal_ethereum.tables import schemas  # noqa: PLC0415 - the extra of one application

    return {
        name: pa.schema(
            [*KEYS, *(pa.field(column.name, column.type) for column in schemas.schema(name, settings.integers))]
        )
        for name in schemas.TABLES
    }


def append_schemas(app: AppSpec, settings: LakeSettings) -> dict[str, pa.Schema]:
    """The tables that tasks append to, in the order in which they are committed: typed tables, then payload."""
    return {**typed_schemas(app, settings), PAYLOAD: PAYLOAD_SCHEMA}


def typed_rows(
    app: AppSpec, payloads: Sequence[Payload], keys: pa.Table, settings: LakeSettings
) -> dict[str, pa.Table]:
    """The typed rows of some blocks with distinct hashes; row i of ``keys`` is block i's.

    Raises ApplicationError where a block does not decode.
    """
    if app.name != _EVM:
        return {}
    from cardinal_ethereum import frames  # noqa: PLC0415 - the extra of one application

    found = frames(payloads, integers=settings.integers, senders=settings.senders)  # type: ignore[arg-type] # checked by the options
    hashes = pa.array([f"0x{payload.hash.hex()}" for payload in payloads], pa.string())
    return {name: _with_keys(table, keys, hashes) for name, table in found.items()}


def unfit_blocks(tables: Mapping[str, pa.Table]) -> list[int]:
    """The numbers of blocks whose header has a time or an amount of gas beyond its column, which is null there."""
    if _BLOCKS not in tables:
        return []
    blocks = tables[_BLOCKS]
    nulls = [pc.is_null(blocks.column(name)) for name in _OF_EVERY_HEADER]
    unfit = pc.and_(pc.is_valid(blocks.column("state_root")), reduce(pc.or_, nulls))
    numbers: list[int] = blocks.column("number").filter(unfit).to_pylist()
    return numbers


def _with_keys(table: pa.Table, keys: pa.Table, hashes: pa.Array) -> pa.Table:
    block = pc.index_in(table.column(_BLOCK_HASH), value_set=hashes)
    columns = [*keys.take(block).columns, *table.columns]
    return pa.Table.from_arrays(columns, names=[*KEYS.names, *table.column_names])
