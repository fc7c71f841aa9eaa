"""Options of an orderer, and the state that it resumes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import BlockRef, Finality, FinalityViolated

from .finality import OnFinalityViolation
from .forkchoice import Ties


@dataclass(frozen=True, slots=True)
class OrderingSettings:
    """Options of an orderer.

    Attributes:
        blacklist: hashes of blocks that are refused.
        finality_of: the finality marks that a block carries, None where it has none.
        on_finality_violation: see :class:`~.finality.OnFinalityViolation`.
        check_numbers: True when a child's number must be its parent's plus one; else it must only be higher.
        ties: see :class:`~.forkchoice.Ties`; evictions follow the same rule.
        seq: the last sequence number delivered.
        history: delivered blocks that are remembered by hash, for reorgs through channels.
        max_waiting, max_side: blocks.
        max_bytes: of the content of waiting blocks, and as much of side branches.
        max_extension: blocks; an extension by more is divided into several updates. None: never.
        patient: begin only at :meth:`Orderer.begin` or :meth:`Orderer.caught_up`, even with a long chain.

    """

    blacklist: Iterable[bytes] = ()
    finality_of: Callable[[BlockHeader], Finality | None] | None = None
    on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT
    check_numbers: bool = True
    ties: Ties = Ties.FIRST
    seq: int = 0
    history: int = 100_000
    max_waiting: int = 10_000
    max_side: int = 10_000
    max_bytes: int = 256 << 20
    max_extension: int | None = None
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
