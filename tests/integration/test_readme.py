"""The README's code blocks do what they say: shell and Python, in order, on a broker of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cardinal.embedded.settings import free_port

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block but the two commands; what starts the broker goes first."""
    found = BLOCK.findall((ROOT / "README.md").read_text())
    kept = [(language, text) for language, text in found if not text.startswith("python3 -m venv")]
    return sorted(kept, key=lambda block: "broker up" not in block[1])


def test_the_two_commands_are_single_lines() -> None:
    lines = [text for _, text in BLOCK.findall((ROOT / "README.md").read_text()) if text.startswith("python3 -m venv")]
    assert [line.count("\n") for line in lines] == [1, 1]
    assert "cardinal demo" in lines[0]
    assert "pytest" in lines[1]


@pytest.mark.slow
@pytest.mark.spark
def test_every_block_of_the_readme_runs(tmp_path: Path) -> None:
    ports = {written: str(free_port()) for written in ("9092", "8765")}
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    ran = 0
    try:
        for language, text in blocks():
            command = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
            done = subprocess.run(
                [*command, re.sub("9092|8765", lambda written: ports[written[0]], text)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            ran += 1
    finally:
        subprocess.run([scripts / "cardinal", "broker", "down", "--data", tmp_path / "kafka"], check=False, timeout=60)
    assert ran == len(blocks()) > 5
