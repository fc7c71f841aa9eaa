"""Settings of an orderer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import Finality

from .finality import OnFinalityViolation


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderingSettings:
    """Settings of an orderer.

    Attributes:
        blacklist: hashes of blocks that are refused, with all their descendants.
        finality_of: the finality marks that a block carries, None where it has none.
        on_finality_violation: policy for a switch below a finalized block.
        history: delivered blocks that are remembered by hash, for reorgs through channels.
        max_waiting, max_side: complete blocks that may wait for a parent, or stand on side branches.
        max_bytes: of the content of either.
        max_update: blocks in one update at most, unless it is a switch; None: any number.
        until: an update that extends the chain across this number ends with it, and another one continues.
        start_delivered: the given start was delivered by an earlier run. False: it is the parent of the first block,
            and no block at or below it is delivered or removed.
        begin_anew: a heavier chain that leaves below the start replaces everything that was delivered, in one update,
            unless finality forbids it. False: it is only reported.
        patient: begin only at :meth:`Orderer.begin` or :meth:`Orderer.caught_up`, even with a long chain.

    """

    blacklist: frozenset[bytes] = frozenset()
    finality_of: Callable[[BlockHeader], Finality | None] | None = None
    on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT
    history: int = 100_000
    max_waiting: int = 10_000
    max_side: int = 10_000
    max_bytes: int = 256 << 20
    max_update: int | None = None
    until: int | None = None
    start_delivered: bool = True
    begin_anew: bool = False
    patient: bool = False
