"""Waits for conditions that other threads, processes or tasks bring about."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE = 60.0
_LOOK_SECONDS = 0.005


def until(
    holds: Callable[[], object],
    within: float = DEADLINE,
    step: Callable[[], object] = lambda: time.sleep(_LOOK_SECONDS),
) -> None:
    """Wait for a condition; fails after so many seconds.

    ``step`` runs between two checks: what brings the condition about, or a sleep.
    """
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"it does not hold after {within:g} s"
        step()


async def until_async(holds: Callable[[], object], within: float = DEADLINE) -> None:
    """The same beside a running event loop."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(_LOOK_SECONDS)
