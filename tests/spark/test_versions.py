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
TESTS: Final = ("test_source_stream.py", "test_lake_stream.py", "test_masters.py")
"""From the stream into a lake and out of it, as a stream and in batches; Spark Connect, a cluster and spark-submit."""

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
