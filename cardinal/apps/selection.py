"""Selections: the part of blocks that options of an application choose, such as the logs of a contract.

An application that has options brings a module with ``OPTIONS`` and ``selection(values)``; commands add the options
without a notion of their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cardinal.protocols.streams.payload import Payload

__all__ = ["Row", "Selection", "SelectionOption"]

Row: TypeAlias = Mapping[str, object]
"""One selected item, as values that JSON has."""


@dataclass(frozen=True, slots=True)
class SelectionOption:
    """Option of a command, which may be repeated.

    Attributes:
        name: without the dashes.
        metavar: the form of its value.
        help: one sentence.

    """

    name: str
    metavar: str
    help: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected part of blocks.

    Attributes:
        noun: its name in the plural, such as ``logs``.
        tracked: the part of a block that must be read for it.
        heading: titles above the lines.
        rows: the selected items of a block, in order.
        line: an item in one line, below the heading.

    """

    noun: str
    tracked: str
    heading: str
    rows: Callable[[Payload], list[Row]]
    line: Callable[[Row], str]
