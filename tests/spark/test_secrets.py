"""A password and a store's secret appear in nothing that a running query leaves or shows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

from cardinal_devkit.kafka import EmbeddedKafka, Security
from cardinal_spark.lake import read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

PASSWORD = "s3cr3t-of-the-broker"  # noqa: S105 - of a broker of our own
STORE = "s3cr3t-of-the-store"

JOB = """
import sys, urllib.request
from cardinal_spark.session import local_session
url, chain, folder, store = sys.argv[1:]
settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": "file://" + folder + "/events",
            "spark.eventLog.compress": "false", "spark.ui.enabled": "true", "spark.ui.port": "0"}
spark = local_session("secrets", settings=settings)
rows = spark.readStream.format("cardinal").options(url=url, chainId=chain, table="raw").load()
writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", folder + "/checkpoint")
query = writer.option("storage.secret_access_key", store).queryName("q").trigger(processingTime="0 seconds")
query = query.start(folder + "/lake")
while not query.recentProgress or not query.lastProgress["numInputRows"]:
    assert not query.awaitTermination(1)
print(query.recentProgress, query.status)
query.explain(extended=True)
blocks = spark.read.format("cardinal").options(url=url, chainId=chain, table="blocks").load()
print(blocks.count())
for mode in ("simple", "extended", "codegen", "cost", "formatted"):
    blocks.explain(mode=mode)
ui = spark.sparkContext.uiWebUrl
app = spark.sparkContext.applicationId
for page in ("", "/StreamingQuery/", "/SQL/", "/environment/", "/stages/", f"/api/v1/applications/{app}/sql",
             f"/api/v1/applications/{app}/environment", f"/api/v1/applications/{app}/stages"):
    print(urllib.request.urlopen(ui + page).read().decode())
query.stop()
wrong = url.replace(sys.argv[1].split(":")[2].split("@")[0], "wr0ng-" + store)
try:
    spark.read.format("cardinal").options(url=wrong, chainId=chain, table="blocks").load().count()
except Exception as error:
    print(error)
spark.stop()
"""


def test_no_secret_is_shown_or_kept(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    security = Security(mechanisms=("SCRAM-SHA-512",), users={"alice": PASSWORD})
    with EmbeddedKafka(tmp_path / "kafka", security=security) as kafka:
        url = f"kafka://alice:{PASSWORD}@{kafka.bootstrap}?sasl.mechanism=SCRAM-SHA-512"
        chain = PublishedChain(url, blocks=12)
        chain.publish()
        chain.close()
        arguments = [url, str(chain.chain_id), str(tmp_path), STORE]
        done = subprocess.run(
            [sys.executable, "-c", JOB, *arguments], check=False, capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(read(str(tmp_path / "lake"), "canonical").to_pylist()) == len(chain.chain)
    said = (done.stdout + done.stderr).encode()
    assert b"Streaming Query" in said
    assert b"authentication" in said.lower()
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "kafka" not in path.parts}
    assert any("events" in str(path) for path in left)
    for secret in (PASSWORD, STORE):
        assert secret.encode() not in said
        assert [path for path, content in left.items() if secret.encode() in content] == []
