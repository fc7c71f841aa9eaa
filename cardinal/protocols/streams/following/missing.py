"""Blocks that a chain waits for and that do not become complete: when it is proven that they never will.

Rules:

1. A block is *overdue* when the reassembler says so. It is *needed* when complete blocks wait for it.
2. A needed block is given up only with a proof: a threshold of blocks was completed since it was seen, and after
   that the driver gave watermarks which every partition has passed since. So nothing that was on the topics then is
   still unread.
3. A block without a Batch cannot be given up: nobody knows its parent. It goes on being needed. So does one of which
   a copy was dropped, a few times: it is read again, and a new proof is waited for.
4. A block of which no message was ever seen, or whose messages were dropped after its Batch, but which complete blocks
   wait for, is reported after as many blocks: somebody may have it, or it is read again. Where nothing comes any more
   there are no more blocks to count, and all that were dropped are reported: what a chain lacks may be any of them.
5. A complete block that the orderer had to let go is reported when its parent is delivered, to be read again, and
   with it what was let go above it, as far as there is room for that: they can be read together. On a branch that is
   lighter without it no parent is delivered: where such a block is due by rule 4, and where nothing comes any more,
   the lowest that were let go are reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from cardinal.protocols.streams.assembly.block import Explanation
from cardinal.protocols.streams.types import Partition

_UNSEEN_MAX: Final = 1024
_LET_GO_MAX: Final = 32_768
_REPORTED_MAX: Final = 4_096
_AGAIN_BYTES: Final = 64 << 20
_RETRIES: Final = 4
"""Times that one block is read again instead of being given up: a copy that is larger than its producer's share of the
room is dropped every time."""
_RETRIED_MAX: Final = 1_024


@dataclass(slots=True)
class _Gap:
    """A needed block: the count of completed blocks at which it is due, and the watermarks to pass."""

    due: int
    asked: bool = False
    proof: dict[Partition, int] | None = None


class Gaps:
    """See the module.

    Arguments:
        patience: blocks to be completed before a block is given up, or reported as never seen.
        again: blocks that are reported together, to be read again.
        again_bytes: of their content.

    """

    def __init__(self, patience: int, again: int = _REPORTED_MAX, again_bytes: int = _AGAIN_BYTES) -> None:
        self._patience = patience
        self._again, self._again_bytes = min(again, _REPORTED_MAX), again_bytes
        self._completed = 0
        self._overdue: dict[bytes, int] = {}
        self._needed: dict[bytes, _Gap] = {}
        self._unseen: dict[bytes, tuple[int, int | None]] = {}
        self._let_go: dict[bytes, dict[bytes, tuple[Explanation, int]]] = {}
        self._let_go_count = 0
        self._reported: dict[bytes, Explanation] = {}
        self._retried: dict[bytes, int] = {}

    def completed(self, block_hash: bytes) -> None:
        """A block is complete."""
        self._completed += 1
        self._retried.pop(block_hash, None)
        self.settled(block_hash)

    def settled(self, block_hash: bytes) -> None:
        """A block is complete, given up or dropped: nobody waits for it in vain any more."""
        self._overdue.pop(block_hash, None)
        self._needed.pop(block_hash, None)
        self._unseen.pop(block_hash, None)

    def overdue(self, block_hash: bytes, *, awaited: bool) -> None:
        """A block is overdue; whether complete blocks wait for it."""
        self._overdue[block_hash] = self._completed
        self._unseen.pop(block_hash, None)
        if awaited:
            self.awaited(block_hash, None)

    def awaited(self, block_hash: bytes, number: int | None) -> None:
        """A complete block waits for this one, its parent, whose number should be ``number``, if that is known."""
        since = self._overdue.get(block_hash)
        if since is None:
            self._unseen.setdefault(block_hash, (self._completed, number))
            if len(self._unseen) > _UNSEEN_MAX:
                del self._unseen[next(iter(self._unseen))]
        elif block_hash not in self._needed:
            due = since + self._patience
            self._needed[block_hash] = _Gap(due, asked=self._completed >= due)

    def unseen(self) -> list[tuple[bytes, int | None]]:
        """Hash and number of the blocks to be reported by rule 4, once each, unless something is there after all."""
        found = []
        for block_hash, (since, number) in list(self._unseen.items()):
            if self._completed - since < self._patience:
                break
            del self._unseen[block_hash]
            found.append((block_hash, number))
        return found

    @property
    def open_ended(self) -> bool:
        """Whether complete blocks wait for one that is not whole, or were let go themselves."""
        return bool(self._unseen or self._needed or self._let_go)

    def let_go(self, parent: bytes, block: Explanation, size: int = 0) -> None:
        """The orderer had no room for this block; what is told of it when its parent is delivered, and its bytes."""
        children = self._let_go.setdefault(parent, {})
        self._let_go_count += block.block not in children
        children[block.block] = block, size
        if self._let_go_count > _LET_GO_MAX:
            self._let_go_count -= len(self._let_go.pop(next(iter(self._let_go))))

    def delivered(self, block_hash: bytes) -> list[Explanation]:
        """A block is delivered: its children that were let go, and what was above them, to be read again."""
        found: dict[bytes, Explanation] = {}
        size, pending = 0, deque([block_hash])
        while pending:
            children = self._let_go.get(parent := pending.popleft(), {})
            size += sum(one for _, one in children.values())
            too_many = len(self._reported) + len(found) + len(children) > self._again
            if (found or self._reported) and (too_many or size > self._again_bytes):
                break
            self._let_go.pop(parent, None)
            self._let_go_count -= len(children)
            found |= {child: explanation for child, (explanation, _) in children.items()}
            pending += children
        self._reported |= found
        return list(found.values())

    def let_go_blocks(self) -> Collection[bytes]:
        """The hashes of the blocks that were let go."""
        return {block_hash for children in self._let_go.values() for block_hash in children}

    def lowest_let_go(self, without: Container[bytes] = ()) -> list[Explanation]:
        """The lowest blocks that were let go, to be read again: as many as there is room for, and one at least.

        None while others are reported of which nobody has asked yet where they begin.

        Arguments:
            without: the hashes of those that are left where they are.

        """
        if self._reported:
            return []
        above = (
            (one.number or 0, parent, one, size)
            for parent, children in self._let_go.items()
            for one, size in children.values()
            if one.block not in without
        )
        found: dict[bytes, Explanation] = {}
        held = 0
        for _, parent, explanation, size in sorted(above, key=itemgetter(0)):
            held += size
            if found and (len(found) >= self._again or held > self._again_bytes):
                break
            children = self._let_go[parent]
            del children[explanation.block]
            if not children:
                del self._let_go[parent]
            self._let_go_count -= 1
            found[explanation.block] = explanation
        self._reported |= found
        return list(found.values())

    def reread(self, block_hash: bytes) -> Mapping[Partition, int] | None:
        """Where the messages of a block begin that was reported by rule 5; once."""
        block = self._reported.pop(block_hash, None)
        return None if block is None else block.positions

    @property
    def wants_ends(self) -> bool:
        """Whether new watermarks would prove something."""
        return any(gap.asked and gap.proof is None for gap in self._needed.values())

    def progress(self, positions: Mapping[Partition, int], ends: Mapping[Partition, int] | None) -> list[bytes]:
        """Where the reading stands, and new watermarks where there are any; returns the blocks that are proven lost."""
        lost = []
        for block_hash, gap in self._needed.items():
            if gap.proof is None and gap.asked and ends is not None:
                gap.proof = dict(ends)
            gap.asked = self._completed >= gap.due  # from now on the driver knows that new ones are wanted
            if gap.proof is not None and all(positions.get(p, end) >= end for p, end in gap.proof.items()):
                lost.append(block_hash)
        return lost

    def due(self) -> list[bytes]:
        """The needed blocks for which a proof would be wanted, if blocks were given up."""
        return [block_hash for block_hash, gap in self._needed.items() if self._completed >= gap.due]

    def again(self, block_hash: bytes) -> None:
        """A block that is due, or proven lost, is not given up yet."""
        if block_hash in self._needed:
            self._needed[block_hash] = _Gap(self._completed + self._patience)

    def retries(self, block_hash: bytes) -> bool:
        """Whether a block that is proven lost, and was dropped, is to be read again instead; each time is counted."""
        tries = self._retried.pop(block_hash, 0) + 1
        self._retried[block_hash] = tries
        if len(self._retried) > _RETRIED_MAX:
            del self._retried[next(iter(self._retried))]
        return tries <= _RETRIES
