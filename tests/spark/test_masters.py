"""Blocks into a lake under Spark Connect and on a cluster of processes, each in a Spark of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

from cardinal.embedded.java import java_home_for_spark
from cardinal_spark import job
from cardinal_spark.lake import read

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

JOB = """
import os, sys
url, chain, folder, kind = sys.argv[1:]
if kind == "connect":
    from cardinal_spark.session import prepare_environment
    from pyspark.sql import SparkSession
    prepare_environment()
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
else:
    from cardinal_spark.session import local_session
    spark = local_session("cluster", master="local-cluster[2,1,1024]")
rows = spark.readStream.format("cardinal").options(url=url, chainId=chain, table="raw", maxBlocksPerTrigger="7").load()
writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", folder + "/checkpoint")
query = writer.trigger(availableNow=True).start(folder + "/lake")
assert query.awaitTermination(150)
blocks = spark.read.format("cardinal").options(url=url, chainId=chain, table="blocks").load()
print("blocks", blocks.count())
spark.stop()
"""


def submitted(chain: PublishedChain, folder: Path) -> subprocess.CompletedProcess[str]:
    """`cardinal lake run` under spark-submit, on two worker processes."""
    environment = {
        "JAVA_HOME": str(java_home_for_spark()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local-cluster[2,1,1024]", job.__file__]
    arguments = [
        "--from",
        chain.url,
        "--chain-id",
        str(chain.chain_id),
        "--to",
        str(folder / "lake"),
        "--exit-at-end",
    ]
    return subprocess.run(
        [*command, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
    )


def test_a_lake_is_written_under_spark_submit(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=25)
    try:
        chain.publish()
        done = submitted(chain, tmp_path)
    finally:
        chain.close()
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"head {chain.chain[-1].number} 0x" in done.stdout
    need_chain(tmp_path, chain)


def test_a_spark_that_does_not_start_is_one_sentence() -> None:
    no_master = "from cardinal_spark.session import local_session; local_session(master='nobody')"
    done = subprocess.run([sys.executable, "-c", no_master], check=False, capture_output=True, text=True, timeout=240)
    assert "LakeError: Spark did not start: " in done.stderr.splitlines()[-1]


def need_chain(folder: Path, chain: PublishedChain) -> None:
    rows = read(str(folder / "lake"), "canonical").to_pylist()
    assert sorted((row["number"], row["hash"]) for row in rows) == [(block.number, block.hash) for block in chain.chain]


@pytest.mark.parametrize("kind", ["connect", "cluster"])
def test_a_lake_is_written_under_any_master(kind: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    if kind == "connect":
        pytest.importorskip("grpc")
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=25)
    try:
        chain.publish()
        arguments = [sys.executable, "-c", JOB, chain.url, str(chain.chain_id), str(tmp_path), kind]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=240)
    finally:
        chain.close()
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"blocks {len(chain.chain)}" in done.stdout
    need_chain(tmp_path, chain)
