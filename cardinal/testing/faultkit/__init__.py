"""Fault kit for handlers: checks that a handler's state follows the chain, whatever happens to its process.

    class Balances:                                 # or a function that returns such an object
        def __init__(self, directory: Path): ...    # opens the store in this directory
        def handle(self, update: ChainUpdate): ...  # applies an update, stores `str(update.cursor)` with its data
        def cursor(self) -> str | None: ...         # the stored cursor, None before the first
        def state(self) -> object: ...              # plain data that follows from the chain: no times, no cursors

    failure = find_failure("balances.py:Balances")
    assert failure is None, failure.story

The kit runs the handler in processes of its own on seeded chains with forks, kills these processes before seeded lines
of the handler, opens the handler again, and delivers from its cursor on what a consumer would deliver. In the end its
state must equal the one that the same handler has after a run without faults over the final chain alone. A failure is
shrunk to few blocks and faults, and comes with the command that repeats it.
"""

from __future__ import annotations

from .chain import APPS, Chain
from .kit import Counts, FaultKit, Handler, Settings, find_failure
from .story import Failure

__all__ = ["APPS", "Chain", "Counts", "Failure", "FaultKit", "Handler", "Settings", "find_failure"]
