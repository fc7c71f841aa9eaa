"""Finality marks that only rise, and a latch for a switch that contradicts them.

Rules:

1. The marks are the highest that any delivered block carried. They never fall, also not when that block is removed.
2. A mark above the block that carries it counts as that block's number: nothing above a node's head can be final.
3. A switch that would remove a finalized block latches :attr:`Finalizer.violation`. It is withheld (``halt``) or
   made (``follow``); the policy is no part of a lineage, so that an operator can let a halted stream continue.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import BlockRef, Finality, FinalityViolated


class OnFinalityViolation(Enum):
    """Policy for a switch that would remove a finalized block."""

    HALT = "halt"
    FOLLOW = "follow"


class Finalizer:
    """Finality marks of one stream. ``marks_of``: the marks that a block carries, None where it has none."""

    def __init__(
        self, marks_of: Callable[[BlockHeader], Finality | None] | None, on_violation: OnFinalityViolation
    ) -> None:
        self._marks_of = marks_of
        self._on_violation = on_violation
        self.marks: Finality | None = None
        self.violation: FinalityViolated | None = None

    def delivered(self, block: BlockHeader) -> None:
        """Raise the marks to those of a block that joins the chain."""
        if self._marks_of is None:
            return
        said = self._marks_of(block)
        if said is not None:
            old = self.marks or Finality()
            self.marks = Finality(
                _raised(old.safe, said.safe, block.number), _raised(old.finalized, said.finalized, block.number)
            )

    def allows(self, tip: BlockRef, lowest_removed: int) -> tuple[bool, FinalityViolated | None]:
        """True when a switch to ``tip`` may remove blocks down to this number; and a report, if there is one."""
        finalized = None if self.marks is None else self.marks.finalized
        if finalized is None or lowest_removed > finalized:
            return True, None
        violation = FinalityViolated(tip, finalized)
        follow = self._on_violation is OnFinalityViolation.FOLLOW
        # A withheld branch that continues to grow is reported once.
        report = violation if follow or self.violation is None else None
        self.violation = self.violation or violation
        return follow, report


def _raised(old: int | None, said: int | None, number: int) -> int | None:
    if said is None or said < 0:
        return old
    said = min(said, number)
    return said if old is None else max(old, said)
