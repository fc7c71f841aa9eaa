"""Less of what is expensive in the default run: examples of a law, values of a parametrized test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL = 100
"""Examples of a law that says nothing, in the profile ``full``."""


def examples(full: int) -> int:
    """So many with `--hypothesis-profile=full`, fewer in the proportion of the profile otherwise."""
    return max(1, full * settings.default.max_examples // FULL)


def few(first: int, values: Iterable[Any]) -> list[Any]:
    """Values of a parametrized test of which the first ones are in the default run and the others are slow."""
    every = [value if isinstance(value, tuple) else (value,) for value in values]
    slow = pytest.mark.slow
    return [pytest.param(*value, marks=slow if number >= first else ()) for number, value in enumerate(every)]
