"""Other readers of the file transport's segments: Java's Avro, and Spark's, which uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardinal.embedded.directories import cache_folder
from cardinal.embedded.jars import Jar, ensure_jars
from cardinal.errors import JarError
from file_logs import DEADLINE, block, everything, sink_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_AVRO = Jar(
    "org.apache.spark",
    "spark-avro_2.13",
    "4.1.1",
    "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
    92354,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sink = sink_of(tmp_path, "segment.bytes=3000&fsync=never")
    for number in range(30):
        sink.send(*block(number)).result(DEADLINE)
    sink.close()
    return tmp_path


def test_javas_avro_reads_the_segments(spark: SparkSession, folder: Path) -> None:
    jvm = spark._jvm
    assert jvm is not None
    found = []
    for segment in sorted(folder.glob("*.avro")):
        datum = jvm.org.apache.avro.generic.GenericDatumReader()
        reader = jvm.org.apache.avro.file.DataFileReader(jvm.java.io.File(str(segment)), datum)
        while reader.hasNext():
            record = reader.next()
            place = (str(record.get("topic")), record.get("partition"), record.get("offset"))
            found.append((*place, record.get("timestamp"), bytes(record.get("key").array())))
        reader.close()
    assert found == [
        (one.topic, one.partition, one.offset, one.timestamp_ms, one.key) for one in everything(folder, heartbeats=True)
    ]


@pytest.fixture
def spark_avro() -> Path:
    """Spark's package for Avro, which no PySpark brings along: the newest that the repositories have."""
    try:
        return ensure_jars(cache_folder(), [SPARK_AVRO])[0]
    except JarError as error:
        if not isinstance(error.__cause__, OSError):
            raise  # a jar came, and it is another one
        pytest.skip(str(error))


def test_sparks_avro_reader_reads_the_segments(spark: SparkSession, folder: Path, spark_avro: Path) -> None:
    spark.sql(f"ADD JAR '{spark_avro}'")
    frame = spark.read.format("avro").load(f"{folder}/*.avro")
    rows = sorted((row.topic, row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in frame.collect())
    assert rows == sorted((*one[:3], one.key, one.value) for one in everything(folder, heartbeats=True))
    assert dict(frame.dtypes)["timestamp"] == "timestamp"
