"""Round of a leader: the votes for one number, and the batch that they combine to.

Rules:

1. Blocks that more than half of the members voted for form a path: a vote for a block is a vote for its ancestors that
   are not agreed, and two blocks of one height cannot both have more than half.
2. The path is cut, never skipped, at the first block whose body the leader lacks and at the limits of a batch.
3. Votes are combined when all members answered; or a majority did, and all of the leader's suffix has one; or the
   grace after a majority is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .types import Block, Membership, Ref


def combine(votes: Iterable[tuple[Ref, ...]], quorum: int) -> list[Ref]:
    """Blocks with at least ``quorum`` votes, by number."""
    tally = Counter(ref for vote in votes for ref in set(vote))
    return sorted(ref for ref, count in tally.items() if count >= quorum)


def cut(path: Iterable[Ref], blocks: Mapping[bytes, Block], max_blocks: int, max_bytes: int) -> list[Block]:
    """The beginning of a path that may become a batch: bodies stored, each the child of the one before, in limits."""
    run: list[Block] = []
    size = 0
    for ref in path:
        block = blocks.get(ref.hash)
        if block is None or (run and block.parent != run[-1].hash):
            break
        size += block.size
        if len(run) == max_blocks or (run and size > max_bytes):
            break
        run.append(block)
    return run


@dataclass(slots=True)
class Round:
    """Votes for one number, the leader's own included.

    Attributes:
        number: of the round, to which answers refer.
        num: of the batch.
        began: when it was opened.
        votes: by member; those of another batch are not counted.
        full_since: when a majority had answered.
        combined: the result is decided, whatever it was.

    """

    number: int
    num: int
    began: float
    votes: dict[str, tuple[Ref, ...]] = field(default_factory=dict)
    full_since: float | None = None
    combined: bool = False

    def vote(self, member: str, refs: tuple[Ref, ...], quorum: int, now: float) -> None:
        """Count a member's vote, in place of its former one."""
        self.votes[member] = refs
        if self.full_since is None and len(self.votes) >= quorum:
            self.full_since = now

    def result(self, own: str, membership: Membership, grace: float, now: float) -> list[Ref] | None:
        """Combined votes; None while more are awaited (rule 3)."""
        if self.combined or self.full_since is None:
            return None
        path = combine(self.votes.values(), membership.quorum)
        everybody = len(self.votes) == len(membership.ids)
        if everybody or now >= self.full_since + grace or set(path) >= set(self.votes[own]):
            self.combined = True
            return path
        return None
