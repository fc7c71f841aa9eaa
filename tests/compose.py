"""docker-compose.yml and Dockerfile as tests read them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@cache
def compose() -> dict[str, Any]:
    """The file; skips the test where no reader of YAML is installed."""
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed: nothing here reads YAML")
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def commands() -> dict[str, list[str]]:
    """What each service of ours runs, behind `cardinal`."""
    return {
        name: service["command"]
        for name, service in services().items()
        if service.get("build", {}).get("target") in ("cardinal", "lake") and "entrypoint" not in service
    }


def dotenv() -> dict[str, str]:
    """Variables of `docker compose`."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def running(profile: str) -> set[str]:
    """Services that run with a profile."""
    return {name for name, service in services().items() if profile in service.get("profiles", (profile,))}


def targets() -> set[str]:
    """The images that the Dockerfile makes."""
    return set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
