"""Promotion: which member writes the agreed blocks to the topics, which come next, and the marker after them.

    wait  the next block's body is here, and no marker was read for the wait of this member's rank
    take  a new producer of the fenced transactional id; :meth:`Promotion.begin`
          the last committed marker, read to the partition's end; :meth:`Promotion.read`
    loop  begin; the blocks of :meth:`Promotion.next_run`; wait for every delivery; the marker, last; commit
          clean: :meth:`Promotion.committed`. Else discard the producer; :meth:`Promotion.failed`

Rules:

1. The marker is the last message of its transaction: an abort that comes late removes what lies before it, the marker
   too. A marker before the blocks could be committed without them.
2. A producer is used until its first commit that is not clean. The end of a transaction that is still in flight would
   act on the next transaction of the same producer.
3. The promoter stays the promoter, whoever leads: fencing costs. Ranks begin at the writer of the last marker.
4. The wait doubles per own attempt without a commit, so that slow members do not fence each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from cardinal_ingest.errors import ForeignMarkerError
from cardinal_ingest.protocols.replication.leader_schedule import doubled

from .effects import Step
from .replica import Replica
from .types import NO_HASH, Item, Marker


@dataclass(frozen=True, slots=True)
class Placed:
    """A block to write, and its position for the header of its last message."""

    num: int
    index: int
    item: Item


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of one transaction, in their order, and its marker."""

    blocks: tuple[Placed, ...]
    marker: Marker


class Promotion:
    """Rule of one member.

    Args:
        replica: the member: its batches, its bodies, the position of the last marker.
        previous: the cluster of the epoch before; its markers are below every batch of this one.

    """

    def __init__(self, replica: Replica, previous: bytes = NO_HASH) -> None:
        self.active = False
        """A producer of this member is open."""
        self.deadline = inf
        """Time at which :meth:`due` may become true; infinite if it is not a matter of time."""
        self._replica = replica
        self._previous = previous
        self._rank = replica.membership.ids.index(replica.node)
        self._attempts = 0
        self._since: float | None = None

    def read(self, marker: Marker, now: float) -> Step:
        """A committed marker; one that does not rise, or of the epoch before, changes nothing.

        Raises:
            ForeignMarkerError: another cluster or stream writes to these topics.

        """
        replica, membership = self._replica, self._replica.membership
        if marker.stream != membership.stream or marker.cluster not in (membership.cluster, self._previous):
            raise ForeignMarkerError(
                f"use other topics: batch {marker.num} of another cluster was promoted to these", cluster=marker.cluster
            )
        if marker.cluster == self._previous or marker.position <= replica.promoted:
            return Step((), ())
        if marker.writer in membership.ids:
            ids = membership.ids
            self._rank = (ids.index(replica.node) - ids.index(marker.writer)) % len(ids)
        self._since = now
        return replica.marker(marker, now)

    def due(self, now: float) -> bool:
        """This member's turn has come: it opens a producer."""
        self.deadline = inf
        if self.active:
            return False
        if self.next_run() is None:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        settings = self._replica.settings
        wait = doubled(settings.promote_wait, self._attempts, settings.promote_wait_most) * (1 + self._rank)
        if now >= self._since + wait:
            return True
        self.deadline = self._since + wait
        return False

    def begin(self) -> None:
        """A producer is being opened."""
        self.active = True
        self._attempts += 1

    def committed(self, marker: Marker, now: float) -> Step:
        """A commit was clean."""
        self._attempts = 0
        return self.read(marker, now)

    def failed(self, now: float) -> None:
        """The producer was discarded."""
        self.active = False
        self._since = now

    def next_run(self) -> Run | None:
        """Blocks of the next transaction; None while the next body, or the log up to the last marker, is not here."""
        replica = self._replica
        winners, pool, (at, index) = replica.winners, replica.pool, replica.promoted
        if replica.state is None or at > replica.state.num:
            return None
        if at not in winners or index == len(winners[at].items):
            at, index = at + 1, 0
        blocks: list[Placed] = []
        size = 0
        while at in winners:
            for place, item in enumerate(winners[at].items[index:], index):
                size += pool.blocks[item.hash].size if pool.holds(item) else 0
                if not pool.holds(item) or (blocks and size > replica.settings.transaction_bytes):
                    return self._run(blocks)
                blocks.append(Placed(at, place, item))
            at, index = at + 1, 0
        return self._run(blocks)

    def _run(self, blocks: list[Placed]) -> Run | None:
        if not blocks:
            return None
        last, replica = blocks[-1], self._replica
        membership, batch = replica.membership, replica.winners[last.num].hash
        marker = Marker(membership.cluster, membership.stream, last.num, last.index + 1, batch, replica.node)
        return Run(tuple(blocks), marker)
