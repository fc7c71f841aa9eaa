"""The tables elsewhere: the committed columns, and pandas, Polars and DuckDB on the same memory."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cardinal.apps.evm import frames, payload_from_rpc
from cardinal.apps.evm.tables.schemas import INTEGERS, TABLES, schema, wide_columns

COMMITTED = Path(__file__).parents[2] / "schemas/evm-tables.json"
FIXTURES = Path(__file__).parents[3] / "shared/fixtures/mainnet"
WIDE = {"string": pa.string(), "decimal": pa.decimal128(38, 0), "binary": pa.binary()}
# ethereum-etl 2.4.2, ethereumetl/jobs/exporters: what it writes of each item.
ETL = {
    "blocks": "number hash parent_hash nonce sha3_uncles logs_bloom transactions_root state_root receipts_root miner "
    "difficulty total_difficulty size extra_data gas_limit gas_used timestamp transaction_count base_fee_per_gas "
    "withdrawals_root blob_gas_used excess_blob_gas",
    "transactions": "hash nonce block_hash block_number transaction_index from_address to_address value gas gas_price "
    "input block_timestamp max_fee_per_gas max_priority_fee_per_gas transaction_type max_fee_per_blob_gas "
    "blob_versioned_hashes",
    "receipts": "transaction_hash transaction_index block_hash block_number cumulative_gas_used gas_used "
    "contract_address status effective_gas_price blob_gas_used",
    "logs": "log_index transaction_hash transaction_index block_hash block_number address data topics",
}


def committed() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(COMMITTED.read_text())["tables"]
    return found


@pytest.mark.parametrize("integers", INTEGERS)
@pytest.mark.parametrize("table", TABLES)
def test_the_committed_columns_are_those_of_the_tables(table: str, integers: str) -> None:
    columns = schema(table, integers)
    said = committed()[table]
    assert list(columns.names) == [column["name"] for column in said]
    for field, column in zip(columns, said, strict=True):
        wide = column["type"] == "wide"
        assert wide == (field.name in wide_columns(table))
        assert (field.type == WIDE[integers]) if wide else (str(field.type) == column["type"])
        assert field.nullable == column["nullable"]
        assert re.search(r"\w{3}", column["about"])


@pytest.mark.parametrize("table", ETL)
def test_the_columns_of_ethereum_etl_are_there_and_the_others_are_marked(table: str) -> None:
    ours = {column["name"] for column in committed()[table] if column.get("ours")}
    names = {column["name"] for column in committed()[table]}
    assert names - ours == set(ETL[table].split())


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    if not FIXTURES.is_dir():
        pytest.skip("the mainnet fixtures are not beside the project")
    case = json.loads(gzip.decompress((FIXTURES / "14000000.json.gz").read_bytes()))
    case["block"]["totalDifficulty"] = "0x1"
    payload = payload_from_rpc(case["block"], case["receipts"], chain_id=1)
    return frames([payload], senders=False)


def addresses(column: pa.ChunkedArray | pa.Array) -> set[int]:
    """Where the memory of a column is."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return {buffer.address for chunk in chunks for buffer in chunk.buffers() if buffer is not None and buffer.size}


def test_pandas_takes_the_tables_as_they_are_in_memory(tables: dict[str, pa.Table]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for name, table in tables.items():
        frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
        assert list(frame.columns) == table.column_names
        for column in table.column_names:
            there = addresses(pa.chunked_array(frame[column].array._pa_array))
            assert there == addresses(table[column]), (name, column)
        assert pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False).equals(table)


def test_polars_takes_the_tables_and_shares_numbers_and_times(tables: dict[str, pa.Table]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    table = tables["transactions"]
    frame = polars.from_arrow(table)
    assert frame.columns == table.column_names
    assert frame.to_arrow().cast(table.schema).equals(table)
    # Texts and lists have another layout in Polars (views, long offsets); what has the same is not copied.
    for column in ("nonce", "gas", "block_number", "block_timestamp"):
        assert addresses(frame[column].to_arrow()) <= addresses(table[column]), column
    largest = frame.select(polars.col("gas").max()).item()
    assert largest == max(table["gas"].to_pylist())


def test_tables_of_several_chunks_are_shared_too(tables: dict[str, pa.Table]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    polars = pytest.importorskip("polars", reason="polars is not installed")
    one = tables["transactions"]
    table = pa.concat_tables([one, one.slice(0, 7)])
    assert table["gas"].num_chunks > 1
    frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
    for column in table.column_names:
        assert addresses(pa.chunked_array(frame[column].array._pa_array)) == addresses(table[column]), column
    shared = polars.from_arrow(table, rechunk=False)  # by default Polars puts the chunks together
    assert shared["gas"].n_chunks() == table["gas"].num_chunks
    for column in ("nonce", "gas", "block_number", "block_timestamp"):
        there = {at for chunk in shared[column].get_chunks() for at in addresses(chunk.to_arrow())}
        assert there <= addresses(table[column]), column


def test_duckdb_queries_the_tables_where_they_are(tables: dict[str, pa.Table]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    large = {name: pa.concat_tables([table] * 20).combine_chunks() for name, table in tables.items()}
    with duckdb.connect() as database:
        before = pa.total_allocated_bytes()
        for name, table in large.items():
            database.register(f"large_{name}", table)
        # Registering makes a few small things, and no copy of any of the columns.
        assert pa.total_allocated_bytes() - before < sum(table.nbytes for table in large.values()) / 10
        for name, table in tables.items():
            database.register(name, table)
        query = """
            SELECT t.hash, count(*) AS logs FROM transactions t JOIN logs l ON l.transaction_hash = t.hash
            GROUP BY t.hash ORDER BY logs DESC, t.hash LIMIT 1
        """
        found, logs = database.execute(query).fetchone()
        of_each = tables["logs"]["transaction_hash"].to_pylist()
        assert logs == max(map(of_each.count, set(of_each)))
        assert of_each.count(found) == logs
        (when,) = database.execute("SELECT max(block_timestamp)::TIMESTAMP::VARCHAR FROM blocks").fetchone()
        assert when.startswith("2022-01-13 22:59")
