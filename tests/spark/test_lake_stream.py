"""The sink and the reader in a real Spark: rows come from files, one file a batch."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.pandas.types import from_arrow_schema

from cardinal_ethereum import frames
from cardinal_spark.lake import read
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.pipeline import failure
from cardinal_spark.rows import RAW_ARROW, AppSpec, raw_batch
from cardinal_spark.testing import commit_batch, image, image_of, payload_row, script
from evm_typed import OTHER, address, block_of, call, wish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cardinal_spark.rows import RawRow

pytestmark = pytest.mark.spark


class Files:
    """A stream of raw rows: every file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._inbox = folder / "inbox"
        self._inbox.mkdir()
        self._count = 0
        self.lake = str(folder / "lake")
        self.checkpoint = folder / "checkpoint"

    def put(self, *updates: Sequence[RawRow]) -> None:
        for update in updates:
            self._count += 1
            name = f"{self._count:03}.parquet"
            pq.write_table(pa.Table.from_batches([raw_batch(update)]), self._inbox / f".{name}")
            os.utime(self._inbox / f".{name}", (self._count, self._count))  # the file source goes by time
            (self._inbox / f".{name}").rename(self._inbox / name)

    def run(self) -> None:
        """Everything that is there, batch by batch."""
        rows = self._spark.readStream.schema(from_arrow_schema(RAW_ARROW)).option("maxFilesPerTrigger", 1)
        writer = rows.parquet(str(self._inbox)).writeStream.format("cardinal_lake")
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        query = writer.start(self.lake)
        try:
            assert query.awaitTermination(180)
        finally:
            query.stop()


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


def test_a_stream_becomes_a_lake_and_a_replayed_batch_changes_nothing(spark: SparkSession, files: Files) -> None:
    updates = script("1a 2a 3a | -3a -2a 2b | 3b 4b | -4b -3b -2b 2a 3a 4a 5a | -5a 5c")
    files.put(*updates[:4])
    files.run()
    assert image(files.lake) == image_of(list(chain(*updates[:4])))

    newest = max((files.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as if Spark had died after our commit and before its own
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    files.put(updates[4])
    files.run()
    rows = list(chain(*updates))
    assert image(files.lake) == image_of(rows)

    lake = spark.read.format("cardinal_lake")
    current = lake.option("table", "current_payload").load(files.lake)
    assert current.toArrow().sort_by("_seq").num_rows == len(image_of(rows).current)
    assert {
        row["_block_number"]: row["count"] for row in current.groupBy("_block_number").count().collect()
    } == dict.fromkeys(range(1, 6), 5)
    ranged = lake.option("fromBlock", 2).option("toBlock", 3).option("columns", "_block_number,path")
    found = ranged.option("table", "current_payload").load(files.lake)
    assert found.columns == ["_block_number", "path"]
    assert {row["_block_number"] for row in found.collect()} == {2, 3}
    assert ranged.option("columns", "").option("table", "payload").load(files.lake).count() == 6 * 5
    for table in ("events", "canonical"):
        whole = spark.read.format("cardinal_lake").option("table", table).load(files.lake).toArrow()
        assert whole.num_rows == read(files.lake, table).num_rows
        assert whole.column_names == read(files.lake, table).column_names
    times = spark.read.format("cardinal_lake").option("table", "events").load(files.lake).select("block_time")
    assert times.toArrow().column(0).cast(pa.int64())[0].as_py() % 1_000_000 == 0


def test_what_stops_a_query_is_one_sentence(files: Files) -> None:
    [first], [other] = script("1a 2a"), script("1a 2a 3a", lineage="lineage-2")
    files.put(first, other)
    with pytest.raises(StreamingQueryException) as caught:
        files.run()
    sentence = str(failure(str(caught.value)))
    assert "holds the lineage 'lineage-1'" in sentence
    assert "\n" not in sentence
    assert image(files.lake) == image_of(first)


def test_a_table_that_is_not_there_is_named(spark: SparkSession, files: Files) -> None:
    files.put(*script("1a"))
    files.run()
    with pytest.raises(AnalysisException, match="it has events, payload, canonical, current_payload"):
        spark.read.format("cardinal_lake").option("table", "logs").load(files.lake)
    with pytest.raises(AnalysisException, match="needs the option table"):
        spark.read.format("cardinal_lake").load(files.lake)


def test_rows_that_are_not_raw_are_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.format("cardinal_lake").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises((AnalysisException, StreamingQueryException), match="table=raw"):
        query.trigger(availableNow=True).start(str(tmp_path / "lake")).awaitTermination(180)


@pytest.mark.slow
def test_spark_reads_lists_of_structures(spark: SparkSession, tmp_path: Path) -> None:
    """Access lists and authorizations of transactions."""
    touched = [{"address": "0x" + "12" * 20, "storageKeys": ["0x" + "34" * 32]}]
    payload = block_of(call(4, authorizationList=[wish(OTHER, 1, 0)], accessList=touched), call(2))
    folder = str(tmp_path / "lake")
    commit_batch(LakeLocation.of(folder), [[payload_row(payload, AppSpec("evm", {"chain_id": 1}).text())]])
    table = spark.read.format("cardinal_lake").option("table", "current_transactions").load(folder)
    wanted = frames([payload])["transactions"]
    found = table.toArrow().sort_by("transaction_index")
    for column in ("access_list", "authorization_list", "blob_versioned_hashes", "mint"):
        assert found.column(column).to_pylist() == wanted.column(column).to_pylist(), column
    authorities = table.selectExpr("inline(authorization_list)").select("authority").collect()
    assert [each["authority"] for each in authorities] == [address(OTHER)]
