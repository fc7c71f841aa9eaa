"""The vectors of the publish protocol, or those of the folder that `CARDINAL_VECTORS` names."""

from __future__ import annotations

import json

from vectors import VECTORS, Case


def load(name: str, key: str) -> list[Case]:
    """The cases of one file to test with; a folder without the file has none."""
    path = VECTORS / name
    cases: list[Case] = json.loads(path.read_text())[key] if path.is_file() else []
    return cases
