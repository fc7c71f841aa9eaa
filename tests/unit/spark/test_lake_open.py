"""A lake opened without Spark."""

from __future__ import annotations

import copy
import sys
from itertools import chain
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

from cardinal.errors import ConfigurationError, MissingExtraError
from cardinal_devkit.devchain import DevSettings
from cardinal_spark import open_lake
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import read
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import compact
from cardinal_spark.lake.seqs import SeqRuns
from cardinal_spark.testing import commit_batch
from dev_rows import DevRows

LOGS_OF = "select address, count(*) n from current_logs group by 1 order by 2 desc, 1 limit 1"


@pytest.fixture(scope="module")
def rows() -> DevRows:
    return DevRows(DevSettings(seed=5, blocks=12, reorg_rate=0.3))


@pytest.fixture(scope="module")
def lake(rows: DevRows, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chain with reorgs, some files written by delta-rs and some by tasks."""
    location = LakeLocation.of(str(tmp_path_factory.mktemp("open") / "lake"))
    half = len(rows.updates) // 2
    for update in rows.updates[:half]:
        commit_batch(location, [update])
    compact(location, min_files=2)
    commit_batch(location, [list(chain.from_iterable(rows.updates[half:]))])
    return location.root


def test_datasets_have_the_rows_of_the_state(lake: str) -> None:
    opened = open_lake(lake)
    for table in opened.tables:
        for heights in ({}, {"from_block": 4}, {"to_block": 6}, {"from_block": 4, "to_block": 6}, {"from_block": 999}):
            lazy = opened.table(table, **heights)
            due = read(lake, table, **heights)  # type: ignore[arg-type] # heights alone
            order = [(name, "ascending") for name in due.column_names if not pa.types.is_nested(due[name].type)]
            assert isinstance(lazy, pads.Dataset)
            assert lazy.to_table().sort_by(order).equals(due.sort_by(order))


def test_a_lake_names_its_place_its_head_and_the_state_that_is_read(lake: str) -> None:
    opened, ledger = open_lake(lake), read(lake, "canonical").sort_by("number").to_pylist()
    assert repr(opened).startswith(f"<Lake {lake}, block {ledger[-1]['number']} 0x{ledger[-1]['hash'][:5].hex()}…, ")
    assert repr(opened).endswith(f" {len(opened.tables)} tables>")
    assert ", as of seq 3, " in repr(open_lake(lake, as_of_seq=3))


def test_filters_of_arrow_and_duckdb_keep_to_the_chain(lake: str) -> None:
    opened = open_lake(lake)
    [top] = opened.sql(LOGS_OF).to_pylist()
    logs = opened.table("current_logs")
    assert logs.to_table(filter=pc.field("address") == top["address"]).num_rows == top["n"]
    found = duckdb.execute("select count(*) from logs where address = ?", [top["address"]]).fetchall()
    assert found == [(top["n"],)]
    assert opened.table("logs").count_rows() > logs.count_rows()


def test_rows_of_a_query_are_an_arrow_table_a_pandas_and_a_polars_frame(lake: str) -> None:
    rows = open_lake(lake).sql("select number, hash from current_blocks order by number")
    numbers = rows.arrow()["number"].to_pylist()
    assert rows.num_rows == len(rows) == len(numbers) > 0
    assert rows["number"].to_pylist() == rows.df()["number"].tolist() == rows.pl()["number"].to_list() == numbers
    assert pa.table(rows).equals(rows.table)
    assert copy.copy(rows).column_names == ["number", "hash"]
    with pytest.raises(AttributeError):
        _ = rows.nothing


def test_a_lake_stays_as_it_was_opened(rows: DevRows, tmp_path_factory: pytest.TempPathFactory) -> None:
    location = LakeLocation.of(str(tmp_path_factory.mktemp("grows") / "lake"))
    half = len(rows.updates) // 2
    commit_batch(location, [list(chain.from_iterable(rows.updates[:half]))])
    opened = open_lake(location.root)
    before = opened.table("current_logs").to_table()
    count = "select count(*) n, max(block_number) m from current_logs"
    shown = opened.sql(count).to_pylist()
    commit_batch(location, [list(chain.from_iterable(rows.updates[half:]))])
    assert opened.table("current_logs").to_table().equals(before)
    assert opened.sql(count).to_pylist() == shown != open_lake(location.root).sql(count).to_pylist()
    number = shown[0]["m"] - 1
    past = open_lake(location.root, as_of_block=number)
    assert past.sql("select max(number) m from canonical").to_pylist() == [{"m": number}]
    assert past.table("canonical").count_rows() == past.table("current_blocks").count_rows()


def test_what_is_missing_is_named(lake: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(LakeError, match="no lake"):
        open_lake(str(tmp_path_factory.mktemp("none")))
    with pytest.raises(LakeError, match="no table 'current_log'"):
        open_lake(lake).table("current_log")
    with pytest.raises(LakeError, match="DuckDB refused"):
        open_lake(lake).sql("select nothing")
    with pytest.raises(ConfigurationError, match="choose one"):
        open_lake(lake, as_of_seq=1, as_of_block=1)


@pytest.mark.parametrize(("package", "named"), [("deltalake", "tables"), ("duckdb", "tables"), ("polars", "polars")])
def test_a_missing_package_is_named(lake: str, monkeypatch: pytest.MonkeyPatch, package: str, named: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    kind = ConfigurationError if package == named else MissingExtraError
    with pytest.raises(kind, match=rf"pip install .*{named}"):
        open_lake(lake).sql("select 1").pl()


@pytest.mark.parametrize("seqs", [[], [3], [1, 2, 3], [1, 2, 5, 9, 10]])
def test_runs_as_a_filter_are_the_runs(seqs: list[int]) -> None:
    every: dict[str, Any] = {"s": list(range(12))}
    kept = pads.dataset(pa.table(every)).to_table(filter=SeqRuns.of(np.array(seqs, np.int64)).on("s"))
    assert kept["s"].to_pylist() == seqs
