"""README and docs: links lead somewhere, generated parts are current, code blocks run in order."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import pytest

from cardinal_devkit.kafka import free_port
from pages import ROOT, SCRIPTS, code_blocks, run_block, with_ports
from reference import pages

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
RUN_ELSEWHERE = {"spark.md"}  # tests/spark/test_docs.py, in one Spark session
INGEST_PORTS = tuple(f"{first}84{last}" for first in (40, 41, 42, 43) for last in (0, 1, 2, 3))
WRITTEN_PORTS = ("9092", "8765", "9464", *INGEST_PORTS)
CHAIN = (
    "cardinal broker up --port 9092 --data ./kafka\n"
    "cardinal produce --from 'dev://?seed=7&blocks=40&reorg-rate=0.2' --to kafka://127.0.0.1:9092"
    " --producer-id one --start earliest\n"
)
WORDS = 1_050
RUN = {
    "README.md": 5,
    "consuming.md": 3,
    "ethereum.md": 2,
    "ingest.md": 3,
    "operating.md": 5,
    "producing.md": 2,
    "testing.md": 3,
}
"""Blocks that run here, at least; those of Spark's page run in tests/spark/test_docs.py."""
MADE = re.compile(
    r"(?<![\w/])(?:\./|file://(?!/)|EmbeddedKafka\(\")([\w-]+)|(?<![\w/])(?!self\.)([\w-]+\.(?:toml|db|key))\b"
)
"""Folders and files that blocks make, in the two groups."""
NEVER_RUN = {("operating.md", "console"): 4, ("spark.md", "sql"): 4, ("testing.md", "console"): 1}
"""Blocks that no test runs, beside plain text: they need a node or a lake of their own."""


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == pages()[path], "run `python docs/reference.py`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8"))
    for file, heading in targets:
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name} links to {file}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}, (
                f"{path.name}: #{heading}"
            )


def test_what_the_pages_make_in_a_clone_is_ignored_by_git() -> None:
    patterns = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("/")]
    blocks = [text for path in PAGES if path.name != "commands.md" for _, text in code_blocks(path.read_text("utf-8"))]
    names = {name for text in blocks for pair in MADE.findall(text) for name in pair if name}
    assert {"kafka", "lake", "cluster.toml", "a.key", "chain.db", "own-kafka"} <= names
    assert not [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]


def test_the_front_page_is_short_and_has_the_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= WORDS
    lines = [block for _, block in code_blocks(text) if block.startswith("python3 -m venv")]
    assert [line.count("\n") for line in lines] == [1, 1]
    assert "cardinal demo" in lines[0]
    assert "pytest" in lines[1]


def runnable(path: Path) -> list[tuple[str, str]]:
    """Language and text of a page's blocks, but for the two commands."""
    found = code_blocks(path.read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if not text.startswith("python3 -m venv")]


def test_blocks_that_no_test_runs_are_few_and_named() -> None:
    fences = Counter(
        (path.name, language)
        for path in PAGES
        for language in re.findall(r"^```(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {key: count for key, count in fences.items() if key[1] not in {"python", "sh", "text"}} == NEVER_RUN
    counts = {path.name: len(runnable(path)) for path in PAGES if path.name not in RUN_ELSEWHERE}
    assert all(counts[name] >= least for name, least in RUN.items()), counts


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "path", [page for page in PAGES if runnable(page) and page.name not in RUN_ELSEWHERE], ids=lambda path: path.name
)
def test_code_blocks_run_in_order(path: Path, tmp_path: Path) -> None:
    blocks = runnable(path)
    if not any("broker up" in text for _, text in blocks):
        blocks.insert(0, ("sh", CHAIN))
    ports = {written: free_port() for written in WRITTEN_PORTS}
    try:
        for language, text in blocks:
            run_block(language, with_ports(text, ports), tmp_path)
    finally:
        subprocess.run([SCRIPTS / "cardinal", "broker", "down", "--data", tmp_path / "kafka"], check=False, timeout=60)
