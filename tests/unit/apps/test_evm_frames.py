"""Arrow tables of blocks: columns, types, chunks, payloads with some parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from coincurve import PrivateKey

from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams.payload import MissingPayload, Payload
from cardinal_ethereum import Abi, decode, decoded_frames, frames, rlp
from cardinal_ethereum.tables.schemas import INTEGERS, TABLES, schema, wide_columns
from evm_blocks import Json, data, minimal
from evm_rows import block_row, tables_of
from evm_typed import KEY, OTHER, address, block_of, call, wish
from recorded_blocks import RecordedBlock, cases, geth, mainnet, own, real, recordings

SAMPLE = own("geth-london-29")
AUTHORITY = PrivateKey(b"\3" * 32)
"""Who signs wishes in the own recordings."""


def published(one: RecordedBlock, *kinds: str) -> Payload:
    """A recorded block's payload, of the values that the reference has; with kinds (`h`, `t`, …) only those parts."""
    updates = {
        path: value
        for path, value in one.values.items()
        if not kinds or path.split("/")[4:5] in [[kind] for kind in kinds]
    }
    hashes = data(one.block["hash"]), data(one.block["parentHash"])
    return Payload(one.number, *hashes, one.weight, updates)


def rows_of(one: RecordedBlock) -> dict[str, list[Json]]:
    """The rows of what the node printed, with what it does not print: totals, old statuses, who signed wishes."""
    receipts = [{"status": "0x0", **receipt} for receipt in one.receipts]
    tables = tables_of(one.block | {"totalDifficulty": hex(one.total)}, receipts)
    for row in tables["transactions"]:
        for entry in row["authorization_list"] or ():
            entry["authority"] = address(AUTHORITY)
    if one.name.startswith("anvil") and "withdrawals" in one.block:
        tables["blocks"][0]["size"] += 1  # anvil leaves the empty list of withdrawals out of its size
    return tables


@pytest.mark.parametrize("client", recordings())
def test_recorded_blocks_become_the_rows_of_json_rpc(client: Callable[[], list[RecordedBlock]]) -> None:
    found = client()
    each = [rows_of(one) for one in found]
    expected = {name: [row for tables in each for row in tables[name]] for name in TABLES}
    tables = frames([published(one) for one in found])
    assert list(tables) == list(TABLES)
    for name, table in tables.items():
        assert table.schema.equals(schema(name))
        assert table.to_pylist() == [{column: row[column] for column in table.column_names} for row in expected[name]]


SAMPLES = pytest.mark.parametrize("recorded", [*cases(SAMPLE), *real(mainnet()[:1])])


@SAMPLES
def test_a_payload_of_a_header_alone_gives_a_row_with_nulls(recorded: RecordedBlock) -> None:
    whole = block_row(recorded.block)
    tables = frames([published(recorded, "h")])
    assert tables["blocks"].to_pylist() == [
        {**whole, "total_difficulty": None, "size": None, "transaction_count": None},
    ]
    assert all(tables[name].num_rows == 0 for name in TABLES[1:])
    assert all(tables[name].schema.equals(schema(name)) for name in TABLES)


@SAMPLES
def test_parts_without_the_others_keep_their_rows(recorded: RecordedBlock) -> None:
    logs = frames([published(recorded, "l")], tables=["logs", "blocks"])
    count = sum(len(receipt["logs"]) for receipt in recorded.receipts)
    assert count > 5
    assert list(logs) == ["logs", "blocks"]
    assert logs["logs"].num_rows == count
    assert logs["logs"].column("transaction_hash").null_count == count
    assert logs["logs"].column("block_timestamp").null_count == count
    assert logs["blocks"].column("parent_hash").to_pylist() == [recorded.block["parentHash"]]
    sent = frames([published(recorded, "t")], tables=["transactions"])["transactions"].to_pylist()
    assert [row["gas_price"] is None for row in sent] == [row["transaction_type"] == 2 for row in sent]
    assert {row["transaction_type"] for row in sent} >= {0, 2}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("integers", ["string", "decimal", "binary"])
def test_no_column_is_a_float_and_every_time_has_its_zone(table: str, integers: str) -> None:
    columns = schema(table, integers)
    assert columns.names[:3] == ["block_number", "block_hash", "block_timestamp"]
    assert not any(pa.types.is_floating(field.type) for field in columns)
    assert all(field.type == pa.timestamp("us", "UTC") for field in columns if pa.types.is_timestamp(field.type))
    assert frames([], integers=integers, tables=[table])[table].schema.equals(columns)


HASH = bytes(range(32))
BLOCK = f"c/1/b/{HASH.hex()}"


def made(**values: bytes) -> Payload:
    return Payload(1, HASH, HASH, 1, {f"{BLOCK}/{path.replace('_', '/')}": value for path, value in values.items()})


