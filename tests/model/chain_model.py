"""A naive reference of ordering: which complete block has to be the head (``schemas/SPEC.md``, section 7).

Rules:

1. The head is a heaviest block of those that are linked; of equal ones it stays. (Weights rise along every chain here:
   then a child always outweighs its parent.)
2. A block is linked when its ancestors lead to a fork point: a delivered block within the threshold, or the start's
   parent. Numbers rise by one.
3. What lies below the threshold when it is complete, or is left behind there, never comes back. A given start that is
   complete later, and within the threshold by then, is a fork point again.
4. What a whitelist contradicts is refused with its descendants, but for what stands on the delivered chain.
5. A block that was given up links what stands on it, and is never the head itself.
6. A switch that would remove a finalized block is withheld: from then on the model no longer says what the head is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.types import BlockRef


@dataclass(frozen=True, slots=True)
class ChainRules:
    """What is to be known for ordering.

    Attributes:
        reorg_threshold: blocks.
        whitelist: number to hash.
        start: the last block not to deliver; None: chosen.
        finalized_lag: a delivered block finalizes the one so many numbers below it; None: no finality.
        halts: whether a switch below a finalized block is withheld.

    """

    reorg_threshold: int = 128
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    start: BlockRef | None = None
    finalized_lag: int | None = None
    halts: bool = True


class _Known(NamedTuple):
    """A block: its header, and whether it has content."""

    header: BlockHeader
    whole: bool


class ChainModel:
    """See the module."""

    def __init__(self, rules: ChainRules) -> None:
        self.rules = rules
        self.root = rules.start
        """The fork point that is not delivered: the given start, or the chosen start's parent."""
        self.chain: list[BlockHeader] = []
        """What is delivered, as far as it matters, oldest first."""
        self.finalized: int | None = None
        self.halted = False
        self.ambiguous = False
        """Whether a tie was met: who came first decided, and what is left behind may differ."""
        self.held = False
        self._known: dict[bytes, _Known] = {}
        self._gone: set[bytes] = set()

    # --- what happens ----------------------------------------------------------------------------------------

    def resume(self, chain: Sequence[BlockHeader], root: BlockRef | None, finalized: int | None) -> None:
        """Go on after an earlier run; nothing moves until :meth:`release`."""
        self.chain, self.root, self.finalized = list(chain), root, finalized
        # A block whose content is not read again stays a way to its descendants, also beside the chain.
        self._known = {header.hash: _Known(header, whole=False) for header in chain}
        self.held = bool(chain)
        self._prune()

    def release(self) -> None:
        """What was delivered is read again."""
        self.held = False
        self._advance()

    def complete(self, block: BlockHeader) -> None:
        """A block is complete."""
        self._take(_Known(block, whole=True))

    def give_up(self, header: BlockHeader) -> None:
        """A block's content cannot be had."""
        self._take(_Known(header, whole=False))

    def begin(self, first: BlockHeader) -> None:
        """The core starts with this block."""
        self.root = BlockRef(first.number - 1, first.parent)
        self._gone |= {block for block, known in self._known.items() if known.header.number < first.number}
        self._gone.discard(first.parent)
        self._advance()

    def adopt(self, head: bytes) -> None:
        """The core took this one of several heaviest blocks."""
        self._move(self._path(head))

    # --- what follows ----------------------------------------------------------------------------------------

    def starts(self) -> set[bytes]:
        """The blocks that a stream may begin with now: the lowest ancestors of the heaviest complete blocks."""
        known = {block: one for block, one in self._known.items() if not self.refused(block)}
        most = max((one.header.weight for one in known.values()), default=0)
        found = set()
        for one in known.values():
            if one.header.weight == most:
                lowest = one.header
                while (below := known.get(lowest.parent)) is not None:
                    lowest = below.header
                found.add(lowest.hash)
        return found

    def heaviest(self) -> set[bytes]:
        """The blocks of which one has to be the head; empty where there can be none."""
        linked = [header for header in self._linked() if self._allowed(header)]
        most = max((header.weight for header in linked), default=0)
        return {header.hash for header in linked if header.weight == most}

    def refused(self, block_hash: bytes) -> bool:
        """Whether the whitelist contradicts a block or an ancestor of it that was not delivered."""
        if not self.rules.whitelist:
            return False
        known = self._known.get(block_hash)
        points = self._fork_points()
        while known is not None and known.header.hash not in points:
            header = known.header
            if self.rules.whitelist.get(header.number, header.hash) != header.hash:
                return True
            known = self._known.get(header.parent)
        return False

    def within_window(self, number: int) -> bool:
        """Whether late copies of a complete block of this number have to be recognised."""
        return not self.held and (not self.chain or number > self.chain[-1].number - self.rules.reorg_threshold)

    @property
    def floor(self) -> int:
        """Blocks with a lower number are dropped."""
        return self.chain[-1].number - self.rules.reorg_threshold if self.chain else -1

    # --- inside ----------------------------------------------------------------------------------------------

    def _take(self, known: _Known) -> None:
        header = known.header
        first = self.chain[0].number if self.chain and self.rules.start is None else 0
        below_start = self.root is not None and header.number < min(first, self.root.number + 1)
        if header.number < self.floor or (below_start and self.root and header.hash != self.root.hash):
            self._gone.add(header.hash)
        elif self.rules.start is not None and header.hash == self.rules.start.hash:
            self._gone.discard(header.hash)
        self._known[header.hash] = known
        self._advance()

    def _fork_points(self) -> dict[bytes, int]:
        points = {header.hash: header.number for header in self.chain}
        if self.root is not None:
            points[self.root.hash] = self.root.number
        return {block: number for block, number in points.items() if block not in self._gone}

    def _linked(self) -> Iterator[BlockHeader]:
        """Whole blocks that are linked, the head's chain among them."""
        numbers = self._fork_points()
        yield from self.chain[-1:]
        for block, (header, whole) in sorted(self._known.items(), key=lambda item: item[1].header.number):
            below = numbers.get(header.parent)
            if block in self._gone or block in numbers or below is None or below + 1 != header.number:
                continue
            if not self.refused(block):
                numbers[block] = header.number
                if whole:
                    yield header

    def _path(self, block: bytes) -> list[BlockHeader]:
        """From the block down to a fork point of the delivered chain, newest first."""
        points = self._fork_points()
        path: list[BlockHeader] = []
        while block not in points:
            path.append(self._known[block].header)
            block = path[-1].parent
        kept = [header.hash for header in self.chain]
        below = self.chain[: kept.index(block) + 1] if block in kept else []
        return path + below[::-1]

    def _advance(self) -> None:
        if self.held or self.root is None:
            return
        best = self.heaviest()
        if best and not (self.chain and self.chain[-1].hash in best):
            self.ambiguous |= len(best) > 1
            self._move(self._path(next(block for block in self._known if block in best)))

    def _move(self, path: list[BlockHeader]) -> None:
        """The chain becomes this one, newest first."""
        before = {header.hash for header in self.chain}
        self.chain = path[::-1]
        lag = self.rules.finalized_lag
        for header in self.chain:
            if lag is not None and header.hash not in before and self._known[header.hash].whole:
                said = header.number - lag
                if said >= 0:
                    self.finalized = max(said, self.finalized or 0)
        self._prune()

    def _prune(self) -> None:
        """What lies below the floor, and what hangs on it beside the chain, is left behind for good."""
        floor = self.floor
        standing = {header.hash for header in self.chain} | {self.root.hash if self.root else b""}
        lost = {block for block, known in self._known.items() if known.header.number < floor}
        lost |= {header.hash for header in self.chain if header.number < floor}
        if self.root is not None and self.root.number < floor:
            lost.add(self.root.hash)
        for block, known in sorted(self._known.items(), key=lambda item: item[1].header.number):
            if known.header.parent in lost and block not in standing:
                lost.add(block)
        self._gone |= lost

    def _allowed(self, tip: BlockHeader) -> bool:
        """Whether finality lets a switch to this block happen."""
        if self.finalized is None or not self.rules.halts or not self.chain:
            return True
        removed = {header.hash for header in self.chain} - {header.hash for header in self._path(tip.hash)}
        if all(header.number > self.finalized for header in self.chain if header.hash in removed):
            return True
        self.halted |= tip.weight > self.chain[-1].weight
        return False
