"""The source in a real Spark on a real broker: tables, batch read, and rows into a lake."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from published_chain import PublishedChain
from pyspark.errors import AnalysisException, PySparkException

from cardinal_ethereum import Abi, decoded_frames
from cardinal_spark.lake import read
from cardinal_spark.metrics import LakeMetrics
from cardinal_spark.pipeline import PipelineJob, batches, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

THRESHOLD = 8
TRANSFER = "event Transfer(address indexed from, address indexed to, uint256 value)"
ENTRY = {
    "type": "event",
    "name": "Transfer",
    "inputs": [
        {"name": "from", "type": "address", "indexed": True},
        {"name": "to", "type": "address", "indexed": True},
        {"name": "value", "type": "uint256", "indexed": False},
    ],
}


@pytest.fixture
def published(cardinal_broker: EmbeddedKafka) -> Iterator[PublishedChain]:
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", seed=16, reorg_threshold=THRESHOLD)
    yield chain
    chain.close()


def options(chain: PublishedChain, **more: str) -> dict[str, str]:
    return {"url": chain.url, "chainId": str(chain.chain_id), "reorgThreshold": str(THRESHOLD), **more}


def to_lake(spark: SparkSession, chain: PublishedChain, folder: Path, **more: str) -> None:
    """Everything that is on the topics, into the lake, under the checkpoint beside it."""
    rows = spark.readStream.format("cardinal").options(**options(chain, table="raw", **more)).load()
    writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "lake"))
    try:
        assert query.awaitTermination(180)
    finally:
        query.stop()


def canonical(folder: Path) -> list[tuple[int, bytes]]:
    return sorted((row["number"], row["hash"]) for row in read(str(folder / "lake"), "canonical").to_pylist())


def collected(spark: SparkSession, chain: PublishedChain, table: str, folder: Path, **more: str) -> list[Any]:
    """All rows of a stream of this table, through Spark's memory sink."""
    frame: DataFrame = spark.readStream.format("cardinal").options(**options(chain, table=table, **more)).load()
    name = f"{table}_{chain.chain_id}"
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(folder / table))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(180)
    finally:
        query.stop()
    return spark.table(name).collect()


def test_a_lake_has_the_chain_after_reorgs(spark: SparkSession, published: PublishedChain, tmp_path: Path) -> None:
    published.publish()
    assert published.depths
    to_lake(spark, published, tmp_path)
    assert canonical(tmp_path) == [(block.number, block.hash) for block in published.chain]
    rows = read(str(tmp_path / "lake"), "current_payload").to_pylist()
    current = {(row["_block_hash"], row["path"]) for row in rows}
    assert current >= {(block.hash, path) for block in published.chain for path in block.updates}
    assert {block for block, _ in current} == {block.hash for block in published.chain}


def test_a_lake_follows_the_chain_over_cuts_and_a_lost_checkpoint(
    spark: SparkSession, published: PublishedChain, tmp_path: Path
) -> None:
    """Every run is cut where the chain is just being reorganised, also to shorter ones; one loses its checkpoint."""
    for run in range(5):
        if run < 4:
            assert published.publish_to_next_reorg()
        else:
            published.publish()
        more = {}
        if run == 2:
            (tmp_path / "checkpoint").rename(tmp_path / "lost")
            more = {"restartFrom": "sink", "sinkPath": str(tmp_path / "lake")}
        to_lake(spark, published, tmp_path, **more)
        assert canonical(tmp_path) == [(block.number, block.hash) for block in published.chain]
    assert max(published.depths) >= 3
    assert published.shorter
    current = read(str(tmp_path / "lake"), "current_payload").to_pylist()
    expected = {(block.hash, path): value for block in published.chain for path, value in block.updates.items()}
    assert {(row["_block_hash"], row["path"]): row["value"] for row in current if row["value"] is not None} == expected
    seqs = sorted(row["seq"] for row in read(str(tmp_path / "lake"), "events").to_pylist())
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.slow
def test_every_table_of_a_stream_tells_the_same_chain(
    spark: SparkSession, published: PublishedChain, tmp_path: Path
) -> None:
    published.publish()
    events = collected(spark, published, "events", tmp_path, maxBlocksPerTrigger="10")
    keys = sorted(map(key_of, events))
    assert [seq for seq, *_ in keys] == list(range(1, len(keys) + 1))
    assert replayed(keys) == [block.hash for block in published.chain]
    for table in ("blocks", "payload"):
        rows = collected(spark, published, table, tmp_path)
        found = set(map(key_of, rows))
        # another cut may show other transient forks; the chain is the same
        assert replayed(found) == replayed(keys), table
        assert all(row["_block_time"] is not None and row["_published_at"] is not None for row in rows)
        for row in rows if table == "blocks" else ():
            assert row["hash"] == f"0x{bytes(row['_block_hash']).hex()}"
            assert (row["number"], row["timestamp"]) == (row["_block_number"], row["_block_time"])


