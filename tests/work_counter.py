"""Work of a call, counted instead of timed: equal on any machine."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def lines(call: Callable[[], object]) -> int:
    """Lines of Python that a call executes on this thread; loops inside C do not count."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:  # noqa: ANN401 - a trace function's
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()  # of a coverage run
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def peak(call: Callable[[], object]) -> int:
    """Bytes of memory that a call takes at most, above what was held before."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
