"""Citations: a rule that is cited stands in a page of the repository; no text refers to a document outside of it."""

from __future__ import annotations

import ast
import io
import json
import re
import token
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from pages import ROOT

INGEST = ROOT / "connectors/cardinal_ingest/docs"
SPEC = ROOT / "schemas/SPEC.md"
PAGES = [
    *(INGEST / f"{name}.md" for name in ("publish", "mesh", "diffusion", "replication", "cluster")),
    ROOT / "connectors/cardinal_ethereum/docs/application.md",
    ROOT / "connectors/cardinal_ethereum/docs/nodes.md",
    ROOT / "spark/cardinal_spark/docs/spark.md",
    SPEC,
]
KINDS = {
    "P": "publish.md",
    "M": "mesh.md",
    "MD": "mesh.md",
    "O": "diffusion.md",
    "R": "replication.md",
    "RD": "replication.md",
    "CD": "cluster.md",
    "D": "SPEC.md",
}
LABEL = rf"(?:{'|'.join(KINDS)})\d{{1,2}}|[PCW](?:-[A-Z]+)?-\d{{1,2}}"
RULE = re.compile(rf"^(?:- |\| )\*\*({LABEL})\*\* |^\| (D\d+) \|", re.MULTILINE)
CITED = re.compile(rf"(?<![\w+/=%.-])({LABEL})(?![\w+/=%-])")
EXCEPTIONS = {
    "docs/spark.md": {"R2"},  # an object store
}
"""Labels that mean something else, by file."""
PLACE = re.compile(
    r"(?P<page>(?:[\w-]+/)+[\w-]+\.md)`{0,2}, (?P<kind>section|rule)s? "
    r"(?P<numbers>\d[\d.]*(?:(?:, | and | to )\d[\d.]*)*)"
)
OUTSIDE = re.compile(
    r"\bfacts?/|\bfact sheets?\b|\((?:\w+ )?facts(?: on | of |, (?:[A-Z]|rule|section|\w+\.md))|\bDESIGN\b"
    r"|\bshared/(?!fixtures\b|vectors\b)"
)
"""A document outside of the repository. Blocks of real chains and the reference's vectors may lie in a folder beside
it: they are data, and tests that read them are skipped without."""
SOURCES = ("cardinal", "connectors", "devkit", "spark", "tests")
TEXTS = (*SOURCES, ".ci", "deploy", "docs", "schemas")
SUFFIXES = {".avsc", ".go", ".ipynb", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}


