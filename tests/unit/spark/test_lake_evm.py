"""Typed tables of an Ethereum-like chain with reorgs: they say what the node's JSON-RPC says, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
import sqlglot
from click.testing import CliRunner

from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal_devkit.devchain import DevSettings
from cardinal_ethereum import frames, rlp
from cardinal_spark.cli import lake as commands
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import Snapshot, commit, decode, last_committed, read
from cardinal_spark.lake.catalog import statements
from cardinal_spark.lake.check import Check
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import compact
from cardinal_spark.lake.opened import OpenTables
from cardinal_spark.lake.reader import LakeReader, read_schema
from cardinal_spark.lake.sql import run_sql
from cardinal_spark.lake.state import state_at
from cardinal_spark.lake.tables import LakeSettings
from cardinal_spark.lake.typed import append_schemas, typed_rows
from cardinal_spark.rows import AppSpec, payload_content, row_payload
from cardinal_spark.testing import commit_batch, image, image_of, payload_row
from dev_rows import DevRows
from evm_typed import OTHER, address, block_of, call, wish
from recorded_blocks import RecordedBlock, cases, mainnet, own, real

if TYPE_CHECKING:
    from cardinal_devkit.devchain.blocks import DevBlock

SETTINGS = DevSettings(seed=5, blocks=24, reorg_rate=0.3)
MAINNET = AppSpec("evm", {"chain_id": 1}).text()
TOUCHED = [{"address": "0x" + "12" * 20, "storageKeys": ["0x" + "34" * 32, "0x" + "56" * 32]}]
TYPED = ("blocks", "transactions", "receipts", "logs", "withdrawals")


@pytest.fixture(scope="module")
def rows() -> DevRows:
    made = DevRows(SETTINGS)
    assert made.reorgs >= 3
    return made


@pytest.fixture(scope="module")
def lake(rows: DevRows, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The chain in batches of one to four updates and two tasks."""
    folder = str(tmp_path_factory.mktemp("evm") / "lake")
    updates = iter(rows.updates)
    batch_id = 0
    while batch := list(chain.from_iterable(islice(updates, batch_id % 4 + 1))):
        commit_batch(LakeLocation.of(folder), [batch[::2], batch[1::2]])
        batch_id += 1
    return folder


def current(lake: str, table: str, *order: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        read(lake, f"current_{table}").sort_by([(name, "ascending") for name in order]).to_pylist()
    )
    return found


def test_current_tables_equal_the_chain_of_the_node(lake: str, rows: DevRows) -> None:
    blocks = current(lake, "blocks", "number")
    assert [(b["number"], b["hash"], b["parent_hash"], b["gas_used"]) for b in blocks] == [
        (n.plan.number, n.block["hash"], n.block["parentHash"], int(n.block["gasUsed"], 16)) for n in rows.chain
    ]
    assert all(b["_block_hash"].hex() == b["hash"][2:] and b["_block_number"] == b["number"] for b in blocks)
    transactions = current(lake, "transactions", "block_number", "transaction_index")
    assert [(t["hash"], t["from_address"], t["value"]) for t in transactions] == [
        (t["hash"], t["from"].lower(), str(int(t["value"], 16))) for n in rows.chain for t in n.block["transactions"]
    ]
    receipts = [receipt for n in rows.chain for receipt in n.receipts]
    logs = current(lake, "logs", "block_number", "log_index")
    assert [(e["transaction_hash"], e["address"], e["topics"], e["data"]) for e in logs] == [
        (e["transactionHash"], e["address"].lower(), e["topics"], e["data"]) for r in receipts for e in r["logs"]
    ]
    assert logs
    found = current(lake, "receipts", "block_number", "transaction_index")
    assert [(r["transaction_hash"], r["status"]) for r in found] == [
        (r["transactionHash"], int(r["status"], 16)) for r in receipts
    ]