def legacy(value: int, nonce: int = 0) -> bytes:
    return rlp.encode(
        [nonce.to_bytes(9, "big").lstrip(b"\0"), b"", b"", b"", value.to_bytes(32, "big").lstrip(b"\0"), b""]
        + [b"\x1b"] * 3
    )


def test_a_number_too_wide_for_its_column_is_null_and_one_for_chosen_digits_an_error_that_names_it() -> None:
    assert frames([made(t_0=legacy(10**38 - 1))], integers="decimal")["transactions"].num_rows == 1
    with pytest.raises(ApplicationError, match=r"transactions\.value.*'string' or 'binary'"):
        frames([made(t_0=legacy(10**38))], integers="decimal")
    assert frames([made(t_0=legacy(0, nonce=2**63))])["transactions"].column("nonce").null_count == 1


def test_senders_are_left_out_where_nobody_wants_them() -> None:
    payload = made(t_0=legacy(1))
    assert frames([payload])["transactions"].column("from_address").null_count == 0
    assert frames([payload], senders=False)["transactions"].column("from_address").null_count == 1


def test_wrong_tables_and_ways_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no table 'trace'") as wrong:
        frames([], tables=["trace"])
    assert wrong.value.setting == "tables"
    with pytest.raises(ConfigurationError, match="not 'float'") as wrong:
        frames([], integers="float")
    assert wrong.value.setting == "integers"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("t_0", b"", "no bytes"),
        ("t_0", b"\x80", "neither a type nor a list"),
        ("t_0", b"\0\xc0", "legacy transaction is a list"),
        ("t_0", b"\x02\xc0", "list of 12"),
        ("t_00", legacy(1), "no index"),
        ("t_0x1", legacy(1), "no index"),
        ("h", rlp.encode([]), "15 fields"),
        ("d", b"\0", "first not zero"),
        ("w", rlp.encode([[b""]]), "list of 4"),
        ("r_0", b"\x80", "list of 7"),
        ("l_0_0", rlp.encode([bytes(19), [], b""]), "20 bytes"),
    ],
)
def test_values_of_another_type_than_their_path_are_refused(path: str, value: bytes, reason: str) -> None:
    with pytest.raises(ApplicationError, match=reason) as refused:
        decode(made(**{path: value}))
    assert refused.value.path == f"{BLOCK}/{path.replace('_', '/')}"


def test_an_uncle_missing_between_others_is_refused() -> None:
    header = rlp.encode(
        [bytes(32)] * 2 + [bytes(20)] + [bytes(32)] * 3 + [bytes(256)] + [b""] * 6 + [bytes(32), bytes(8)]
    )
    assert len(decode(made(u_0=header, u_1=header)).uncles) == 2
    with pytest.raises(ApplicationError, match="lacks an uncle"):
        decode(made(u_0=header, u_2=header))


