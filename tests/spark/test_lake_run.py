"""`cardinal lake run` as an operator sees it: nothing of Java, one sentence for a failure."""

from __future__ import annotations

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