def key_of(row: Any) -> tuple[int, int, int, bytes]:  # noqa: ANN401 - a row of Spark's
    return row["_seq"], row["_change"], row["_update_id"], bytes(row["_block_hash"])


def replayed(keys: Any) -> list[bytes]:  # noqa: ANN401 - tuples of a row's keys
    chain: list[bytes] = []
    for _, change, _, block in sorted(keys):
        if change == 1:
            chain.append(block)
        else:
            assert chain.pop() == block
    return chain


def test_a_batch_read_is_the_chain_as_it_stands(spark: SparkSession, published: PublishedChain) -> None:
    published.publish()
    frame = spark.read.format("cardinal").options(**options(published, table="blocks")).load()
    rows = sorted(frame.collect(), key=lambda row: row["_seq"])
    assert [bytes(row["_block_hash"]) for row in rows] == [block.hash for block in published.chain]
    assert [(row["_seq"], row["_change"]) for row in rows] == [(seq, 1) for seq in range(1, len(rows) + 1)]
    logs = spark.read.format("cardinal").options(**options(published, table="logs")).load()
    expected = sum("/l/" in path for block in published.chain for path in block.updates)
    assert logs.count() == expected


def test_logs_are_decoded_into_the_requested_columns(
    spark: SparkSession, published: PublishedChain, tmp_path: Path
) -> None:
    published.publish()
    abi = Abi.from_signatures([TRANSFER])
    made = decoded_frames(published.chain, abi, tables=["decoded_logs"])["decoded_logs"].to_pylist()
    wanted = ("_seq", "log_index", "name", "arguments", "block_date")
    frame = spark.read.format("cardinal").options(
        **options(published, table="decoded_logs", abi=TRANSFER, columns=",".join(wanted))
    )
    rows = sorted(frame.load().collect())
    assert rows[0].__fields__ == list(wanted)
    assert [tuple(row)[1:] for row in rows] == [tuple(row[name] for name in wanted[1:]) for row in made]
    assert {"Transfer", None} == {row["name"] for row in rows}
    (tmp_path / "abi.json").write_text(json.dumps([ENTRY]))
    streamed = collected(spark, published, "decoded_logs", tmp_path, abi=str(tmp_path / "abi.json"))
    whole = {(bytes(row["_block_hash"]), row["log_index"]): row["arguments"] for row in streamed if row["_change"] > 0}
    assert [whole[bytes.fromhex(row["block_hash"][2:]), row["log_index"]] for row in made] == [
        row["arguments"] for row in made
    ]
    logs = spark.read.format("cardinal").options(**options(published, table="logs", columns="topic0,topic3,block_date"))
    topics = Counter(row["topic0"] for row in logs.load().collect())
    assert topics["0x" + abi.signatures[0].topic.hex()] == sum(row["name"] == "Transfer" for row in made)
    assert topics[None]  # anonymous ones


def test_a_lake_reports_its_position_in_numbers(spark: SparkSession, published: PublishedChain, tmp_path: Path) -> None:
    published.publish()
    numbers = LakeMetrics()
    more = {name: value for name, value in options(published).items() if name != "url"}
    job = PipelineJob(published.url, str(tmp_path / "lake"), exit_at_end=True, options=more)
    for status in batches(start(spark, job), job, numbers.progress):
        if status is not None:
            numbers.batch(status)
    value = numbers.registry.get_sample_value
    assert value("cardinal_lake_head") == value("cardinal_lake_read_head") == published.chain[-1].number
    assert value("cardinal_lake_seq") == len(read(str(tmp_path / "lake"), "events"))
    assert (value("cardinal_lake_lag_records"), value("cardinal_lake_connected")) == (0, 1)
    assert not numbers.waits_for()


def test_invalid_input_is_one_clear_sentence(spark: SparkSession, cardinal_broker: EmbeddedKafka) -> None:
    url = f"kafka://{cardinal_broker.bootstrap}"
    with pytest.raises((AnalysisException, PySparkException), match="has no option 'tabel'"):
        spark.readStream.format("cardinal").options(url=url, tabel="logs").load()
    with pytest.raises((AnalysisException, PySparkException), match="no column 'topic'; did you mean topics"):
        spark.readStream.format("cardinal").options(url=url, table="logs", columns="topic").load()
    with pytest.raises(PySparkException, match="start a producer first"):
        spark.read.format("cardinal").options(url=url, chainId="6999999", topicsTimeout="0").load().count()
