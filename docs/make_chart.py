"""The README's chart, as the notebook of token transfers has stored it: ``python docs/make_chart.py``."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Final

NOTEBOOK: Final = Path(__file__).parents[1] / "spark/notebooks/token_transfers.ipynb"
TARGET: Final = Path(__file__).with_name("token_transfers.png")


def chart() -> bytes:
    """The notebook's last chart, PNG."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    return b64decode([data["image/png"] for data in shown if "image/png" in data][-1])


if __name__ == "__main__":
    TARGET.write_bytes(chart())
