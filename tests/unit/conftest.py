"""Guard of unit tests: a thread that one leaves disturbs those after it in the same process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

ENDS_WITHIN = 5.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Fails a test that leaves a thread of ours; set up before its other fixtures, and so checked after them."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + ENDS_WITHIN
    while left := [one for one in threading.enumerate() if one not in before and one.name.startswith("cardinal-")]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads are left: {left}; close what the test opened")
        time.sleep(0.01)
