"""Settings of an orderer, and the state that it resumes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import BlockRef, Finality, FinalityViolated

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
    patient: bool = False


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """State of an earlier run of the stream, in addition to its ring.

    Attributes:
        start: the first block that it delivered; None where that is the ring's lowest.
        finality: the finality marks at the head.
        violation: the first switch that was withheld.
        missing: the ring's blocks to remove without content, although it may be re-read: they were delivered
            without it, or a second Batch disputes it.
        root: the hash of the start's parent, a possible fork point, as long as the ring reaches down to it; else empty.

    """

    start: BlockRef | None = None
    finality: Finality | None = None
    violation: FinalityViolated | None = None
    missing: frozenset[bytes] = frozenset()
    root: bytes = b""
