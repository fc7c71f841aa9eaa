"""The formats in SQL, and what Spark says of options that cannot work."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain
from pyspark.errors import PySparkException

from cardinal.errors import ConfigurationError, UnreachableError
from cardinal_spark import views
from cardinal_spark.errors import LakeError
from cardinal_spark.lake import Snapshot
from cardinal_spark.lake.catalog import statements
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.pipeline import PipelineJob, check
from cardinal_spark.testing import commit_batch, script
from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]


def test_a_stream_and_its_lake_are_tables_of_the_catalog(
    spark: SparkSession, cardinal_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=12)
    chain.publish()
    named = f"OPTIONS (url '{chain.url}', chainId '{chain.chain_id}', table 'blocks')"
    spark.sql(f"CREATE TABLE live_blocks USING cardinal {named}")
    try:
        heights = [row["number"] for row in spark.sql("SELECT number FROM live_blocks ORDER BY number").collect()]
        assert heights == [block.number for block in chain.chain]
        rows = spark.readStream.format("cardinal").options(url=chain.url, chainId=str(chain.chain_id), table="raw")
        writer = rows.load().writeStream.format("cardinal_lake").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "lake"))
        assert query.awaitTermination(180)
        spark.sql(
            f"CREATE TABLE lake_blocks USING cardinal_lake OPTIONS (path '{tmp_path / 'lake'}', table 'current_blocks')"
        )
        found = spark.sql("SELECT l.number FROM lake_blocks l JOIN live_blocks s ON l.hash = s.hash").collect()
        assert sorted(row["number"] for row in found) == heights
        some = spark.read.option("fromBlock", str(heights[-2])).table("lake_blocks")
        assert sorted(row["number"] for row in some.collect()) == heights[-2:]
        live = spark.readStream.table("live_blocks").writeStream.format("memory").queryName("live")
        live = live.option("checkpointLocation", str(tmp_path / "live")).trigger(once=True).start()
        assert live.awaitTermination(180)
        assert sorted(row["number"] for row in spark.table("live").collect()) == heights
    finally:
        chain.close()
        spark.sql("DROP TABLE IF EXISTS live_blocks")
        spark.sql("DROP TABLE IF EXISTS lake_blocks")


@pytest.mark.parametrize(
    "url", ["kafka://user:s3cr3t@h", "kafka://h?sasl.password=s3cr3t", "kafka://h?ssl.key.pem=s3cr3t"]
)
def test_a_table_of_the_catalog_keeps_no_password(spark: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match="pass secrets by file") as refused:
        spark.sql(f"CREATE TABLE kept USING cardinal OPTIONS (url '{url}', chainId '5', table 'blocks')")
    assert "s3cr3t" not in str(refused.value)


def test_a_read_without_rows_is_empty(spark: SparkSession, cardinal_broker: EmbeddedKafka) -> None:
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=3)
    chain.publish()
    chain.close()
    options = {"url": chain.url, "chainId": str(chain.chain_id), "startingOffsets": "latest"}
    for table in ("blocks", "events", "raw"):
        assert spark.read.format("cardinal").options(**options, table=table).load().collect() == []


@pytest.mark.parametrize("options", [{"tabel": "events"}, {"table": "events", "fromblok": "1"}])
def test_an_option_that_the_lake_does_not_have_is_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(PySparkException, match="did you mean"):
        spark.read.format("cardinal_lake").options(path=str(tmp_path), **options).load()


def test_every_table_of_a_lake_is_a_view(spark: SparkSession, tmp_path: Path) -> None:
    commit_batch(LakeLocation.of(str(tmp_path)), script("1a 2a 3a -3a 3b"))
    names = views(spark, str(tmp_path), "mine_")
    assert set(names) >= {"mine_events", "mine_canonical", "mine_payload", "mine_current_payload"}
    assert spark.sql("SELECT count(*) AS n FROM mine_canonical").first()["n"] == 3
    joined = "SELECT p.value FROM mine_payload p JOIN mine_canonical c ON p._seq = c.seq AND p._block_hash = c.hash"
    current = spark.table("mine_current_payload").select("value").collect()
    assert Counter(spark.sql(joined).collect()) == Counter(current)
    for name in names:
        spark.catalog.dropTempView(name)


def test_the_text_for_a_catalog_runs_in_an_empty_one(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's jar is not here: the same tables are read by our own format."""
    commit_batch(LakeLocation.of(str(tmp_path)), script("1a 2a 3a -3a 3b"))
    for _ in range(2):  # and may be repeated
        for line in statements(Snapshot.at(str(tmp_path)), "fresh", "spark"):
            table = line.partition(" USING ")[0].rpartition(".")[2]
            own = f"USING cardinal_lake OPTIONS (path '{tmp_path}', table '{table}');"
            delta = f"USING delta LOCATION '{tmp_path}/{table}';"
            if not line.startswith("--"):
                spark.sql(line.replace(delta, own).rstrip(";"))
    try:
        blocks = spark.sql("SELECT DISTINCT _block_number n, _seq s FROM fresh.current_payload ORDER BY 1").collect()
        assert [tuple(row) for row in blocks] == [(1, 1), (2, 2), (3, 5)]
    finally:
        spark.sql("DROP SCHEMA fresh CASCADE")


def test_the_page_s_functions_read_words(spark: SparkSession) -> None:
    text = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    created = re.findall(r"^CREATE TEMPORARY FUNCTION [^;]*;", text, re.MULTILINE)
    assert len(created) == 2
    for statement in created:
        spark.sql(statement.rstrip(";"))
    numbers = [0, 1, 2**63, 2**64 - 1, 2**64, 10**38 - 1]
    for number in numbers:
        assert spark.sql(f"SELECT uint256('0x{number:064x}') n").first()["n"] == number
    for word in (f"0x{10**38:064x}", f"0x{2**128 - 1:064x}", f"0x{2**256 - 1:064x}", "0x"):
        assert spark.sql(f"SELECT uint256('{word}') n").first()["n"] is None
    word = f"0x{'00' * 12}{'AB' * 20}"
    assert spark.sql(f"SELECT address('{word}') a").first()["a"] == "0x" + "ab" * 20
    for name in ("address", "uint256"):
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")


def test_both_ends_of_a_job_are_looked_at_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LakeError, match="write to the lake"):
        check(PipelineJob("kafka://127.0.0.1:1", str(tmp_path / "file" / "lake")))
    with pytest.raises(ConfigurationError, match="is a file, and a lake is a folder"):
        check(PipelineJob("kafka://127.0.0.1:1", str(tmp_path / "file")))
    with pytest.raises(UnreachableError, match="no Kafka broker answered"):
        check(PipelineJob("kafka://127.0.0.1:1?cardinal.connect.timeout.ms=500", str(tmp_path / "lake")))
    with pytest.raises(ConfigurationError, match="did you mean chainId"):
        check(PipelineJob("kafka://127.0.0.1:1", str(tmp_path / "lake"), options={"chainid_": "1"}))
