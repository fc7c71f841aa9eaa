"""The pages for readers of the code name files, classes and functions that exist, and all states of a block."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from cardinal.protocols.streams import ChainUpdate
from cardinal.protocols.streams.events import Event
from pages import ROOT, section

PAGES = [ROOT / "docs/architecture.md", ROOT / "docs/glossary.md"]
SOURCES = [ROOT / "cardinal", *(ROOT / "connectors").iterdir(), ROOT / "devkit/cardinal_devkit", ROOT / "spark"]
SUFFIXES = (".py", ".md", ".toml", ".avsc", ".proto", ".json")
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)+")
MODULE = re.compile(r"cardinal(_\w+)?(\.\w+)+|cardinal_\w+")
CLASS = re.compile(r"(?P<name>[A-Z]\w*[a-z]\w*)(\.(?P<member>\w+))?")
FUNCTION = re.compile(r"(?P<name>[a-z]\w*)\(\)")
IN_DRAWINGS = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")
STATES = re.compile(r"^\| `([^`]+)` \|.*\| ([^|]*) \|$", re.MULTILINE)


@cache
def definitions() -> tuple[dict[str, set[str]], set[str]]:
    """Members of every class by its name, of types that are assigned none; and the names of all functions."""
    classes: dict[str, set[str]] = {}
    functions: set[str] = set()
    for path in (path for folder in SOURCES for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name):
                    classes.setdefault(name, set()).update(members(node))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    functions.add(name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    classes.setdefault(name, set())
    return classes, functions


def members(node: ast.ClassDef) -> set[str]:
    """Methods of a class, and what it assigns to itself."""
    found: set[str] = set()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def module_exists(name: str) -> bool:
    """True for a module or package of one of the roots, and for a group of entry points."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    path = Path(*name.split("."))
    bases = [base / path for base in (ROOT, ROOT / "connectors", ROOT / "devkit", ROOT / "spark")]
    return name in groups or any(base.is_dir() or base.with_suffix(".py").is_file() for base in bases)


def exists(name: str) -> bool:
    """False for what looks like a name of this repository, and is none."""
    classes, functions = definitions()
    if PATH.fullmatch(name):
        return (ROOT / name).exists()
    if name.endswith(SUFFIXES):
        return (ROOT / name).exists()
    if MODULE.fullmatch(name):
        return module_exists(name)
    if found := CLASS.fullmatch(name):
        return found["name"] in classes and (found["member"] is None or found["member"] in classes[found["name"]])
    if found := FUNCTION.fullmatch(name):
        return found["name"] in functions
    return True


def named(text: str) -> set[str]:
    """Names in backticks, and names of classes in drawings."""
    drawings = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {*IN_BACKTICKS.findall(prose), *(name for one in drawings for name in IN_DRAWINGS.findall(one))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_name_of_a_page_exists(path: Path) -> None:
    names = named(path.read_text(encoding="utf-8"))
    assert len(names) > 50
    assert sorted(name for name in names if not exists(name)) == []


@pytest.mark.parametrize(
    "name",
    [
        "cardinal/nothing.py",
        "nothing.md",
        "cardinal.nothing",
        "cardinal_nothing",
        "Nothing",
        "Reader.nothing",
        "no_no()",
    ],
)
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    assert not exists(name)


def texts_of(node: ast.AST | None, constants: dict[str, str]) -> set[str]:
    """The beginnings of all texts that an expression may have, up to a colon or to what is filled in."""
    found = ""
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=str(text)):
            found = text
        case ast.Name(id=name):
            found = constants.get(name, "")
        case ast.JoinedStr(values=[first, *_]) | ast.FormattedValue(value=first):
            parts = [first]
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Call(args=[_, default]):  # a look-up with a default
            parts = [default]
    texts = {found.partition(":")[0].strip()} - {""}
    return texts.union(*(texts_of(one, constants) for one in parts))


def states_of(tree: ast.Module) -> set[str]:
    """The states that a module of the streams protocol gives to a block.

    They are the third value of an `Explanation`, its `state` when it is replaced, any text that `state` is set to, what
    functions named after it return, and what an orderer remembers of a block that it no longer holds.
    """
    constants: dict[str, str] = {}
    found: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                constants[name] = text
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Explanation"), args=[_, _, state, *_]):
                found.append(state)
            case ast.Call(func=ast.Name(id="replace"), keywords=keywords):
                found += [one.value for one in keywords if one.arg == "state"]
            case ast.Assign(targets=[ast.Name(id="state")], value=value):
                found.append(value)
            case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="_last_states"))], value=value):
                found.append(value)
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Subscript(value=ast.Attribute(attr="_last_states")), *_])],
                value=ast.Tuple(elts=[value, *_]),
            ):
                found.append(value)
            case ast.FunctionDef(name="state_of" | "_held_state"):
                found += [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
    return {text for one in found for text in texts_of(one, constants)}


def test_the_table_of_states_has_those_that_the_protocol_knows() -> None:
    streams = ROOT / "cardinal/protocols/streams"
    known = {state for path in streams.rglob("*.py") for state in states_of(ast.parse(path.read_text("utf-8")))}
    table = STATES.findall(section(PAGES[1].read_text("utf-8"), "States of a block"))
    assert {state for state, _ in table} == known
    assert {"open", "complete", "delivered", "removed", "refused", "evicted", "abandoned", "pruned"} <= known


def test_the_table_of_states_names_reports_and_the_page_names_all_of_them() -> None:
    text = PAGES[1].read_text("utf-8")
    reports = {kind.__name__ for kind in (*get_args(Event), ChainUpdate)}
    table = STATES.findall(section(text, "States of a block"))
    used = {name for _, last in table for name in IN_BACKTICKS.findall(last)}
    assert used <= reports | {"MissingPayload"}
    assert reports <= named(text)