def test_every_table_follows_the_same_chain(lake: str, rows: DevRows) -> None:
    assert image(lake) == image_of(list(chain(*rows.updates)))
    snapshot = Snapshot.at(lake)
    assert set(snapshot.state.versions) == {*TYPED, "payload", "events"}
    hashes = {block.hash for block in rows.chain}
    for name in (*TYPED, "payload"):
        assert set(snapshot.scan(f"current_{name}", columns=["_block_hash"]).read_all().column(0).to_pylist()) <= hashes
    sql = "SELECT count(*) n FROM current_logs l JOIN current_blocks b ON l.block_hash = b.hash"
    assert run_sql(snapshot, sql).to_pylist() == [{"n": snapshot.scan("current_logs").read_all().num_rows}]


@pytest.mark.slow
@pytest.mark.parametrize("compacted", [False, True])
def test_a_filter_on_any_column_finds_what_is_there(
    lake: str, rows: DevRows, tmp_path: Path, *, compacted: bool
) -> None:
    """DuckDB and deltalake prune files by their bounds; neither a column without nor one of views may lose rows."""
    folder = str(shutil.copytree(lake, tmp_path / "lake"))
    if compacted:
        order = {"logs": ["address"], "transactions": ["to_address", "from_address"]}
        assert compact(LakeLocation.of(folder), min_files=2, z_order=order)
    snapshot = Snapshot.at(folder)
    for name in (*TYPED, "payload", "events", "canonical"):
        whole = snapshot.scan(name).read_all()
        for column in whole.schema.names:
            filled = whole.filter(whole.column(column).is_valid())
            kind = whole.schema.field(column).type
            if not filled.num_rows or pa.types.is_list(kind):
                continue
            value = filled.column(column)[filled.num_rows // 2]
            expected = whole.filter(pads.field(column) == value).num_rows
            assert counted(snapshot, name, f'"{column}" = {literal(value)}') == expected, f"{name}.{column}"
            if not compacted and not pa.types.is_binary(kind):
                stored = LakeLocation.of(folder).open(name).to_pyarrow_dataset()
                assert stored.to_table(filter=pads.field(column) == value).num_rows == expected, f"{name}.{column}"
    removed = sum(row.change < 0 for update in rows.updates for row in update)
    assert counted(snapshot, "events", "change < 0") == removed > 0


def counted(snapshot: Snapshot, table: str, where: str) -> int:
    sql = f"SELECT count(*) n FROM {table} WHERE {where}"  # noqa: S608 - names of this file
    found: int = run_sql(snapshot, sql).to_pylist()[0]["n"]
    return found


def literal(value: pa.Scalar) -> str:
    plain = value.as_py()
    if isinstance(plain, bytes):
        return f"from_hex('{plain.hex()}')"
    return str(plain) if isinstance(plain, int) else f"'{plain}'"


class Killed(Exception):  # noqa: N818 - what stands for a kill is no error of the lake
    """The driver dies after a transaction."""


@pytest.mark.slow
@pytest.mark.parametrize("last", [*TYPED, "payload", "events"])
@pytest.mark.parametrize("new_checkpoint", [False, True])
def test_a_kill_between_any_two_tables_leaves_no_trace(
    rows: DevRows, tmp_path: Path, last: str, *, new_checkpoint: bool
) -> None:
    def die(table: str) -> None:
        if table == last:
            raise Killed

    place = LakeLocation.of(str(tmp_path))
    half = len(rows.updates) // 2
    first, second, third = (
        list(chain(*part)) for part in (rows.updates[:3], rows.updates[3:half], rows.updates[half:])
    )
    commit_batch(place, [first])
    with pytest.raises(Killed):
        commit_batch(place, [second], on_commit=die)
    held = last_committed(str(tmp_path))
    assert held is not None
    if new_checkpoint:
        commit_batch(place, [[row for row in second + third if row.seq > held.seq]])
    else:
        commit_batch(place, [second + third])
    snapshot = Snapshot.of(place)
    for name in TYPED:
        assert snapshot.scan(name, columns=["_seq"]).read_all().num_rows == written(rows, name)
    assert image(str(tmp_path)) == image_of(first + second + third)


def written(rows: DevRows, name: str) -> int:
    """How many rows an uninterrupted write leaves in a table, removed blocks' included."""
    added = [row for update in rows.updates for row in update if row.change > 0]
    return sum(count(rows.mined[row.hash], name) for row in added)


def count(block: DevBlock, name: str) -> int:
    counts = {
        "blocks": 1,
        "transactions": len(block.block["transactions"]),
        "receipts": len(block.receipts),
        "logs": sum(len(receipt["logs"]) for receipt in block.receipts),
        "withdrawals": len(block.block.get("withdrawals", ())),
    }
    return counts[name]


def test_wide_numbers_are_kept_as_chosen_and_stay_so(rows: DevRows, tmp_path: Path) -> None:
    place = LakeLocation.of(str(tmp_path))
    commit_batch(place, rows.updates[:2], settings=LakeSettings("decimal"))
    assert str(Snapshot.of(place).schema("transactions").field("value").type) == "decimal128(38, 0)"
    with pytest.raises(LakeError, match="integers"):
        commit_batch(place, rows.updates[2:3])
    with pytest.raises(ConfigurationError, match="integers"):
        LakeSettings.of({"integers": "float"})
    with pytest.raises(ConfigurationError, match="senders"):
        LakeSettings.of({"senders": "maybe"})


def test_senders_can_be_left_out(rows: DevRows, tmp_path: Path) -> None:
    commit_batch(LakeLocation.of(str(tmp_path)), rows.updates, settings=LakeSettings(senders=False))
    assert set(read(str(tmp_path), "transactions").column("from_address").to_pylist()) == {None}


def test_a_block_that_does_not_decode_stops_the_batch(rows: DevRows, tmp_path: Path) -> None:
    payload = rows.payloads[rows.chain[0].hash]
    broken = {path: b"\xff" if path.endswith("/h") else value for path, value in payload.updates.items()}
    row = rows.updates[0][0]._replace(content=payload_content(replace(payload, updates=broken)))
    with pytest.raises(ApplicationError):
        commit_batch(LakeLocation.of(str(tmp_path)), [[row]])


@pytest.mark.parametrize("schema", ["eth", "delta.eth"])
def test_the_text_for_trino_is_its_sql_and_creates_the_schema_first(lake: str, schema: str) -> None:
    """Trino's grammar, by a parser; it reads a CALL as one command."""
    lines = [line for line in statements(Snapshot.at(lake), schema, "trino") if not line.startswith("--")]
    parsed = [sqlglot.parse_one(line, read="trino") for line in lines]
    assert isinstance(parsed[0], sqlglot.exp.Create)
    assert (parsed[0].kind, parsed[0].this.sql()) == ("SCHEMA", schema)
    calls = [line for line, tree in zip(lines, parsed, strict=True) if isinstance(tree, sqlglot.exp.Command)]
    assert len(calls) == len(TYPED) + 3
    prefix = "delta." if schema != "eth" else ""
    assert all(line.startswith(f"CALL {prefix}system.register_table(schema_name => 'eth',") for line in calls)
    views = [tree for tree in parsed[1:] if isinstance(tree, sqlglot.exp.Create)]
    assert {tree.this.sql() for tree in views} == {f"{schema}.current_{table}" for table in (*TYPED, "payload")}


@pytest.mark.parametrize("table", TYPED)
def test_a_printed_row_has_its_block_once_more_only_where_it_is_named(lake: str, table: str) -> None:
    def names(*options: str) -> list[str]:
        found = CliRunner().invoke(commands, ["query", lake, "--table", table, "--format", "csv", *options])
        return str(found.stdout).splitlines()[0].split(",")

    assert [name for name in names() if name.startswith("_")] == ["_seq", "_published_at"]
    assert {"block_number", "block_hash"} <= set(names())
    assert names("--columns", "_block_hash,block_number") == ["_block_hash", "block_number"]


def test_the_views_of_a_catalog_leave_out_the_rows_of_orphans(lake: str) -> None:
    """Over the Delta tables as they lie there, by the text that is given to a catalog."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    snapshot = Snapshot.at(lake)
    with duckdb.connect() as connection:
        views = []
        for line in statements(snapshot, "eth", "duckdb"):
            if "delta_scan" in line:  # an extension of DuckDB's, which is not here: delta-rs gives the same rows
                table = line.split("eth.")[1].split()[0]
                assert f"delta_scan('{lake}/{table}')" in line
                place = snapshot.location
                connection.register("given", place.dataset(table, place.open(table)).to_table())
                connection.execute(f"CREATE TABLE eth.{table} AS SELECT * FROM given")  # noqa: S608 - a table of ours
            else:
                views += [line] if " VIEW " in line else []
                connection.execute(line)
        assert len(views) == len(TYPED) + 1
        for table in (*TYPED, "payload"):
            count = f"SELECT count(*) FROM eth.{table}"  # noqa: S608 - the same
            seqs = f"SELECT _seq FROM eth.current_{table} ORDER BY 1"  # noqa: S608 - the same
            ((stored,),) = connection.execute(count).fetchall()
            found = connection.execute(seqs).fetchall()
            assert found == sorted((row,) for row in read(lake, f"current_{table}").column("_seq").to_pylist())
            assert stored > len(found) or table == "withdrawals"


def test_other_catalogs_get_statements_in_their_dialect(lake: str) -> None:
    snapshot = Snapshot.at(lake)
    spark, trino = (list(statements(snapshot, "main.eth", dialect)) for dialect in ("spark", "trino"))
    assert f"CREATE TABLE IF NOT EXISTS main.eth.logs USING delta LOCATION '{lake}/logs';" in spark
    assert (
        "CALL main.system.register_table(schema_name => 'eth', table_name => 'logs', "
        f"table_location => '{lake}/logs');" in trino
    )
    assert spark[-1] == trino[-1]
    for schema, dialect, named in (
        ("main.eth; DROP", "spark", "schema must be a name"),
        ("eth", "hive", "dialect must"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            list(statements(snapshot, schema, dialect))


@pytest.mark.parametrize("recorded", [*cases(own("geth-osaka-44")), *real(mainnet()[:1])])
def test_a_recorded_block_is_in_the_lake_as_the_node_gives_it(recorded: RecordedBlock, tmp_path: Path) -> None:
    app = AppSpec("evm", {"chain_id": recorded.chain.chain_id}).text()
    commit_batch(LakeLocation.of(str(tmp_path)), [[payload_row(recorded.payload(), app)]])
    found = current(str(tmp_path), "transactions", "transaction_index")
    assert [(t["hash"], t["from_address"]) for t in found] == [
        (t["hash"], t["from"].lower()) for t in recorded.block["transactions"]
    ]
    assert len(read(str(tmp_path), "current_logs")) == sum(len(receipt["logs"]) for receipt in recorded.receipts)


def test_a_lake_of_an_earlier_release_gains_the_new_columns(
    rows: DevRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old rows have no values there, for whoever reads them, and are right all the same."""
    place, later = LakeLocation.of(str(tmp_path)), {"block_date", "topic0", "topic1", "topic2", "topic3"}
    half = len(rows.updates) // 2
    with monkeypatch.context() as earlier:

        def schemas(*given: Any) -> dict[str, pa.Schema]:  # noqa: ANN401 - as the original
            found = append_schemas(*given)
            return {table: pa.schema([one for one in made if one.name not in later]) for table, made in found.items()}

        def typed(*given: Any) -> dict[str, pa.Table]:  # noqa: ANN401 - the same
            found = typed_rows(*given)
            return {table: made.drop_columns(list(later & set(made.column_names))) for table, made in found.items()}

        for where in (decode, commit):
            earlier.setattr(where, "append_schemas", schemas)
        earlier.setattr(decode, "typed_rows", typed)
        commit_batch(place, [list(chain.from_iterable(rows.updates[:half]))])
    commit_batch(place, [list(chain.from_iterable(rows.updates[half:]))])
    assert [str(found) for found in Check(Snapshot.of(place)).tables()] == []
    days = read(str(tmp_path), "current_logs").column("block_date")
    assert 0 < days.null_count < len(days)
    options = {"path": str(tmp_path), "table": "current_logs"}
    reader = LakeReader(options, read_schema(options))
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(batch.column("block_date").null_count for batch in batches) == days.null_count
    assert sum(batch.num_rows for batch in batches) == len(days)


@pytest.mark.parametrize("compacted", [False, True])
def test_lists_of_structures_come_out_of_a_lake_as_they_went_in(tmp_path: Path, *, compacted: bool) -> None:
    payload = block_of(
        call(1, gasPrice="0x9", accessList=TOUCHED),
        call(4, authorizationList=[wish(OTHER, 1, 0)], accessList=TOUCHED),
        call(2),
    )
    folder = str(tmp_path / "lake")
    commit_batch(LakeLocation.of(folder), [[payload_row(payload, MAINNET)]])
    if compacted:
        assert compact(LakeLocation.of(folder), min_files=1)
    wanted = frames([payload])["transactions"]
    found = read(folder, "current_transactions").sort_by("transaction_index")
    for column in wanted.column_names:
        assert found.column(column).to_pylist() == wanted.column(column).to_pylist(), column
    sql = """
        SELECT transaction_index AS at, authorization_list[1].authority AS authority, len(access_list) AS touched,
            access_list[1].storage_keys AS keys
        FROM current_transactions ORDER BY 1
    """
    keys = TOUCHED[0]["storageKeys"]
    assert run_sql(Snapshot.at(folder), sql).to_pylist() == [
        {"at": 0, "authority": None, "touched": 1, "keys": keys},
        {"at": 1, "authority": address(OTHER), "touched": 1, "keys": keys},
        {"at": 2, "authority": None, "touched": 0, "keys": None},
    ]


def test_numbers_that_no_column_holds_are_null_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    location, opened = LakeLocation.of(str(tmp_path / "lake")), OpenTables()
    app = AppSpec("evm", {"chain_id": 1}).text()
    headers = [{"timestamp": 1_761_317_324_396_005_796}, {"timestamp": 2**70}, {"gas_limit": 2**64}, {}]
    rows = [payload_row(header_block(number, **header), app, number) for number, header in enumerate(headers, 1)]
    states = [commit_batch(location, [[row]], opened=opened) for row in rows]
    assert [state.unfit for state in states if state is not None] == [0, 1, 1, 0]
    earlier = [state_at(location, seq) for seq in range(1, 6)]
    assert [state and (state.seq, state.number, state.unfit) for state in earlier] == [
        (1, 1, 0),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 0),
        None,
    ]
    blocks = read(location.root, "current_blocks").sort_by("number").to_pylist()
    assert [block["timestamp"] and block["timestamp"].year for block in blocks] == [2025, None, 2023, 2023]
    assert [block["gas_limit"] for block in blocks] == [30, 30, None, 30]
    kept = read(location.root, "payload").sort_by("_seq").to_pylist()
    assert [entry["value"] for entry in kept] == [
        header for row in rows for header in row_payload(row).updates.values()
    ]
    logged = [record.getMessage() for record in caplog.records if "no column holds" in record.getMessage()]
    why = (
        "block 2 has a time or an amount of gas that no column holds: it is null in the tables, and whole in payload; "
        "such blocks of this batch: 1; further ones are counted only"
    )
    assert logged == [why]


def header_block(number: int, *, timestamp: int = 1_700_000_000, gas_limit: int = 30) -> Payload:
    """A block of a header alone."""
    one = bytes(31) + bytes((number,))
    numbers = [rlp.minimal_bytes(value) for value in (1, number, gas_limit, 1, timestamp)]
    header = rlp.encode([one, one, bytes(20), one, one, one, bytes(256), *numbers, b"", one, bytes(8)])
    parent = bytes(31) + bytes((number - 1,))
    return Payload(number, one, parent, number, {f"c/1/b/{one.hex()}/h": header})
