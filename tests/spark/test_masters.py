"""Blocks into a lake under Spark Connect and under spark-submit, each in a Spark of its own.

A cluster of processes that `cardinal lake run --master` uses is one of the kill matrix.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

from cardinal_spark import job
from cardinal_spark.java import java_home_for_spark
from cardinal_spark.lake import read

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1000)]

ATTEMPTS = 4

JOB = """
import sys
url, chain, folder = sys.argv[1:]
from cardinal_spark.session import prepare_environment
from pyspark.sql import SparkSession
prepare_environment()
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.readStream.format("cardinal").options(url=url, chainId=chain, table="raw", maxBlocksPerTrigger="7").load()
writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", folder + "/checkpoint")
query = writer.trigger(availableNow=True).start(folder + "/lake")
assert query.awaitTermination(150)
blocks = spark.read.format("cardinal").options(url=url, chainId=chain, table="blocks").load()
print("blocks", blocks.count())
spark.stop()
"""


@pytest.fixture
def chain(cardinal_broker: EmbeddedKafka) -> PublishedChain:
    published = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", blocks=25)
    published.publish()
    published.close()
    return published


def output_of(*command: str) -> str:
    """What a program prints that ends well; one that Spark broke off for a slow Python process goes on when run again.

    Spark gives a new process 10 s, without a setting, which a busy machine may exceed.
    """
    environment = {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    local = {"SPARK_LOCAL_IP": "127.0.0.1"}
    run = partial(subprocess.run, command, check=False, capture_output=True, text=True, timeout=240)
    done = run(env={**os.environ, **environment, **local})
    for _ in range(ATTEMPTS - 1):
        if done.returncode == 0 or "Python worker to connect back" not in done.stderr:
            break
        done = run(env={**os.environ, **environment, **local})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def need_chain(folder: Path, chain: PublishedChain) -> None:
    rows = read(str(folder / "lake"), "canonical").to_pylist()
    assert sorted((row["number"], row["hash"]) for row in rows) == [(block.number, block.hash) for block in chain.chain]


def test_a_lake_is_written_under_spark_submit(chain: PublishedChain, tmp_path: Path) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local-cluster[2,1,1024]", job.__file__]
    ends = ["--from", chain.url, "--chain-id", str(chain.chain_id), "--to", str(tmp_path / "lake")]
    assert f"head {chain.chain[-1].number} 0x" in output_of(*submit, *ends, "--exit-at-end")
    need_chain(tmp_path, chain)


def test_a_lake_is_written_under_connect(chain: PublishedChain, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    printed = output_of(sys.executable, "-c", JOB, chain.url, str(chain.chain_id), str(tmp_path))
    assert f"blocks {len(chain.chain)}" in printed
    need_chain(tmp_path, chain)


def test_a_spark_that_does_not_start_is_one_sentence() -> None:
    no_master = "from cardinal_spark.session import local_session; local_session(master='nobody')"
    done = subprocess.run([sys.executable, "-c", no_master], check=False, capture_output=True, text=True, timeout=240)
    assert "LakeError: Spark did not start: " in done.stderr.splitlines()[-1]
