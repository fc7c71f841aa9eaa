"""Transports, services and commands import downwards only, for types as well as at run time."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _modules(folder: str) -> dict[str, Path]:
    """Names and files of a package's modules."""
    found = {}
    for path in (ROOT / folder).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(name: str, path: Path, known: set[str]) -> set[str]:
    """The modules of the same package that one imports anywhere in its text."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            inner = {f"{base}.{alias.name}" for alias in node.names} & known
            found |= inner or {base}
    return (found & known) - {name}


@pytest.mark.parametrize("folder", ["cardinal/config", "cardinal/transports", "cardinal/server", "cardinal/cli"])
def test_no_module_imports_another_in_a_circle(folder: str) -> None:
    modules = _modules(folder)
    graph = {name: _imports(name, path, set(modules)) for name, path in modules.items()}
    assert sum(map(len, graph.values())) > 4
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))
