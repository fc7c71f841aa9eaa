"""The notebooks run from top to bottom, and what is stored of them is small and shows nothing of a machine.

`jupyter execute --inplace spark/notebooks/*.ipynb` stores their outputs anew; what Java prints on stderr is not kept.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import platform
import re
import subprocess
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from cardinal_devkit.kafka.state import free_port, is_free
from pages import ROOT, SCRIPTS, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOTEBOOKS = sorted((ROOT / "spark/notebooks").glob("*.ipynb"))
SECONDS = 900
PORT = "PORT = 9092\n"
ABSOLUTE = re.compile(r"(?<![\w/:.])/(?:home|Users|root|tmp|private|var|usr|opt|srv|mnt|work)\b")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 4


@every_notebook
def test_what_is_stored_is_small(path: Path) -> None:
    assert path.stat().st_size <= 150_000
    images = [b64decode(data["image/png"]) for data in shown(path) if "image/png" in data]
    assert 1 <= len(images) <= 2
    assert max(map(len, images)) <= 40_000


@every_notebook
def test_what_is_stored_is_a_complete_run(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for cell in cells for output in cell["outputs"]} <= {
        "stream",
        "display_data",
        "execute_result",
    }


@every_notebook
def test_what_is_stored_shows_nothing_of_a_machine(path: Path) -> None:
    text = "\n".join(value for data in shown(path) for kind, value in data.items() if kind != "image/png")
    assert not ABSOLUTE.findall(text)
    for name in (getpass.getuser(), platform.node()):
        assert not re.search(rf"\b{re.escape(name)}\b", text)


def test_the_readmes_chart_is_a_notebooks() -> None:
    """``docs/make_chart.py`` copies it."""
    images = [
        data["image/png"] for data in shown(ROOT / "spark/notebooks/token_transfers.ipynb") if "image/png" in data
    ]
    assert (ROOT / "docs/token_transfers.png").read_bytes() == b64decode(images[-1])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(SECONDS + 60)
def test_they_run_from_top_to_bottom(tmp_path: Path) -> None:
    """In one kernel, so that Java starts once; each begins with no name that another defined."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    port = free_port()
    cells = []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert sum(cell.source.count(PORT) for cell in notebook.cells) == 1
        cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
        cell.source = cell.source.replace(PORT, f"PORT = {port}\n").replace("&rate=4", "&rate=20")
    every = nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)
    client = nbclient.NotebookClient(every, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    own = {"TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    try:
        asyncio.run(asyncio.wait_for(client.async_execute(env=environment() | own), SECONDS))
        assert is_free(port)
        assert not list(tmp_path.glob("cardinal-*"))
    finally:
        for folder in tmp_path.glob("cardinal-*/kafka"):
            subprocess.run([SCRIPTS / "cardinal", "broker", "down", "--data", folder], check=False, timeout=60)


def shown(path: Path) -> Iterator[dict[str, Any]]:
    """The outputs of a notebook, by media type, as one text."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            yield {kind: "".join(value) for kind, value in data.items()}
