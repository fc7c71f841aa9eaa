"""The page on Spark: its code blocks run as written, but for those that need a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from published_chain import PublishedChain

from cardinal_devkit.kafka import EmbeddedKafka
from pages import ROOT, SHELL, code_blocks, run_block, section, with_ports

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = ("Read a stream", "Keep a lake")
NEEDS_A_CLUSTER = "Run it on a cluster"
SECONDS = 900


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(SECONDS + 60)
def test_the_code_of_the_page_but_for_what_needs_a_cluster_runs_in_one_process(tmp_path: Path) -> None:
    text = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    found = [block for title in SECTIONS for block in code_blocks(section(text, title))]
    assert [language for language, _ in found] == ["python", "python", "sh", "python", "python"]
    assert code_blocks(text) == [*found, *code_blocks(section(text, NEEDS_A_CLUSTER))]
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        chain = PublishedChain(f"kafka://{kafka.bootstrap}", blocks=30)
        chain.publish()
        chain.close()
        port = int(kafka.bootstrap.rpartition(":")[2])
        program = "\n".join(as_python(language, with_ports(block, {"9092": port})) for language, block in found)
        run_block("python", f"{program}\nspark.stop()\n", tmp_path, seconds=SECONDS)
    assert (tmp_path / "lake").is_dir()
    assert (tmp_path / "own-lake").is_dir()


def as_python(language: str, text: str) -> str:
    """A block of the page as a part of one Python program."""
    return text if language == "python" else f"__import__('subprocess').run([*{SHELL!r}, {text!r}], check=True)"
