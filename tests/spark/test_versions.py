"""The other PySpark that the extra `spark` allows, from the package registry; all else is what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

SUPPORTED: Final = ("4.2.0", "4.3.0")
TESTS: Final = (
    "test_source_stream.py::test_a_lake_follows_the_chain_over_cuts_and_a_lost_checkpoint",
    "test_source_stream.py::test_a_batch_read_is_the_chain_as_it_stands",
    "test_source_stream.py::test_a_lake_reports_its_position_in_numbers",
    "test_source_stream.py::test_invalid_input_is_one_clear_sentence",
    "test_lake_stream.py::test_a_stream_becomes_a_lake_and_a_replayed_batch_changes_nothing",
    "test_lake_stream.py::test_what_stops_a_query_is_one_sentence",
    "test_lake_ledger.py::test_a_second_job_follows_the_ledger",
    "test_masters.py::test_a_lake_is_written_under_connect",
)
"""One for every interface of Spark's that differs between releases: source and sink, in batches and as streams, offsets
and limits, progress, the texts of errors, and Spark Connect."""

UNREACHABLE: Final = ("No matching distribution found", "No module named pip")


def install(release: str, folder: str) -> None:
    """Install nothing but PySpark: what it needs is there already. Skips the test where that cannot be had."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", folder]
    done = subprocess.run([*pip, f"pyspark=={release}"], check=False, capture_output=True, text=True, timeout=600)
    if any(reason in done.stderr for reason in UNREACHABLE):
        pytest.skip(f"PySpark {release} cannot be had: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("release", [release for release in SUPPORTED if release != version("pyspark")])
def test_the_other_pyspark_passes_the_same_tests(release: str) -> None:
    here = Path(__file__).parent
    with TemporaryDirectory() as folder:
        install(release, folder)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        python = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
        assert subprocess.check_output(python, env=environment, text=True).strip() == release
        pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not soak"]
        done = subprocess.run(
            [*pytest_, *(str(here / name) for name in TESTS)],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            cwd=here.parents[1],
            timeout=600,
        )
    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout
