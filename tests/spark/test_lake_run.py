"""`cardinal lake run` as an operator sees it: nothing of Java, one sentence for a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 600


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(SECONDS + 60)
def test_a_failed_query_prints_one_sentence_and_nothing_of_java(tmp_path: Path) -> None:
    chain = PublishedChain(f"file://{tmp_path / 'stream'}", blocks=10, producers=1)
    chain.publish()
    chain.close()
    lake = tmp_path / "lake"
    lake.mkdir()
    (lake / "logs").write_text("a file where the table's folder belongs")
    command = [sys.executable, "-m", "cardinal", "lake", "run", "--from", chain.url, "--to", str(lake), "--exit-at-end"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    waits, error = found.stderr.splitlines()
    assert waits == "Spark starts and reads the first batch …"
    assert error.startswith("error: could not ")
    assert str(lake) in error


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(SECONDS + 60)
def test_a_python_process_that_starts_too_slowly_for_spark_is_started_again(tmp_path: Path) -> None:
    """Spark gives it 10 s, without a setting; a busy machine needs more to import PySpark."""
    chain = PublishedChain(f"file://{tmp_path / 'stream'}", blocks=10, producers=1)
    chain.publish()
    chain.close()
    slow = tmp_path / "slow"
    slow.touch()
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        f"slow = pathlib.Path({str(slow)!r})\n"
        "if any('streaming_source_runner' in argument for argument in sys.orig_argv) and slow.exists():\n"
        "    slow.unlink()\n"
        "    time.sleep(12)\n"
    )
    command = [sys.executable, "-m", "cardinal", "lake", "run", "--from", chain.url, "--to", str(tmp_path / "lake")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run(
        [*command, "--exit-at-end"], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
    )
    assert found.returncode == 0, found.stderr
    assert not slow.exists()
    assert "the query starts again" in found.stderr
