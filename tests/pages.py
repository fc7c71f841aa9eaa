"""Code blocks of a page, and how a reader would run them: in a shell with `cardinal` on its PATH, in a folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
SHELL = ("bash", "-c")
"""As a reader runs a block: no option that ends it at the first failure, or that reports one inside a pipe."""

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of every block in shell or Python, in order."""
    return _BLOCK.findall(text)


def section(text: str, title: str) -> str:
    """The text under a heading of the second level, up to the next one."""
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def with_ports(text: str, ports: Mapping[str, int]) -> str:
    """The text with ports of our own for those that are written."""
    return re.sub("|".join(ports), lambda written: str(ports[written[0]]), text)


def environment() -> dict[str, str]:
    """This process's environment, with the interpreter's commands first on PATH."""
    return {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}


def run_block(language: str, text: str, folder: Path, *, seconds: float = 600) -> None:
    """Run a block in a folder, in a process of its own; AssertionError with what it printed where it fails.

    A block of tests runs in pytest, with the project's `docs` at hand.
    """
    command = [*SHELL, text] if language == "sh" else [sys.executable, "-c", text]
    if text.startswith("def test_"):
        (folder / "test_block.py").write_text(text, encoding="utf-8")
        (folder / "docs").symlink_to(ROOT / "docs")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_block.py"]
    with (folder / "printed").open("w+") as printed:
        # A session of its own: what a failed block left in the background ends with it, and holds up no pipe.
        running = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            status = running.wait(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    printed_text = (folder / "printed").read_text()
    failed = status != 0 or re.search(r"^error: |command not found", printed_text, re.MULTILINE)
    assert not failed, f"{text}\n{printed_text[-4000:]}"
