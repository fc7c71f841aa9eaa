"""Settings of a follower: its application's declarations and its reader's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from cardinal.protocols.streams.assembly.digests import Contents
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.ordering.settings import OrderingSettings
from cardinal.protocols.streams.types import SHORT, BlockRef


class OnIncomplete(Enum):
    """Policy for a chain that waits for a block whose messages are provably not on the topics (C-RE-7)."""

    SKIP = "skip"
    """The stream continues with a :class:`~.payload.MissingPayload` in its place.

    Of a quorum, producers count with their messages written by then: one that lags by more than a threshold of blocks
    is not waited for, though with it enough might agree.
    """

    HALT = "halt"
    """The stream waits until the messages are supplied, or until enough producers of a quorum agree."""


@dataclass(frozen=True, slots=True)
class FollowerSettings(OrderingSettings):
    """Settings of a follower, and of its orderer.

    Attributes:
        app: the application's name; chain: its name for the chain. Cursors contain both.
        contents: whether records carry values or digests, see :mod:`~.assembly.digests`; a quorum needs values.
        tracked, inline: see :class:`~.reassembler.Reassembler`.
        prefixes: the expressions under which the application counts.
        reorg_threshold: blocks.
        whitelist: number to the only hash that is accepted at it.
        start: the last block not to deliver; None starts by the rule of :mod:`.start`.
        start_weight: its weight; None counts as 0.
        policy: ``first``, or ``quorum:k``: the copies of a message that count.
        producers: the ids whose copies count for a quorum.
        volatile: expressions searched in paths whose values may differ between producers.
        on_incomplete: policy for a block that cannot be completed.
        default_topic: the topic of Batches and announcements of reorg channels; None follows no channels.
        max_update: a consumer far behind gets several updates.
        max_bytes: also of the blocks of all reorg channels.
        patient: begin by the rule of :mod:`.start_wait`, not above blocks that are about to come.
        bounds: of the blocks under assembly; every reorg channel has an additional share of it.

    """

    app: str
    chain: str
    tracked: tuple[str, ...] | None = None
    inline: bool = False
    prefixes: tuple[str, ...] = ()
    reorg_threshold: int = 128
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    start: BlockRef | None = None
    start_weight: int | None = None
    policy: str = "first"
    producers: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    on_incomplete: OnIncomplete = OnIncomplete.SKIP
    default_topic: str | None = None
    contents: Contents = Contents.VALUES
    max_update: int | None = field(default=1_000, kw_only=True)
    bounds: Bounds = Bounds()  # noqa: RUF009 - frozen

    def fingerprint(self) -> bytes:
        """Digest, eight bytes, of every option that decides which content is delivered under which number.

        The application's declarations are left out: with a release that adds a topic, a stream continues. So are
        ``start``, its weight and ``patient``: they decide where a new stream begins, and the first block delivered is
        part of a lineage by itself; and ``on_finality_violation``, ``on_incomplete`` and ``blacklist``: they are
        policies for a stream that is stuck or on a wrong chain, contradict nothing that was delivered (a cursor that
        delivered a block of the blacklist is refused), and an operator changes them to let it continue.
        ``default_topic``, ``history``, ``max_update``, ``until`` and the bounds limit what can be followed at all;
        ``finality_of`` belongs to the application.
        """
        pinned = sorted((number, block.hex()) for number, block in self.whitelist.items())
        tracked = None if self.tracked is None or self.inline else sorted(self.tracked)
        quorum = self.policy != "first"
        trusted = (self.policy, sorted(self.producers), sorted(self.volatile)) if quorum else ()
        facts = (self.app, self.chain, tracked, self.reorg_threshold, pinned, trusted)
        return blake2b(repr(facts).encode(), digest_size=SHORT, person=b"cardinal-line").digest()
