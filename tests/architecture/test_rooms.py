"""The rules of the house that an import linter cannot say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("cardinal", "connectors", "devkit", "spark")
PURE = {
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "collections.abc", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "io", "itertools", "math", "operator", "re", "struct", "types", "typing",
    "cardinal.errors", "cardinal.texts", "cardinal.protocols", "fastavro",
    "cardinal_ingest.errors", "cardinal_ingest.protocols", "cardinal_ingest.protocols.cbor",
}  # fmt: skip
PROTOBUF = {"google.protobuf", "google.protobuf.internal", "google.protobuf.message"}
FOREIGN_WORDS = ("ethereum", "kafka", "spark", "asyncio", "solidity")


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


PURE_MODULES = [*modules("cardinal/protocols"), *modules("connectors/cardinal_ingest/protocols")]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


@pytest.mark.parametrize("path", PURE_MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_protocol_rooms_import_only_what_is_pure(path: Path) -> None:
    package = ".".join(path.relative_to(ROOT / "connectors" if "connectors" in path.parts else ROOT).parts[:3])
    allowed = PURE | PROTOBUF if package == "cardinal_ingest.protocols.publish" else PURE
    assert {name for name in imports(path) if not name.startswith(f"{package}.")} <= allowed


@pytest.mark.parametrize("path", PURE_MODULES, ids=lambda path: path.stem)
def test_protocol_rooms_use_no_word_of_a_chain_or_a_transport(path: Path) -> None:
    names = {node.id.lower() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert not [name for name in names if any(word in name for word in FOREIGN_WORDS)]


def test_the_pytest_plugin_imports_nothing_of_ours_at_module_level() -> None:
    tree = ast.parse((ROOT / "devkit/cardinal_devkit/testing/pytest_plugin.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in top for alias in node.names] + [getattr(node, "module", "") or "" for node in top]
    assert not [name for name in names if name.startswith("cardinal")]
    assert not [node for node in top if getattr(node, "level", 0)]


@pytest.mark.process
def test_importing_the_sdk_loads_no_extra() -> None:
    probe = (
        "import cardinal, sys; "
        "bad = {'pyspark', 'pyarrow', 'aiohttp', 'jgo', 'deltalake', 'confluent_kafka', 'pytest', 'grpc', 'h2', "
        "'google.protobuf'} & set(sys.modules); "
        "raise SystemExit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_http_2_is_spoken_in_one_package_only() -> None:
    speaks = {
        str(path.relative_to(ROOT))
        for folder in ROOTS
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
        if name.partition(".")[0] in {"h2", "hpack", "hyperframe", "grpc", "grpclib"}
    }
    assert speaks == {"connectors/cardinal_ingest/rpc/connection.py"}


@pytest.mark.parametrize(
    "path", [p for f in ("cardinal", "connectors", "devkit", "spark") for p in modules(f)], ids=str
)
def test_nothing_is_printed_outside_the_command_line(path: Path) -> None:
    text = path.read_text()
    calls = [
        node.lineno
        for node in (ast.walk(ast.parse(text)) if "print(" in text else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls or "cli" in path.parts or path.stem == "cli"
