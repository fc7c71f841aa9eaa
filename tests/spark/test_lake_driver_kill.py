"""Spark itself is killed, driver and workers at once, in the middle of a stream; the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cardinal_spark.lake.place import Place
from cardinal_spark.lake.state import find_state
from cardinal_spark.rows import raw_batch
from cardinal_spark.testing import Script, image, image_of

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal_spark.rows import RawRow

pytestmark = pytest.mark.spark

DRIVER = """
import sys
from cardinal_spark.rows import RAW_DDL, spark_schema
from cardinal_spark.session import local_session
inbox, lake, checkpoint = sys.argv[1:]
spark = local_session("killed")
rows = spark.readStream.schema(spark_schema(RAW_DDL)).option("maxFilesPerTrigger", 1).parquet(inbox)
writer = rows.writeStream.format("cardinal_lake").option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start(lake).awaitTermination()
spark.stop()
"""


def updates() -> list[list[RawRow]]:
    """Thirty-one updates; every third is a reorg two deep, every ninth one to a shorter chain."""
    writer = Script()
    made = [writer.update("1a 2a 3a")]
    for number in range(30):
        chain_now = writer.chain
        height = len(chain_now)
        if number % 9 == 8:
            made.append(writer.update(f"-{chain_now[-1]} -{chain_now[-2]} {height - 1}r{number}"))
        elif number % 3 == 2:
            text = f"-{chain_now[-1]} -{chain_now[-2]} {height - 1}s{number} {height}s{number} {height + 1}s{number}"
            made.append(writer.update(text))
        else:
            made.append(writer.update(f"{height + 1}t{number}"))
    return made


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Spark in a process group of its own, so that a kill reaches the JVM and its Python workers."""
    arguments = [str(folder / name) for name in ("inbox", "lake", "checkpoint")]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *arguments], stdout=log, stderr=log, start_new_session=True
        )


def wait_for_seq(folder: Path, driver: subprocess.Popen[bytes], seq: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state = find_state(Place.of(str(folder / "lake")))
        if state is not None and state.seq >= seq:
            return
        assert driver.poll() is None, (folder / "log").read_text()
        time.sleep(0.005)  # between two looks at the lake; the deadline decides
    pytest.fail(f"no seq {seq} in a minute: {(folder / 'log').read_text()}")


@pytest.mark.slow
def test_a_killed_spark_goes_on_to_the_same_lake(tmp_path: Path) -> None:
    made = updates()
    (tmp_path / "inbox").mkdir()
    for number, update in enumerate(made):
        file = tmp_path / "inbox" / f"{number:03}.parquet"
        pq.write_table(pa.Table.from_batches([raw_batch(update)]), file)
        os.utime(file, (number, number))  # the file source goes by time
    driver = start(tmp_path)
    wait_for_seq(tmp_path, driver, made[12][-1].seq)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    seen = image(str(tmp_path / "lake"))
    assert len(seen.ledger) < made[-1][-1].seq
    assert seen == image_of([row for row in chain(*made) if row.seq <= len(seen.ledger)])

    driver = start(tmp_path)
    try:
        assert driver.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert image(str(tmp_path / "lake")) == image_of(list(chain(*made)))
