"""The values of the planner: what it depends on, what it holds between batches, what a batch delivers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.assembly.counters import Tracked
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Event
from cardinal.protocols.streams.types import Partition, Record

from .offsets import PlanOffset, option_digests

if TYPE_CHECKING:
    from cardinal.protocols.streams.following.follower import FollowerSettings

_UNBOUNDED: Final = Bounds(open_bytes=1 << 62, open_blocks=1 << 62)


@dataclass(frozen=True)
class PlanSettings:
    """What planning depends on.

    ``follower``: the application's settings, as a consumer has them; its ``finality_of`` is asked about headers.
    ``keep``: the paths of BatchMsgs whose values a header carries among its marks.
    """

    follower: FollowerSettings
    keep: frozenset[bytes] = frozenset()

    @cached_property
    def options(self) -> bytes:
        """The digests that offsets carry."""
        settings = self.follower
        return option_digests(
            {
                "app": settings.app,
                "chain": settings.chain,
                "tracked": None if settings.tracked is None else sorted(settings.tracked),
                "prefixes": sorted(settings.prefixes),
                "reorg_threshold": settings.reorg_threshold,
                "whitelist": sorted((number, block.hex()) for number, block in settings.whitelist.items()),
                "on_finality_violation": settings.on_finality_violation.value,
            }
        )

    @cached_property
    def tracked(self) -> Tracked | None:
        """The tracked expressions, compiled."""
        return None if self.follower.tracked is None else Tracked(self.follower.tracked, inline=self.follower.inline)

    def reassembler(self, contents: Contents) -> Reassembler:
        """A reassembler that never drops anything: whoever feeds it bounds what it gets."""
        return Reassembler(
            self.follower.tracked,
            self.follower.reorg_threshold,
            prefixes=self.follower.prefixes,
            volatile=self.follower.volatile,
            inline=self.follower.inline,
            contents=contents,
            bounds=_UNBOUNDED,
        )


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """The records of an incomplete block, copies and all.

    ``lowest`` is their lowest offset in every partition, ``number`` its Batch's, None without one; ``need`` the records
    that it takes at least.
    """

    records: tuple[Record, ...]
    lowest: Mapping[Partition, int]
    number: int | None
    need: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete block: its header, and in which ranges of offsets its messages lie.

    ``last`` is the highest offset of every partition at which any record of it was seen; ``size`` its bytes, about.
    """

    header: HeaderOnly
    ranges: Mapping[Partition, tuple[int, int]]
    published_ms: int
    size: int
    last: Mapping[Partition, int]

    @property
    def height(self) -> tuple[int, bytes]:
        """What blocks are sorted by: number, then hash."""
        return self.header.number, self.header.hash


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the next batch depends on.

    Attributes:
        offset: what a checkpoint keeps of it.
        opened: incomplete blocks.
        blocks: complete blocks that can be known again from [floor, pos).
        seen: for entries of ``offset.done`` the highest offsets at which a record of theirs was seen, where any of
            them lies at or above the floor.

    """

    offset: PlanOffset
    opened: Mapping[bytes, OpenBlock] = field(default_factory=dict)
    blocks: Mapping[bytes, Whole] = field(default_factory=dict)
    seen: Mapping[bytes, Mapping[Partition, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """One row: a block that joins (+1) or leaves (-1) the chain, and where to read it."""

    seq: int
    change: int
    update_id: int
    lineage: str
    block: Whole


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch delivers: ``rows`` in order, cut into ``updates`` updates; the state behind it; reports."""

    state: State
    rows: tuple[PlannedBlock, ...]
    updates: int
    events: tuple[Event, ...]
