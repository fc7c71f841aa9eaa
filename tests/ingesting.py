"""Ingest nodes of tests, as processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def node(
    url: str, topic: str, folder: Path, *options: str, app: str = "items", listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A node, and its port; it is killed where it has not ended."""
    command = ["ingest", "--node-id", "a", "--listen", listen, "--to", url, "--data", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "cardinal", *command, "--app", app, "--topic", topic, *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().split()[-1])
    finally:
        process.kill()
        process.communicate()


def workers_of(process: int) -> set[int]:
    """Processes that this one has started, by any of its threads."""
    tasks = Path(f"/proc/{process}/task")
    if not tasks.is_dir():
        pytest.skip("the children of a process are listed by Linux only")
    return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}
