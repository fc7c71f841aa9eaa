"""Spark is killed, driver and workers at once, between a live stream and its lake; the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

from cardinal_spark.lake import read
from cardinal_spark.lake.place import Place
from cardinal_spark.lake.state import find_state

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.broker]

DRIVER = """
import sys
from cardinal_spark.session import local_session
url, chain, lake, checkpoint, trigger = sys.argv[1:]
spark = local_session("killed")
options = {"url": url, "chainId": chain, "reorgThreshold": "8", "table": "raw"}
options["maxBlocksPerTrigger"] = "3" if trigger == "live" else "15"
rows = spark.readStream.format("cardinal").options(**options).load()
writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", checkpoint)
writer = writer.trigger(availableNow=True) if trigger == "once" else writer.trigger(processingTime="0 seconds")
writer.start(lake).awaitTermination()
spark.stop()
"""


def start(chain: PublishedChain, folder: Path, trigger: str) -> subprocess.Popen[bytes]:
    """Spark in a process group of its own, so that a kill reaches the JVM and its Python workers."""
    arguments = [chain.url, str(chain.chain_id), str(folder / "lake"), str(folder / "checkpoint"), trigger]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments], stdout=log, stderr=log, start_new_session=True
        )


def kill(driver: subprocess.Popen[bytes]) -> None:
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def wait_for_number(folder: Path, driver: subprocess.Popen[bytes], number: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        state = find_state(Place.of(str(folder / "lake")))
        if state is not None and state.number >= number:
            return
        assert driver.poll() is None, (folder / "log").read_text()
        time.sleep(0.01)  # between two looks at the lake; the deadline decides
    pytest.fail(f"no block {number} in time: {(folder / 'log').read_text()}")


@pytest.mark.slow
def test_a_killed_spark_goes_on_to_the_chain(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Killed in the middle of a live run whose batches are small; reorgs lie on both sides of the kill."""
    chain = PublishedChain(f"kafka://{cardinal_broker.bootstrap}", seed=16, reorg_threshold=8)
    try:
        chain.publish(26)  # the next step removes four blocks
        live = start(chain, tmp_path, "live")
        try:
            wait_for_number(tmp_path, live, chain.chain[-2].number)
        finally:
            kill(live)
        state = find_state(Place.of(str(tmp_path / "lake")))
        assert state is not None
        chain.publish()
        last = start(chain, tmp_path, "once")
        try:
            assert last.wait(120) == 0, (tmp_path / "log").read_text()
        finally:
            if last.poll() is None:
                kill(last)
    finally:
        chain.close()
    lake = str(tmp_path / "lake")
    canonical = sorted((row["number"], row["hash"]) for row in read(lake, "canonical").to_pylist())
    assert canonical == [(block.number, block.hash) for block in chain.chain]
    events = sorted(read(lake, "events").to_pylist(), key=lambda row: row["seq"])
    assert [row["seq"] for row in events] == list(range(1, len(events) + 1))
    assert len(events) > state.seq
    assert any(row["change"] == -1 for row in events if row["seq"] > state.seq)
    current = read(lake, "current_payload").to_pylist()
    expected = {(block.hash, path): value for block in chain.chain for path, value in block.updates.items()}
    assert {(row["_block_hash"], row["path"]): row["value"] for row in current if row["value"] is not None} == expected
