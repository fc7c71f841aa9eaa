"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Arguments = ParamSpec("_Arguments")


def on_loop(test: Callable[_Arguments, Coroutine[object, object, None]]) -> Callable[_Arguments, None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
