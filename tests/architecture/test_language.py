"""First lines of docstrings name the thing with a noun phrase, or the action with a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = re.compile(r"(What|Whatever|Whether|Which|Whose|How|Where|Who|Whoever|When)\b|See the module\W*$")


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and first line of every docstring, also of attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip().partition("\n")[0]


def violations(path: Path) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{number}: {line}" for number, line in first_lines(path) if FORBIDDEN.match(line)]


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", ["cardinal", "connectors", "devkit", "spark"])
def test_no_first_line_begins_with_a_question_word_or_only_refers_to_the_module(folder: str) -> None:
    assert not [line for path in modules(folder) for line in violations(path)]
