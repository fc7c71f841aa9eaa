"""Frontier: the end of the chain that is complete on the topics, for a producer that starts.

The highest sealed Batch is not the answer: its producer sent it after its parent's Batch, but to another partition, and
may have been killed in between. So the chain ends at the highest block from which *every* ancestor, back to the start
of the scanned tail, is present and complete.

1. A block is complete when its Batch is sealed. A Batch without the seal comes from a producer that does not seal; its
   block counts when all its messages are seen. The blocks of a reorg channel are only there (:mod:`.channels`).
2. Only the tail of the default topic is read: the newest records of every partition. The partitions' tails begin at
   different blocks, so the chain begins at the lowest block above which no Batch can be missing for that reason
   (:mod:`.batch_index`). More is read where that one is not complete, of a partition without a Batch (pings
   alone, while the chain stood still), and twice where the chain ends far below the highest complete Batch.
3. Partially published blocks are near the newest Batch: what a producer that was killed had in flight. Where others
   have continued since, they are near the last Batch of the one that starts (:mod:`.partial`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.apps.base import REORG_THRESHOLD
from cardinal.producing.survey.batch_index import BatchIndex
from cardinal.producing.survey.channels import read_channels
from cardinal.producing.survey.completeness import complete_among
from cardinal.producing.survey.partial import PartialBlock, partial_around, place
from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.types import BlockRef
    from cardinal.protocols.streams.wire.messages import Batch
    from cardinal.transports.base import Source

_TAIL: Final = 2_048
_EXTENSION_FACTOR: Final = 4
_EXTENSIONS: Final = 2
"""Extensions of a tail that may begin with late Batches."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The frontier, and what is partially published there.

    Attributes:
        chain: the newest blocks that are complete, one chain, oldest first.
        batches: the Batches of these, and others, by hash.
        partial: blocks that are partially published, the lowest first, those without a number last.
        moments: around which such blocks are searched once more, in milliseconds (:mod:`.partial`).
        last, following: of a stream whose blocks are known by number alone: the last block, and the one to resume with,
            which is lower: a few are published again, because the last may be of another branch.

    """

    chain: list[BlockRef]
    batches: Mapping[bytes, Batch]
    partial: tuple[PartialBlock, ...]
    moments: tuple[int, ...] = ()
    last: int | None = None
    following: int | None = None


def survey(
    source: Source,
    app: Stream,
    *,
    producer_id: str = "",
    tail: int = _TAIL,
    open_channel: Callable[[str], Source] | None = None,
) -> Survey:
    """Find the frontier, and what is partially published there. UnreachableError where the records do not arrive.

    The source reads all topics of the application, ``tail`` records of every partition and more where these do not
    suffice; it is reassigned. ``producer_id`` restarts, and may have left partial blocks that others continued above.
    ``open_channel`` opens the topic of a reorg's channel; without it none is read.
    """
    chain, index = _scan(source, app, tail, (PRODUCER_HEADER, producer_id.encode()), open_channel)
    near = max((last for _, last in index.times.values()), default=None) if index.left is None else index.left
    incomplete, _ = partial_around(source, app, () if near is None else (near,), index=index)
    moments = tuple(moment for moment in (near, index.newest) if moment is not None)
    return Survey(chain, index.batches, tuple(sorted(incomplete.values(), key=place)), moments)


def _scan(
    source: Source, app: Stream, tail: int, who: tuple[str, bytes], open_channel: Callable[[str], Source] | None
) -> tuple[list[BlockRef], BatchIndex]:
    """The chain, and the index of the tail that it was found in."""
    marks = source.watermarks()
    default = {tp: ends for tp, ends in marks.items() if tp[0] == app.default_topic}
    ends = {tp: high for tp, (_, high) in marks.items()}
    tails = dict.fromkeys(default, tail)
    extensions = _EXTENSIONS
    while True:
        starts = {tp: max(low, high - tails[tp]) for tp, (low, high) in default.items()}
        index = BatchIndex(getattr(app, "reorg_threshold", REORG_THRESHOLD), who)
        read_range(source, starts, ends, index.add)
        if open_channel is not None:
            read_channels(open_channel, app, index)
        index.complete |= complete_among(source, app, index.copies())
        chain = index.chain(starts)
        cut = {tp for tp, (low, _) in default.items() if starts[tp] > low}
        silent = cut - index.lowest.keys()
        doubtful = bool(chain) and not silent and extensions > 0 and index.ends_far_below(chain)
        if not cut or (chain and not silent and not doubtful):
            return chain or index.chain_above_retention(), index
        extensions -= doubtful
        for tp in silent or cut:
            tails[tp] *= _EXTENSION_FACTOR
