"""Complete blocks in any order to chain updates: fork choice (specification, Reorg Handling).

Rules:

1. A child of the head extends it, whatever its weight; of several children the one with the heaviest chain above
   it goes. Its number is its parent's plus one.
2. Leaving the head takes a strictly heavier chain. Of equal ones the first received stays.
3. A switch is one update through the common ancestor: removed newest first, added oldest first. An extension may be
   cut into several updates (``max_extension``); a switch never is.
4. Children that came before their parents wait, and leave with them (:mod:`.holding`, with the bounds).
5. Blocks farther below the head than the reorg threshold are dropped, unless a channel lifts it
   (:meth:`Orderer.graft`).
6. From nothing, the start is chosen by :mod:`.start`. No block is ever removed that was not delivered: by this stream,
   or, where a start was given, by whoever gave it.
7. A whitelist pins hashes at heights; another block at such a height is refused, and all that descends from it.
8. Finality only rises, and withholds switches (:mod:`.finality`).
9. After :meth:`Orderer.resume` nothing is judged until :meth:`Orderer.release`: what was delivered before is
   read again first.

The orderer reads only number, hash, parent and weight, so headers without content will do. Its work for a block does
not grow with what is held, but for the depth of a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.events import ChainUpdate, Completed, Header, Quarantined
from cardinal.protocols.streams.types import HASH_SIZE, BlockRef, Finality, FinalityViolated

from .admission import Admission
from .delivered import DeliveredChain
from .finality import Finalizer, OnFinalityViolation
from .forkchoice import Ties, climb
from .forktree import Node
from .history import History
from .holding import Holding
from .ordered import OrderedBlocks, Reach
from .start import Candidate, StartRule

__all__ = ["OnFinalityViolation", "Orderer", "Past", "Reach", "Ties"]

WAITING_MAX: Final = 10_000
SIDE_MAX: Final = 10_000
BYTES_MAX: Final = 256 << 20
HISTORY: Final = 100_000


@dataclass(frozen=True, slots=True)
class Past:
    """What an earlier run of the stream left behind, beside its ring.

    Attributes:
        start: the first block that it delivered; None where that is the ring's lowest.
        finality: the marks at the head.
        violation: what set the violation latch.
        missing: the ring's blocks that were delivered without their content.
        root: the hash of the start's parent, a known fork point, as long as the ring reaches down to it; else empty.

    """

    start: BlockRef | None = None
    finality: Finality | None = None
    violation: FinalityViolated | None = None
    missing: frozenset[bytes] = frozenset()
    root: bytes = b""


class Orderer(OrderedBlocks):
    """The chain that this stream delivers.

    Arguments:
        start: the last block already delivered; None chooses by rule 6.
        start_weight: its weight; None counts as 0.
        reorg_threshold: blocks below the head that a reorg may reach.
        whitelist: number to the only hash that may stand there.
        blacklist: hashes of blocks that are refused, with all that descends from them.
        finality_of: the marks that a block carries, None where it has none.
        on_finality_violation: see :class:`~.finality.OnFinalityViolation`.
        check_numbers: whether a child's number must be its parent's plus one; else it must only be higher.
        ties: see :class:`~.forkchoice.Ties`.
        seq: the last sequence number given.
        history: delivered blocks that are remembered by hash, for reorgs through channels.
        max_waiting, max_side, max_bytes: see :class:`~.holding.Holding`.
        max_extension: blocks; an extension by more is cut into several updates. None: never.
        patient: begin only when told to (:meth:`caught_up`), however long a chain there is.

    """

    def __init__(
        self,
        start: BlockRef | None = None,
        start_weight: int | None = None,
        reorg_threshold: int = 128,
        whitelist: Mapping[int, bytes] | None = None,
        *,
        blacklist: Iterable[bytes] = (),
        finality_of: Callable[[Header], Finality | None] | None = None,
        on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT,
        check_numbers: bool = True,
        ties: Ties = Ties.FIRST,
        seq: int = 0,
        history: int = HISTORY,
        max_waiting: int = WAITING_MAX,
        max_side: int = SIDE_MAX,
        max_bytes: int = BYTES_MAX,
        max_extension: int | None = None,
        patient: bool = False,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        blocks = Holding(max_waiting, max_side, max_bytes, consecutive=check_numbers, ties=ties)
        final = Finalizer(finality_of, on_finality_violation)
        chain = DeliveredChain(
            blocks,
            final,
            History(history),
            threshold=reorg_threshold,
            ties=ties,
            max_extension=max_extension,
            seq=seq,
        )
        super().__init__(blocks, chain, Admission(blocks, chain, whitelist or {}, blacklist), final)
        self._consecutive = check_numbers
        self._ties = ties
        self._begin = StartRule(reorg_threshold, ties)
        self._arrivals = 0
        self._patient = patient
        self._given = start is not None
        self.start = start
        if start is not None:
            self._deepest = start.number
            self._chain.head = self._chain.reference(start, None, start_weight or 0)
            self._chain.history.append(start)

    # --- blocks ----------------------------------------------------------------------------------------------

    def receive(self, event: Completed | Header) -> list[ChainUpdate]:
        """Take one complete block; returns the updates that it makes possible."""
        updates = self._judge(self._take(event))
        if self._chain.head is None and not self._patient and self._begin.long_enough(self._tree):
            return self._choose_start()
        return updates

    @property
    def may_begin(self) -> bool:
        """Whether there is a block that the stream could begin with, and it has not begun."""
        return self._chain.head is None and len(self._tree) > 0

    def candidate(self) -> Candidate | None:
        """What the stream would begin with now; None where it may not. The work grows with the blocks."""
        return self._begin.candidate(self._tree) if self.may_begin else None

    def caught_up(self) -> list[ChainUpdate]:
        """The reader has seen everything that was there when it opened: choose the start, if none is chosen."""
        return self._choose_start() if self._chain.head is None and not self._held else []

    def begin(self, start: BlockRef) -> list[ChainUpdate]:
        """Begin with this block, which is held (:meth:`candidate`), if nothing has begun."""
        lowest = self._tree.get(start.hash)
        if lowest is None or self._chain.head is not None or self._held:
            return []
        return self._start_with(lowest)

    def bridge(self, header: Header) -> list[ChainUpdate]:
        """A block whose content cannot be had: it is passed over, where complete blocks wait for it.

        It is delivered as a :class:`~.payload.MissingPayload`, and only together with one of them.
        """
        if self._chain.head is None or not self.awaited(header.hash):
            return []
        if not self._admission.admits(header, resuming=self._held):
            return []
        if not any(self._blocks.agree(child.number, header.number) for child in self._tree.children(header.hash)):
            return []
        return self._judge(self._place(self._node(header, None, 0)))

    def _take(self, event: Completed | Header) -> list[Node[Header]]:
        """Hold one block; returns what it links."""
        item, size = (event.payload, event.size) if isinstance(event, Completed) else (event, 0)
        known = self._tree.get(item.hash)
        if known is not None:
            return self._fill(known, item, size)
        if not self._admission.admits(item, resuming=self._held):
            return []
        return self._place(self._node(item, item, size))

    def _node(self, header: Header, item: Header | None, size: int) -> Node[Header]:
        self._arrivals += 1
        node: Node[Header] = Node(header.number, header.hash, header.parent, header.weight, self._arrivals)
        node.item, node.size, node.missing = item, size, item is None
        return node

    def _place(self, node: Node[Header]) -> list[Node[Header]]:
        """Put a new block where it belongs; returns what it links."""
        self._tree.insert(node)
        parent = self._tree.get(node.parent)
        if parent is not None and parent.linked:
            return self._blocks.link(node) if self._blocks.follows(node, parent) else []
        if self._given and any(child.linked for child in self._tree.children(node.hash)):
            return self._link_down(node)
        self._blocks.wait(node)
        if not self._held:
            self._admission.report_fork_below_start(node, self.start)
        return []

    def _fill(self, node: Node[Header], item: Header, size: int) -> list[Node[Header]]:
        """A block that was known by reference is read (again): its content is at hand from now on."""
        first = self._admission.first
        if node.item is not None or (first is not None and node.number < first):
            return []
        if not self._belongs(node, item):
            self._blocks.reports.append(Quarantined(item.hash, item.number, "its Batch contradicts what was delivered"))
            return []
        node.item, node.weight, node.size = item, item.weight, size
        node.missing = node.missing and node.delivered
        self._blocks.grown(node)
        if node.parent is not None:
            return []
        self._tree.set_parent(node, item.parent)
        # A block that left the chain before its content came stays beside it.
        return self._link_down(node) if node.delivered else []

    def _belongs(self, node: Node[Header], item: Header) -> bool:
        """Whether this can be the content of a block that is known by number, and perhaps by parent.

        Whoever lies about a delivered block's parent could make a circle of the chain.
        """
        parent = self._tree.get(item.parent)
        return (
            item.number == node.number
            and len(item.parent) == HASH_SIZE
            and (node.parent is None or node.parent == item.parent)
            and (parent is None or self._blocks.agree(node.number, parent.number))
        )

    def _link_down(self, node: Node[Header]) -> list[Node[Header]]:
        """Link what lies below a block of the chain, and what waited there: history that is read after its child.

        The parent of the lowest is a known fork point, unless blocks below it were delivered and forgotten. Where
        the start was chosen, none are below its number; another block of its parent may have taken its place.
        """
        fresh: list[Node[Header]] = []
        lowest = node
        for ancestor in self._tree.ancestors(node):
            lowest = ancestor
            ancestor.linked = ancestor.delivered = True
            self._blocks.waiting.discard(ancestor)
            fresh += self._link_waiting(ancestor)
        bottom = self._given or (self.start is not None and lowest.number == self.start.number)
        if bottom and lowest.parent is not None and lowest.number > self._chain.floor:
            fresh += self._link_waiting(self._chain.reference(BlockRef(lowest.number - 1, lowest.parent)))
        return fresh

    def _link_waiting(self, parent: Node[Header]) -> list[Node[Header]]:
        return [node for child in self._blocks.fitting(parent) for node in self._blocks.link(child)]

    def _judge(self, fresh: Sequence[Node[Header]]) -> list[ChainUpdate]:
        if self._held:
            self._blocks.stand_aside(fresh)
            return []
        return self._chain.judge(fresh)

    def _begin_with(self, start: BlockRef) -> None:
        """The first block that this stream delivered."""
        self.start, self._deepest = start, start.number - 1
        self._admission.first = start.number if self._consecutive else None

    def _choose_start(self) -> list[ChainUpdate]:
        return self._start_with(self._begin.lowest(self._tree)) if len(self._tree) else []

    def _start_with(self, lowest: Node[Header]) -> list[ChainUpdate]:
        self._begin_with(BlockRef(lowest.number, lowest.hash))
        # The start's parent stands in for the head until the first update, and is never delivered.
        root = self._chain.reference(BlockRef(lowest.number - 1, lowest.parent or b""), None, -1)
        self._chain.head = root
        self._chain.history.append(BlockRef(root.number, root.hash))
        fresh = self._link_down(root)
        updates = self._chain.move(root, climb(self._tree, lowest, self._ties))
        self._blocks.stand_aside(fresh)
        return updates

    # --- resuming --------------------------------------------------------------------------------------------

    def resume(self, ring: Sequence[BlockRef], weight: int, seq: int, past: Past) -> None:
        """Go on after blocks that an earlier run delivered; nothing is judged until :meth:`release`.

        Arguments:
            ring: delivered blocks, newest first, at least the head.
            weight: the head's weight.
            seq: the last sequence number given.
            past: what else is known of them.

        Raises:
            CursorMismatchError: the whitelist forbids a delivered block.

        """
        self._admission.check_whitelist(ring)
        parent = past.root or None
        if parent is not None and parent not in self._tree:
            root = BlockRef(ring[-1].number - 1, parent)
            self._chain.reference(root)
            self._chain.history.append(root)
        for ref in ring[:0:-1]:
            parent = self._restore(ref, parent, past).hash
        self._chain.head = self._restore(ring[0], parent, past)
        self._chain.head.weight = weight
        if not self._given:
            self._begin_with(past.start or ring[-1])
        self._chain.seq = seq
        self._final.marks, self._final.violation = past.finality, past.violation
        self._held = True

    def _restore(self, ref: BlockRef, parent: bytes | None, past: Past) -> Node[Header]:
        node = self._tree.get(ref.hash)
        if node is None:
            node = self._chain.reference(ref, parent)
            node.missing = ref.hash in past.missing
            self._chain.history.append(ref)
        return node

    def doubt(self, block_hash: bytes) -> None:
        """What is read of this block may differ from what was delivered: it is removed without content."""
        node = self._tree.get(block_hash)
        if node is not None and node.item is None:
            node.missing = True

    def release(self) -> list[ChainUpdate]:
        """What was delivered before is read again, or can no longer be had: judge, and go on."""
        if not self._held:
            return []
        self._held = False
        self._chain.prune()
        updates = self._chain.judge(list(self._blocks.side))
        for node in self._blocks.waiting:
            self._admission.report_fork_below_start(node, self.start)
        return updates

    # --- deep reorgs -----------------------------------------------------------------------------------------

    def graft(self, ancestor: BlockRef, blocks: Iterable[Completed]) -> list[ChainUpdate]:
        """Take the blocks of a reorg that leaves the delivered chain at ``ancestor``, however deep.

        They stay as far as the threshold would let them go until :meth:`settle`, and win when they are heavier.

        Arguments:
            ancestor: a block that :meth:`reach` calls known.
            blocks: what stands above it, parents first.

        """
        self._chain.lift(ancestor)
        fresh: list[Node[Header]] = []
        for block in blocks:
            fresh += self._take(block)
        return self._judge(fresh)

    def settle(self, ancestor: BlockRef) -> None:
        """A deep reorg is done with, won or lost."""
        if self._chain.lifted.pop(ancestor.hash, None) is not None:
            self._chain.prune()

    def recall(self, parents: Mapping[bytes, bytes]) -> int:
        """Extend what is remembered of the delivered chain downwards; returns by how many blocks.

        Arguments:
            parents: hash to parent hash, of older blocks.

        """
        held = {node.hash: node.parent for node in self._tree if node.delivered and node.parent is not None}
        return self._chain.history.recall({**parents, **held}, self._deepest)
