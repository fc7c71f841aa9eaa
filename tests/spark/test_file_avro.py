"""Another reader of the file transport's segments: Java's Avro, which Spark's uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from file_logs import DEADLINE, block, everything, sink_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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