def files(*folders: str) -> Iterator[Path]:
    """Text files below these folders of the repository."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and not {"__pycache__", "data"} & {*path.parts}:
                yield path


def prose(path: Path) -> str:
    """Text of a file that may cite, on one line: of a module the comments, docstrings and strings."""
    text = path.read_text(encoding="utf-8")
    if not (CITED.search(text) or ".md" in text):
        return ""
    if path.suffix == ".py":
        kinds = {token.COMMENT, token.STRING, getattr(token, "FSTRING_MIDDLE", -1)}
        found = (one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type in kinds)
        text = "\n".join(one.lstrip("#") for one in found)
    return re.sub(r"\s+", " ", text)


@cache
def rules() -> dict[str, Path]:
    """The page of every rule."""
    return {label: page for page in PAGES for label in labels(page.read_text(encoding="utf-8"))}


@cache
def tree(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def labels(text: str) -> list[str]:
    """Labels of the rules of a page, in its order."""
    return [rule or difference for rule, difference in RULE.findall(text)]


def refers_outside(text: str) -> bool:
    """True for a text that refers to a document outside of the repository; a reference may be on two lines."""
    perhaps = any(word in text for word in ("fact", "DESIGN", "shared/"))
    return perhaps and OUTSIDE.search(re.sub(r"\s+", " ", text)) is not None


def dangling(text: str) -> list[str]:
    """Labels and places that a text cites and no page has."""
    found = [label for label in CITED.findall(text) if label not in rules()]
    for place in PLACE.finditer(text):
        page = ROOT / place["page"]
        content = page.read_text(encoding="utf-8") if page.is_file() else ""
        for number in re.findall(r"\d+(?:\.\d+)?", place["numbers"]):
            heading = rf"^#+ {number}\.? " if place["kind"] == "section" else rf"^- \*\*{number}\*\* "
            if not re.search(heading, content, re.MULTILINE):
                found.append(f"{place['page']}, {place['kind']} {number}")
    return found


def test_every_label_is_of_one_rule_and_none_is_left_out() -> None:
    found = [(label, page.name) for page in PAGES for label in labels(page.read_text(encoding="utf-8"))]
    assert sorted({label for label, _ in found}) == sorted(label for label, _ in found)
    numbered = sorted((label.rstrip("0123456789"), page, label) for label, page in found if "-" not in label)
    kinds = {kind: [*each] for kind, each in groupby(numbered, key=lambda one: one[:2])}
    assert {kind for kind, _ in kinds} == KINDS.keys()
    for (kind, page), each in kinds.items():
        assert page == KINDS[kind]
        assert {label for *_, label in each} == {f"{kind}{number}" for number in range(1, len(each) + 1)}


@pytest.mark.parametrize("folder", SOURCES)
def test_every_cited_rule_stands_in_a_page(folder: str) -> None:
    cited = {path: dangling(prose(path)) for path in files(folder) if path.suffix == ".py" and path != Path(__file__)}
    assert {path: found for path, found in cited.items() if found} == {}


def test_every_rule_that_a_page_cites_stands_in_one() -> None:
    for page in (*PAGES, *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        allowed = EXCEPTIONS.get(str(page.relative_to(ROOT)), set())
        assert {*dangling(prose(page))} <= allowed, page


@pytest.mark.parametrize("name", ["publish-arbiter.json", "publish.json", "diffusion.json"])
def test_every_rule_that_a_vector_witnesses_stands_in_a_page(name: str) -> None:
    text = (ROOT / "schemas/vectors" / name).read_text(encoding="utf-8")
    named = set(re.findall(r'"rule": ?"([A-Z]+\d+)(?:\.\d)?"', text))
    assert len(named) > 3
    assert named <= rules().keys()
    json.loads(text)


def test_every_witness_of_the_specification_is_a_test() -> None:
    witnesses = set(re.findall(r"`tests/([\w/]+\.py)::(\w+)`", SPEC.read_text(encoding="utf-8")))
    assert len(witnesses) > 30
    for file, function in witnesses:
        (path,) = (ROOT / "tests").rglob(file)
        tests = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert function in {one.name for one in ast.walk(tree(path)) if isinstance(one, tests)}, f"{file}::{function}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).is_file(), link


def test_no_text_refers_to_a_document_outside_of_the_repository() -> None:
    texts = [path for path in (*files(*TEXTS), *ROOT.glob("*.md"), *ROOT.glob("*.toml")) if path != Path(__file__)]
    assert len(texts) > 500
    assert [path for path in texts if refers_outside(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is dropped (P21), also in mid-block (P22 to P24).", []),
        ("It is dropped (P99).", ["P99"]),
        ("rules C-RE-7 and C-RE-77", ["C-RE-77"]),
        ("P2P, P1234, base64 +P99/, %C3%A9, CD99-ROM", []),
        ("``schemas/SPEC.md``, sections 2.6, 7 and 12", ["schemas/SPEC.md, section 12"]),
        ("connectors/cardinal_ethereum/docs/nodes.md, rule 1", []),
        (
            "connectors/cardinal_ethereum/docs/nodes.md, rules 1 to 77",
            ["connectors/cardinal_ethereum/docs/nodes.md, rule 77"],
        ),
        ("connectors/nothing.md, section 1.", ["connectors/nothing.md, section 1"]),
    ],
)
def test_the_look_finds_a_citation_of_nothing(text: str, found: list[str]) -> None:
    assert dangling(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "Rules (facts/replication.md, section 4):",
        "the decisions of the protocol's fact sheet",
        "paths and values (facts, EVM application layer)",
        "(spark facts, rule 13)",
        "(facts on nodes, rule 5)",
        "the laws of DESIGN §5",
        "as ../shared/STYLE.md has it",
    ],
)
def test_the_look_finds_a_document_outside_of_the_repository(text: str) -> None:
    assert OUTSIDE.search(text)
    assert not OUTSIDE.search(
        "artifacts/ of (facts, body), repr(facts), the committed facts; ../shared/fixtures/chains"
    )
