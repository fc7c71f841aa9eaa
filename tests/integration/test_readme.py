"""The README's code blocks do what they say: shell and Python, in order, on a broker of their own."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cardinal.embedded.settings import free_port
from pages import ROOT, SCRIPTS, code_blocks, run_block, with_ports

if TYPE_CHECKING:
    from pathlib import Path


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block but the two commands; what starts the broker goes first."""
    found = code_blocks((ROOT / "README.md").read_text())
    kept = [(language, text) for language, text in found if not text.startswith("python3 -m venv")]
    return sorted(kept, key=lambda block: "broker up" not in block[1])


def test_the_two_commands_are_single_lines() -> None:
    found = code_blocks((ROOT / "README.md").read_text())
    lines = [text for _, text in found if text.startswith("python3 -m venv")]
    assert [line.count("\n") for line in lines] == [1, 1]
    assert "cardinal demo" in lines[0]
    assert "pytest" in lines[1]


@pytest.mark.slow
@pytest.mark.spark
def test_every_block_of_the_readme_runs(tmp_path: Path) -> None:
    ports = {written: free_port() for written in ("9092", "8765")}
    ran = 0
    try:
        for language, text in blocks():
            run_block(language, with_ports(text, ports), tmp_path)
            ran += 1
    finally:
        subprocess.run([SCRIPTS / "cardinal", "broker", "down", "--data", tmp_path / "kafka"], check=False, timeout=60)
    assert ran == len(blocks()) > 5
