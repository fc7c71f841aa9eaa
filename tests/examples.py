"""Number of examples of a law that is expensive."""

from __future__ import annotations

from hypothesis import settings

FULL = 100
"""Examples of a law that says nothing, in the profile ``full``."""


def examples(full: int) -> int:
    """So many with `--hypothesis-profile=full`, fewer in the proportion of the profile otherwise."""
    return max(1, full * settings.default.max_examples // FULL)
