"""What a follower needs to know of its application and of its reader's wishes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from cardinal.protocols.streams.assembly.digests import Contents
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Header
from cardinal.protocols.streams.ordering.finality import OnFinalityViolation
from cardinal.protocols.streams.types import SHORT, BlockRef, Finality


class OnIncomplete(Enum):
    """What happens when a chain waits for a block whose messages are provably not on the topics (C-RE-7)."""

    SKIP = "skip"
    """The stream goes on with a :class:`~.payload.MissingPayload` in its place.

    Of a quorum, producers count with what they have written by then: one that lags by more than a threshold of blocks
    is not waited for, though with it enough might agree.
    """

    HALT = "halt"
    """The stream waits until somebody supplies the messages, or until enough producers of a quorum agree."""


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """See the module.

    Attributes:
        app: the application's name; chain: its name for the chain. Both stand in cursors.
        contents: whether records carry values or digests, see :mod:`~.assembly.digests`; a quorum needs values.
        tracked, inline: see :class:`~.reassembler.Reassembler`.
        prefixes: the expressions under which the application counts.
        reorg_threshold: blocks.
        whitelist: number to the only hash that may stand there.
        blacklist: hashes of blocks that are refused, with all that descends from them.
        finality_of: the marks that a block carries.
        on_finality_violation: what to do with a switch below a finalized block.
        start: the last block not to deliver; None starts by the rule of :mod:`.start`.
        start_weight: its weight; None counts as 0.
        patient: whether the stream begins as :mod:`.patience` says, not above blocks that are about to come.
        policy: ``first``, or ``quorum:k``: which copies of a message count.
        producers: the ids whose copies count for a quorum.
        volatile: expressions searched in paths whose values may differ between producers.
        on_incomplete: what to do about a block that cannot be completed.
        default_topic: where Batches and announcements of reorg channels are; None follows no channels.
        history: delivered blocks that are remembered by hash, for reorgs through channels.
        max_update: blocks in one update at most, unless it is a switch: a consumer far behind gets the chain in pieces.
        max_waiting, max_side: complete blocks that may wait for a parent, or stand on side branches.
        max_bytes: of the content of either, and of what all reorg channels hold.
        bounds: of what is being assembled; every reorg channel has a share of it beside.

    """

    app: str
    chain: str
    tracked: tuple[str, ...] | None = None
    inline: bool = False
    prefixes: tuple[str, ...] = ()
    reorg_threshold: int = 128
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    blacklist: frozenset[bytes] = frozenset()
    finality_of: Callable[[Header], Finality | None] | None = None
    on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT
    start: BlockRef | None = None
    start_weight: int | None = None
    patient: bool = False
    policy: str = "first"
    producers: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    on_incomplete: OnIncomplete = OnIncomplete.SKIP
    default_topic: str | None = None
    history: int = 100_000
    max_waiting: int = 10_000
    max_side: int = 10_000
    max_bytes: int = 256 << 20
    contents: Contents = Contents.VALUES
    max_update: int = 1_000
    bounds: Bounds = Bounds()  # noqa: RUF009 - frozen

    def fingerprint(self) -> bytes:
        """Eight bytes that stand for every option that decides which content is delivered under which number.

        Outside is what the application declares: with a release that adds a topic, a stream goes on. So are ``start``,
        its weight and ``patient``: they say where to begin from nothing, and the first block delivered is part of a
        lineage by itself; and ``on_finality_violation``, ``on_incomplete`` and ``blacklist``: they say what to do about
        a stream that stands still or goes astray, contradict nothing that was delivered (a cursor that delivered a
        block of the blacklist is refused), and changing them is how an operator lets it go on. ``default_topic``,
        ``history``, ``max_update`` and the bounds say what can be followed at all; ``finality_of`` belongs to the
        application.
        """
        pinned = sorted((number, block.hex()) for number, block in self.whitelist.items())
        tracked = None if self.tracked is None or self.inline else sorted(self.tracked)
        quorum = self.policy != "first"
        trusted = (self.policy, sorted(self.producers), sorted(self.volatile)) if quorum else ()
        facts = (self.app, self.chain, tracked, self.reorg_threshold, pinned, trusted)
        return blake2b(repr(facts).encode(), digest_size=SHORT, person=b"cardinal-line").digest()
