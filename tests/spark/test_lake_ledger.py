"""The lake's ledger as a stream of its own, and a lake as it was, in Spark."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from cardinal.errors import ConfigurationError
from cardinal_spark.errors import LakeError
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.reader import read_schema
from cardinal_spark.lake.stream import LedgerReader
from cardinal_spark.testing import Script, commit_batch, script

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cardinal_spark.rows import RawRow

pytestmark = pytest.mark.slow

UPDATES = "1a 2a 3a | -3a -2a 2b 3b | 4b | -4b 4c 5c"


def told(rows: Sequence[RawRow]) -> list[tuple[int, int, int, bytes]]:
    return [(row.seq, row.change, row.number, row.hash) for row in rows]


def stream(spark: SparkSession, lake: Path, folder: Path, **options: str) -> list[list[tuple[int, int, int, bytes]]]:
    """The batches that a query on the ledger gets until it has what is there."""
    batches: list[list[tuple[int, int, int, bytes]]] = []

    def take(frame: DataFrame, _: int) -> None:
        rows = frame.select("seq", "change", "number", "hash").collect()
        batches.append(sorted((row[0], row[1], row[2], bytes(row[3])) for row in rows))

    reader = spark.readStream.format("cardinal_lake").options(path=str(lake), table="events", **options)
    writer = reader.load().writeStream.option("checkpointLocation", str(folder)).foreachBatch(take)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return batches


def test_a_second_job_follows_the_ledger(spark: SparkSession, tmp_path: Path) -> None:
    lake, folder = tmp_path / "lake", tmp_path / "checkpoint"
    first, second, *rest = script(UPDATES)
    commit_batch(LakeLocation.of(str(lake)), [[*first, *second]])
    assert stream(spark, lake, folder) == [told([*first, *second])]
    for update in rest:
        commit_batch(LakeLocation.of(str(lake)), [update])
    assert stream(spark, lake, folder) == [told(list(chain(*rest)))]


def ledger(lake: Path, **options: str) -> LedgerReader:
    given = {"path": str(lake), "table": "events", **options}
    return LedgerReader(given, read_schema(given))


def numbers_of(reader: LedgerReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The seqs of a batch."""
    parts = reader.partitions(start, end)
    return [seq for part in parts for batch in reader.read(part) for seq in batch.column("seq").to_pylist()]


@pytest.mark.parametrize(("start", "seqs"), [("earliest", 11), ("latest", 0), ("6", 6), ("40", 0)])
def test_a_stream_of_the_ledger_begins_at_the_requested_start(tmp_path: Path, start: str, seqs: int) -> None:
    rows = list(chain(*script(UPDATES)))
    commit_batch(LakeLocation.of(str(tmp_path)), [rows])
    reader = ledger(tmp_path, startingOffsets=start)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert numbers_of(reader, begin, end) == [row.seq for row in rows][len(rows) - seqs :]
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_a_lake_that_was_recreated_is_refused(tmp_path: Path) -> None:
    commit_batch(LakeLocation.of(str(tmp_path / "one")), script("1a 2a"))
    before = ledger(tmp_path / "one")
    end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    (tmp_path / "one").rename(tmp_path / "two")
    commit_batch(LakeLocation.of(str(tmp_path / "one")), [Script(lineage="another").update("1a 2a 3a")])
    with pytest.raises(LakeError, match="was recreated after this checkpoint"):
        ledger(tmp_path / "one").latestOffset(end, ReadAllAvailable())
    with pytest.raises(LakeError, match="was recreated after this checkpoint"):
        ledger(tmp_path / "one").partitions(before.initialOffset(), end)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"table": "payload"}, "a stream of a lake has the table events"),
        ({"startingOffsets": "soon"}, "startingOffsets must be earliest, latest or a seq"),
    ],
)
def test_what_no_stream_of_a_lake_can_be_is_refused(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    commit_batch(LakeLocation.of(str(tmp_path)), script("1a"))
    with pytest.raises(ConfigurationError, match=sentence):
        ledger(tmp_path, **options)


def test_spark_reads_a_lake_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    updates = script(UPDATES)
    commit_batch(LakeLocation.of(str(tmp_path / "lake")), [list(chain(*updates))])

    def numbers(table: str, **options: str) -> list[tuple[int, int]]:
        frame = spark.read.format("cardinal_lake").options(path=str(tmp_path / "lake"), table=table, **options).load()
        number, seq = ("number", "seq") if table == "canonical" else ("_block_number", "_seq")
        return sorted({(row[0], row[1]) for row in frame.select(number, seq).collect()})

    then = [(1, 1), (2, 6), (3, 7)]
    assert numbers("canonical", asOfSeq="7") == numbers("current_payload", asOfSeq="7") == then
    assert numbers("current_payload", asOfBlock="3") == then
    assert numbers("current_payload", asOfSeq="5") == [(1, 1), (2, 2), (3, 3)]
    with pytest.raises(PySparkException, match="has no option 'startingoffsets'"):
        numbers("canonical", startingOffsets="latest")