@pytest.mark.process
def test_the_application_is_imported_without_its_extras() -> None:
    probe = (
        "import cardinal_ethereum, sys; "
        "raise SystemExit(str({'pyarrow', 'coincurve', 'tiny_keccak'} & set(sys.modules) or '') or 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


@pytest.mark.process
@pytest.mark.parametrize(
    ("absent", "call", "extra"),
    [("pyarrow", "evm.frames", "arrow"), ("tiny_keccak", "evm.decode", "evm")],
)
def test_a_missing_extra_is_named(absent: str, call: str, extra: str) -> None:
    probe = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "import cardinal_ethereum as evm\nfrom cardinal.errors import MissingExtraError\n"
        f"try: {call}\nexcept MissingExtraError as error: raise SystemExit(error.extra != {extra!r})\n"
        "raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


# --- the tables of what forks brought: access lists, blobs and their price, authorizations; and tables of man ---


def row(payload: Payload, table: str = "transactions", **how: Any) -> Json:  # noqa: ANN401 -- options of frames
    (found,) = frames([payload], tables=[table], **how)[table].to_pylist()
    shown: Json = found
    return shown


def test_an_authorization_names_its_account() -> None:
    wishes = [wish(OTHER, 1, 0), wish(KEY, 0, 2**64 - 1), wish(KEY, 2**256 - 1, 7)]
    payload = block_of(call(4, authorizationList=wishes))
    found = row(payload)["authorization_list"]
    assert [each["authority"] for each in found] == [address(OTHER), address(KEY), address(KEY)]
    assert [(each["chain_id"], each["nonce"], each["y_parity"]) for each in found] == [
        tuple(str(int(shown[name], 16)) for name in ("chainId", "nonce", "yParity")) for shown in wishes
    ]
    assert [(each["address"], each["r"], each["s"]) for each in found] == [
        (shown["address"], shown["r"], shown["s"]) for shown in wishes
    ]
    assert [each["authority"] for each in row(payload, senders=False)["authorization_list"]] == [None] * 3
    assert row(payload, "receipts")["blob_gas_used"] is None


@pytest.mark.parametrize("changes", [{"yParity": "0x2"}, {"yParity": "0xff"}, {"r": "0x0"}, {"s": hex(2**256 - 1)}])
def test_an_authorization_without_a_signature_is_nobodys(changes: Json) -> None:
    """It may stand in a block: the protocol passes over it."""
    payload = block_of(call(4, authorizationList=[wish(OTHER, 1, 0, **changes)]))
    (entry,) = decode(payload).transactions[0].authorizations
    assert entry.authority is None
    assert row(payload)["authorization_list"][0]["authority"] is None


# --- many blocks, and some of their tables ----------------------------------------------------------------------------


def large(number: int, transactions: int) -> Payload:
    """A block of some transactions of 100 kB."""
    raw = rlp.encode([minimal(number), b"\1", b"\1", bytes(20), b"", bytes(100_000), b"\x1b", b"\1", b"\1"])
    own = f"c/1/b/{number:064x}"
    updates = {f"{own}/t/{index:x}": raw for index in range(transactions)}
    return Payload(number, number.to_bytes(32, "big"), bytes(32), number, updates)


def test_blocks_that_come_one_by_one_give_the_rows_that_they_give_together() -> None:
    blocks = [large(number, 3) for number in range(100)]
    taken: list[int] = []

    def coming() -> Any:  # noqa: ANN401 -- a generator of payloads
        for each in blocks:
            taken.append(each.number)
            yield each

    table = frames(coming(), senders=False, tables=["transactions"])["transactions"]
    assert taken == list(range(100))
    assert table.column("block_number").to_pylist() == [number for number in range(100) for _ in range(3)]
    assert table.column("nonce").to_pylist() == table.column("block_number").to_pylist()
    assert table.column("nonce").num_chunks > 1  # a table of so many bytes was not made at once
    assert table.combine_chunks().schema.equals(schema("transactions"))


@pytest.mark.slow
def test_what_is_held_beside_the_tables_does_not_grow_with_the_blocks() -> None:
    def peak(blocks: int) -> int:
        tracemalloc.start()  # which sees Python's objects, and not what Arrow holds
        try:
            table = frames((large(number, 3) for number in range(blocks)), senders=False)["transactions"]
            assert table.num_rows == 3 * blocks
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(240) < 1.3 * peak(60)


@pytest.mark.parametrize("tables", [None, ["blocks"]])
def test_a_block_whose_content_cannot_be_had_is_refused_by_number_and_hash(tables: list[str] | None) -> None:
    missing = MissingPayload(7, b"\xab" * 32)
    for call_of in (
        lambda: decode(missing),
        lambda: frames([block_of(), missing], tables=tables),
        lambda: decoded_frames([missing], Abi([])),
    ):
        with pytest.raises(ApplicationError, match=r"block 7 \(0xabab.*skip it, or.*on_incomplete='halt'"):
            call_of()


def test_only_the_parts_that_a_table_is_made_of_are_looked_at() -> None:
    payload = block_of(call(2))
    own = f"c/1/b/{payload.hash.hex()}"
    damaged = Payload(1, payload.hash, payload.parent, 1, {**payload.updates, f"{own}/r/0": b"?", f"{own}/l/0/0": b"?"})
    whole = frames([payload])
    for table in ("blocks", "transactions", "withdrawals"):
        assert frames([damaged], tables=[table])[table].equals(whole[table])
    for table in ("receipts", "logs"):
        with pytest.raises(ApplicationError, match=own):
            frames([damaged], tables=[table])


def test_every_table_alone_is_the_same_as_among_the_others() -> None:
    payloads = [
        block_of(call(2), call(4, authorizationList=[wish(OTHER, 1, 0)])),
        block_of(),
        block_of(call(1, gasPrice="0x9")),
    ]
    whole = frames(payloads)
    for table in TABLES:
        assert frames(payloads, tables=[table]) == {table: whole[table]}
    assert [whole["blocks"].column(name).to_pylist() for name in ("transaction_count",)] == [[2, 0, 1]]
    assert whole["blocks"].column("size").null_count == 0
    assert pa.types.is_struct(whole["transactions"].schema.field("access_list").type.value_type)


# --- the tables elsewhere: the committed columns, and pandas, Polars and DuckDB on the same memory ---


COMMITTED = Path(__file__).parents[3] / "schemas/evm-tables.json"
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
    return frames([one.payload() for one in geth()], senders=False)


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
        assert when == "2020-09-13 12:34:20", "UTC: ten seconds for each of 46 blocks from 1,600,000,000 on"
