"""Pause of Python's cyclic garbage collector while records are assembled.

A block under assembly is thousands of long-lived objects that are in no cycle. The collector runs after some number
of new objects, and now and then visits everything alive: while a backlog was read it took a third to a half of all time
(2.1 to 4 of 7 to 10 µs a message). Mercurial's ``util.nogc`` does the same for the same reason.

The pause lasts for one step of some thousands of records. Objects that the user makes between steps are collected as
usual, and a collector that the user has disabled stays disabled.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def collector_waits() -> Iterator[None]:
    """Disable the collector inside the block. Of several threads that do so at once, the first to leave enables it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
