"""`schemas/SPEC.md` is held to what it says of itself: every rule has witnesses, and every witness exists."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vectors import FOLDER, cases_of
from vectors import ours as load

SCHEMAS = FOLDER.parent
TESTS = SCHEMAS.parent / "tests"
TEXT = (SCHEMAS / "SPEC.md").read_text()
FILES = {"messages": "messages.json", "produce": "produce.json", "consume": "consume.json.gz", "own": "own.json"}

REFERENCE = SCHEMAS.parent.parent / "shared/vectors"
ADDED = ("cardinal", "reports")

SKIPS = re.compile(r"\b(skip|skipif|xfail|importorskip)\(|\bmark\.(skip|xfail)\b")
RULE = re.compile(r"^- \*\*([PCW](?:-[A-Z]+)?-\d+)\*\* (.+?) Witness: (.+)\.$", re.MULTILINE)
RULES = {number: re.findall("`([^`]+)`", witnesses) for number, _, witnesses in RULE.findall(TEXT)}
DIFFERENCES = {
    cells[0]: re.findall(r"[PCW](?:-[A-Z]+)?-\d+", cells[1])
    for line in TEXT.splitlines()
    if re.match(r"\| D\d+ \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


@cache
def names(file: str) -> frozenset[str]:
    return frozenset(case["name"] for case in load(file))


@cache
def functions(file: Path) -> frozenset[str]:
    return collected(file.read_text())


def collected(text: str) -> frozenset[str]:
    """The tests of a module, and of its classes, that pytest collects and nothing skips."""
    module = ast.parse(text)
    skipped = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and SKIPS.search(ast.unparse(node))
        for node in module.body
    )
    classes = (node for node in module.body if isinstance(node, ast.ClassDef))
    bodies = [
        module.body,
        *(one.body for one in classes if not SKIPS.search(str([*map(ast.unparse, one.decorator_list)]))),
    ]
    tests = [
        node
        for body in bodies
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    return frozenset(node.name for node in tests if not (skipped or SKIPS.search(ast.unparse(node))))


def test_every_rule_is_read_and_has_a_number_of_its_own() -> None:
    bullets = [line for line in TEXT.splitlines() if line.startswith("- **")]
    assert len(bullets) == len(RULES) >= 80
    assert all(RULES.values())


@pytest.mark.parametrize(
    "text",
    [
        "def helper():\n def test_it(): ...",
        "@pytest.mark.skip\ndef test_it(): ...",
        "@pytest.mark.skipif(True, reason='')\ndef test_it(): ...",
        "@pytest.mark.xfail\ndef test_it(): ...",
        "def test_it():\n pytest.skip('')",
        "def test_it():\n pytest.importorskip('x')",
        "pytestmark = [pytest.mark.slow, pytest.mark.skipif(True, reason='')]\ndef test_it(): ...",
        "@pytest.mark.skip\nclass TestIt:\n def test_it(self): ...",
    ],
)
def test_a_test_that_is_nested_or_skipped_is_no_witness(text: str) -> None:
    assert collected(text) == frozenset()
    assert collected("@pytest.mark.slow\ndef test_it(): ...\nclass TestIt:\n def test_more(self): ...") == {
        "test_it",
        "test_more",
    }


@pytest.mark.parametrize("number", RULES)
def test_every_witness_exists(number: str) -> None:
    for witness in RULES[number]:
        kind, name = witness.split("/", 1)
        if kind == "tests":
            file, function = name.split("::")
            found = list(TESTS.rglob(file))
            assert len(found) == 1, witness
            assert function.startswith("test_")
            assert function in functions(found[0]), witness
        else:
            assert name in names(FILES[kind]), witness


def test_every_own_case_witnesses_rules_and_is_named_by_them() -> None:
    for case in load("own.json"):
        for number in case["witness"]:
            assert f"own/{case['name']}" in RULES[number]
    said = {(number, case["name"]) for case in load("own.json") for number in case["witness"]}
    named = {
        (number, witness.removeprefix("own/"))
        for number, witnesses in RULES.items()
        for witness in witnesses
        if witness.startswith("own/")
    }
    assert named == said


def test_the_differences_are_twenty_and_belong_to_rules() -> None:
    assert list(DIFFERENCES) == [f"D{number}" for number in range(1, 21)]
    for rules in DIFFERENCES.values():
        assert rules
        assert set(rules) <= RULES.keys()


@pytest.mark.parametrize("kind", ["messages", "produce", "consume"])
def test_every_case_that_cardinal_answers_otherwise_names_its_difference(kind: str) -> None:
    annotated = [case for case in load(FILES[kind]) if "cardinal" in case]
    assert annotated
    for case in annotated:
        number, reason = case["cardinal"]["reason"].split(":", 1)
        assert number in DIFFERENCES, case["name"]
        assert len(reason.split()) >= 5


def test_a_difference_that_a_vector_can_show_is_shown() -> None:
    shown = {
        case["cardinal"]["reason"].split(":")[0]
        for kind in ("messages", "produce", "consume")
        for case in load(FILES[kind])
        if "cardinal" in case
    }
    # These leave blocks and updates as they are (D11, D13, D19), are of the EVM application (D18), or choose one of
    # several encodings of a value (D20).
    assert DIFFERENCES.keys() - shown == {"D11", "D13", "D18", "D19", "D20"}


@pytest.mark.parametrize("name", ["batch.avsc", "update.avsc", "ranges.avsc"])
def test_the_schemas_in_the_text_are_the_files(name: str) -> None:
    block = re.search(rf"```json {re.escape(name)}\n(.+?)\n```", TEXT, re.DOTALL)
    assert block is not None
    shown: dict[str, Any] = json.loads(block.group(1))
    assert shown == json.loads((SCHEMAS / name).read_text())


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference's own vectors are not beside the project")
def test_the_projects_cases_are_the_references_but_for_what_cardinal_adds() -> None:
    for kind in ("messages", "produce", "consume"):
        theirs = cases_of((REFERENCE / FILES[kind]).read_bytes())
        ours = [{key: value for key, value in case.items() if key not in ADDED} for case in load(FILES[kind])]
        assert ours == theirs, kind
