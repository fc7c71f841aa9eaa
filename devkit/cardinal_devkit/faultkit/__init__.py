"""Fault kit for handlers: checks that a handler's state follows the chain, under any kill or restart of its process.

    class Balances:                                 # or a function that returns such an object
        def __init__(self, directory: Path): ...    # opens the store in this directory
        def handle(self, update: ChainUpdate): ...  # applies an update, stores `str(update.cursor)` with its data
        def cursor(self) -> str | None: ...         # the stored cursor, None before the first
        def state(self) -> object: ...              # plain data that depends on the chain only: no times, no cursors

    failure = find_failure("balances.py:Balances")
    assert failure is None, failure.story

The kit runs the handler in processes of its own on seeded chains with forks, kills these processes before seeded lines
of the handler, reopens the handler, and delivers the updates of a consumer that resumes from its cursor. The final
state must equal that of the same handler after a run without faults over the final chain. A failure is shrunk to few
blocks and faults, and reported with the command that repeats it.
"""

from __future__ import annotations

from .chain import APPS, Chain
from .kit import ComparedHandler, Counts, FaultKit, Settings, find_failure
from .story import Failure

__all__ = ["APPS", "Chain", "ComparedHandler", "Counts", "Failure", "FaultKit", "Settings", "find_failure"]
