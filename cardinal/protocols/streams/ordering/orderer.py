"""Complete blocks in any order to chain updates: fork choice (``schemas/SPEC.md``, section 7).

Rules:

1. A child of the head, of any weight, extends it; of several children the one with the heaviest chain above it is
   delivered. Its number is its parent's plus one.
2. Leaving the head takes a strictly heavier chain. Of equal ones the first received stays.
3. A switch is one update through the common ancestor: removed newest first, added oldest first. An extension may be
   divided into several updates (``max_update``, ``until``); a switch never is.
4. Children that came before their parents wait, and are delivered with them. Of too many waiting blocks the ones
   farthest above the head are evicted, of too many on side branches the lightest.
5. Blocks farther below the head than the reorg threshold are pruned, with the side branches that hang on them, unless
   a channel lifts it (:meth:`Orderer.graft`).
6. Without a configured start, :mod:`.start` chooses one. No block is ever removed that was not delivered: by this
   stream, or, with a configured start, by the stream that it continues.
7. Blocks are refused by :mod:`.admission`, with all that descends from them.
8. Finality only rises, and withholds switches (:mod:`.finality`).

The orderer reads only number, hash, parent and weight, so headers without content suffice. Its work for a block does
not grow with the blocks that are held, except for the depth of a switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import takewhile
from typing import Final, cast

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import (
    BlockHeader,
    ChainUpdate,
    Completed,
    OrderingEvent,
    Overflow,
    Quarantined,
    Stale,
)
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.payload import AnyPayload, MissingPayload
from cardinal.protocols.streams.types import HASH_SIZE, NO_ID, BlockRef, Finality, FinalityViolated, Partition

from .admission import DESCENDS, REMEMBERED, Admission, StartForks
from .finality import Finalizer
from .forkchoice import best_tip, climb, paths
from .forktree import ForkTree, Node
from .history import ChainHistory
from .pool import Pool
from .settings import OrderingSettings
from .start import StartCandidate, StartRule

PRUNED: Final = "pruned: "
"""Begins the state of a block that can join the chain no more."""

REMOVED: Final = "removed"
"""The state of a block that was delivered and left the chain."""

_BELOW_START: Final = "below the first block of this stream"
_TOO_LOW: Final = "farther below the head than the reorg threshold"


class Reach(Enum):
    """Relation of a reorg channel's ancestor to the delivered chain.

    ``OFF_CHAIN``: another block of the chain has its number. ``FORGOTTEN``: it is below the remembered part of the
    chain, and :meth:`Orderer.recall` may help.
    """

    ON_CHAIN = "on the chain"
    AHEAD = "above the head"
    OFF_CHAIN = "off the chain"
    FORGOTTEN = "forgotten"
    BELOW_START = "below the start"


class Orderer:
    """The delivered chain of one stream, and the blocks that may still join it.

    Arguments:
        start: the last block already delivered; None: one is chosen by :mod:`.start`.
        start_weight: its weight; None counts as 0.
        reorg_threshold: blocks below the head that a reorg may reach.
        whitelist: number to the only hash that is accepted there.
        settings: all other options.

    """

    def __init__(
        self,
        start: BlockRef | None = None,
        start_weight: int | None = None,
        reorg_threshold: int = 128,
        whitelist: Mapping[int, bytes] | None = None,
        settings: OrderingSettings | None = None,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._settings = settings = settings or OrderingSettings()
        self._threshold = reorg_threshold
        self._tree: ForkTree = ForkTree()
        self._waiting = Pool(
            settings.max_waiting, settings.max_bytes, lambda node: (-node.number, -node.arrival, node.hash)
        )
        self._side = Pool(
            settings.max_side,
            settings.max_bytes,
            lambda node: (node.weight, -node.arrival, node.hash),
            free=lambda node: not self._tree.is_parent(node.hash),
        )
        self.admission = Admission(whitelist, settings.blacklist)
        self._start_rule = StartRule(reorg_threshold)
        self._start_forks = StartForks(self._tree)
        self._final = Finalizer(settings.finality_of, settings.on_finality_violation)
        self.history = ChainHistory(settings.history)
        """The hashes of the delivered chain, also of blocks that the graph does not hold any more."""
        self._lifted: dict[bytes, int] = {}  # ancestors of deep reorgs in flight, and their numbers
        self._last_states: BoundedDict[bytes, str] = BoundedDict(REMEMBERED)
        self._removed_at: BoundedDict[bytes, int] = BoundedDict(REMEMBERED)  # see :meth:`removed_at`
        self._reports: list[OrderingEvent] = []
        self._arrivals = 0
        self._head: Node | None = None
        self._start_configured = start is not None and settings.start_delivered
        self.seq = 0
        """The last sequence number delivered."""
        self.start = start
        """The first block that was delivered, or the configured one below it."""
        if start is not None:
            self._head = self._reference(start, None, start_weight or 0)
            self.history.append(start)
            if not settings.start_delivered:
                self.start = BlockRef(start.number + 1, b"")  # its hash is known when it is delivered

    # --- queries ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        head = self._head
        return None if head is None else BlockRef(head.number, head.hash)

    @property
    def finality(self) -> Finality | None:
        """The finality marks of the delivered chain."""
        return self._final.marks

    @property
    def violation(self) -> FinalityViolated | None:
        """The first switch that contradicted finality."""
        return self._final.violation

    @property
    def is_overtaken(self) -> bool:
        """True while a block that waits for its parent is heavier than the head."""
        head = self._head
        return head is not None and any(node.weight > head.weight for node in self._waiting)

    @property
    def fullness(self) -> float:
        """The part of the capacity for waiting blocks that is in use."""
        return self._waiting.fullness

    def holds(self, block_hash: bytes) -> bool:
        """True for a block that is delivered within the threshold, on a side branch, or waiting."""
        return block_hash in self._tree

    def waits(self, block_hash: bytes) -> bool:
        """True for a held block that waits for its parent."""
        node = self._tree.get(block_hash)
        return node is not None and not node.linked

    def positions(self) -> list[tuple[Mapping[Partition, int], bool]]:
        """For every held block the first offsets of its messages, and True where it waits for its parent."""
        return [(node.positions, not node.linked) for node in self._tree]

    def links(self, parent: bytes, number: int) -> bool:
        """True when a block of this number can stand on this parent, which is delivered or on a side branch."""
        node = self._tree.get(parent)
        return node is not None and node.linked and number == node.number + 1

    def awaited(self, block_hash: bytes) -> bool:
        """True when complete blocks wait for this one, which is not held."""
        return block_hash not in self._tree and self._tree.is_parent(block_hash)

    def waiting(self) -> list[BlockRef]:
        """The blocks that wait for their parent, in the order in which they came."""
        return [BlockRef(node.number, node.hash) for node in self._waiting]

    def orphans(self) -> list[tuple[bytes, int]]:
        """Hash and number of every block that is not held and that waiting blocks name as their parent."""
        return [
            (node.parent, node.number - 1)
            for node in self._waiting
            if node.parent is not None and node.parent not in self._tree
        ]

    def reach(self, ancestor: BlockRef) -> Reach:
        """The relation of a reorg's ancestor to the delivered chain."""
        lowest = self.history.lowest
        if self._head is None or lowest is None or ancestor.number > self._head.number:
            return Reach.AHEAD
        if ancestor.number < self._root:
            return Reach.BELOW_START
        if ancestor.number < lowest.number:
            return Reach.FORGOTTEN
        return Reach.ON_CHAIN if self.history.at(ancestor.number) == ancestor.hash else Reach.OFF_CHAIN

    def state_of(self, block_hash: bytes) -> str | None:
        """The state of a complete block, or the last one it had; None for a block that is not remembered."""
        if block_hash == NO_ID:
            return None  # the parent of a chain's first block, which stands in for the head at the start
        if self._chosen is not None and self.history.at(self._chosen - 1) == block_hash:
            return _BELOW_START
        node = self._tree.get(block_hash)
        if node is None:
            return "delivered" if block_hash in self.history else self._last_states.get(block_hash)
        return self._held_state(node)

    def _held_state(self, node: Node) -> str:
        if node.delivered:
            return "delivered without its content" if node.missing else "delivered"
        if self._last_states.get(node.hash) == REMOVED:
            return REMOVED
        if node.missing:
            return "abandoned"
        return "on a side branch" if node.linked else f"waiting for parent {(node.parent or b'').hex()}"

    def removed_at(self, block_hash: bytes) -> int | None:
        """The lowest number that the reorg replaced with which a block left the chain; None for one in the chain."""
        state = self.state_of(block_hash) or ""
        return self._removed_at.get(block_hash) if state == REMOVED or state.startswith(PRUNED) else None

    def take_reports(self) -> list[OrderingEvent]:
        """The reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    # --- blocks ----------------------------------------------------------------------------------------------

    def receive(self, event: Completed | BlockHeader) -> list[ChainUpdate]:
        """Take one complete block; returns the updates that it makes possible."""
        item, head = _item(event), self._head
        if head is not None and item.parent == head.hash and self._only_extends(head, item):
            return [self._extend(self._node(event))]
        updates = self._judge(self._take(event))
        updates += self._report_start_fork(item.hash)
        if self._head is None and not self._settings.patient and self._start_rule.long_enough(self._tree):
            return self.caught_up()
        return updates

    def bridge(self, header: BlockHeader, positions: Mapping[Partition, int] | None = None) -> list[ChainUpdate]:
        """Take a block whose content cannot be read, where complete blocks wait for it.

        It is delivered as a :class:`~.payload.MissingPayload`, and only together with one of them.
        """
        waiting = self._tree.children(header.hash)
        if self._head is None or not self.awaited(header.hash) or not self._admits(header):
            return []
        if not any(child.number == header.number + 1 for child in waiting):
            return []
        node = self._node(header)
        node.item, node.missing, node.positions = None, True, positions or {}
        updates = self._judge(self._place(node))
        return updates + self._report_start_fork(header.hash)

    def candidate(self, incomplete: Iterable[BlockHeader] = ()) -> StartCandidate | None:
        """The block with which the stream would begin now; None where it may not. The work grows with the blocks.

        ``incomplete``: the Batches of blocks whose content is missing.
        """
        if self._head is not None or not len(self._tree):
            return None
        return self._start_rule.candidate(self._tree, incomplete)

    def begin(self, start: BlockRef) -> list[ChainUpdate]:
        """Begin with this block, which is held (:meth:`candidate`), if the stream has not begun."""
        lowest = self._tree.get(start.hash)
        return [] if lowest is None or self._head is not None else self._begin(lowest)

    def caught_up(self) -> list[ChainUpdate]:
        """Choose the start, if none is chosen: the reader has read everything that was on the topics when it opened."""
        begins = self._head is None and len(self._tree) > 0
        return self._begin(self._start_rule.lowest(self._tree)) if begins else []

    def restore(self, cursor: Cursor, blocks: Iterable[Completed | BlockHeader]) -> list[ChainUpdate]:
        """Resume after the blocks of a cursor's ring, at least the head; everything is judged once, at the end.

        Arguments:
            cursor: of an earlier run.
            blocks: every complete block that was re-read, in their order of arrival, of the ring or not. Blocks of
                the ring that are not among them are removed as :class:`~.payload.MissingPayload`.

        Raises:
            CursorMismatchError: the whitelist or the blacklist forbids a delivered block.

        """
        self.admission.check_delivered(cursor.ring)
        refs = cursor.ring[::-1]
        parent = cursor.root or None
        if parent is not None:
            self._restore_one(BlockRef(refs[0].number - 1, parent), None, cursor)
        for ref in refs:
            self._head = self._restore_one(ref, parent, cursor)
            parent = ref.hash
        cast("Node", self._head).weight = cursor.weight
        if not self._start_configured:
            self.start = cursor.start or refs[0]
        self.seq, self._final.marks, self._final.violation = cursor.seq, cursor.finality, cursor.violation
        for event in blocks:
            # Those that are too low are not reported: they were judged before.
            if _item(event).hash in self._tree or self._too_low(_item(event)) is None:
                self._add_to_side(self._take(event))
        self._prune()
        updates = self._judge(list(self._side))
        for node in [*self._waiting]:
            updates += self._report_start_fork(node.hash)
        return updates

    def _restore_one(self, ref: BlockRef, parent: bytes | None, cursor: Cursor) -> Node:
        node = self._tree.get(ref.hash)  # a configured start
        if node is None:
            node = self._reference(ref, parent)
            node.missing = ref.hash in cursor.missing
        if self.history.at(ref.number) != ref.hash:
            self.history.append(ref)
        return node

    # --- deep reorgs -----------------------------------------------------------------------------------------

    def graft(self, ancestor: BlockRef, blocks: Iterable[Completed]) -> list[ChainUpdate]:
        """Take the blocks of a reorg that leaves the delivered chain at ``ancestor``, however deep, parents first.

        The ancestor is ``ON_CHAIN``. They are held below the threshold too until :meth:`settle`, and win when they are
        heavier.
        """
        tree = self._tree
        unheld = list(takewhile(lambda ref: ref.hash not in tree, self.history.upwards(ancestor.number)))
        parent: bytes | None = None
        for ref in unheld:
            self._reference(ref, parent)
            parent = ref.hash
        lowest = tree.get(self.history.at(ancestor.number + len(unheld)))
        if lowest is not None and lowest.parent is None and parent is not None:
            tree.set_parent(lowest, parent)  # it was never re-read after a resume
        self._lifted[ancestor.hash] = ancestor.number
        fresh: list[Node] = []
        for block in blocks:
            fresh += self._take(block)
        return self._judge(fresh)

    def settle(self, ancestor: BlockRef) -> None:
        """End a deep reorg, won or lost."""
        if self._lifted.pop(ancestor.hash, None) is not None:
            self._prune()

    def recall(self, parents: Mapping[bytes, bytes]) -> int:
        """Extend the history of the delivered chain downwards, by parent links of older blocks.

        Returns by how many blocks.
        """
        held = {node.hash: node.parent for node in self._tree if node.delivered and node.parent is not None}
        return self.history.recall({**parents, **held}, self._root)

    # --- insertion -------------------------------------------------------------------------------------------

    def _only_extends(self, head: Node, item: BlockHeader) -> bool:
        """True for a child of the head without a rival, and for which no block waits: there is nothing to choose."""
        tree = self._tree
        return (
            item.number == head.number + 1
            and item.hash not in tree
            and not tree.is_parent(head.hash)
            and not tree.is_parent(item.hash)
            and self.admission.refusal(item) is None
        )

    def _extend(self, node: Node) -> ChainUpdate:
        node.linked = node.delivered = True
        self._tree.insert(node)
        update = self._deliver((), [node])
        self._prune()
        return update

    def _take(self, event: Completed | BlockHeader) -> list[Node]:
        """Hold one block; returns the blocks that it links."""
        item = _item(event)
        existing = self._tree.get(item.hash)
        if existing is not None:
            return self._fill(existing, self._node(event), item)
        return self._place(self._node(event)) if self._admits(item) else []

    def _admits(self, block: BlockHeader) -> bool:
        """True for a block that may be held; the others are reported."""
        if (reason := self.admission.refusal(block)) is not None:
            self._refuse(block, reason)
        elif (reason := self._too_low(block)) is not None:
            self._report_low(BlockRef(block.number, block.hash), reason)
        else:
            return True
        return False

    def _node(self, event: Completed | BlockHeader) -> Node:
        self._arrivals = arrival = self._arrivals + 1
        if isinstance(event, Completed):
            item = event.payload
            return Node(item.number, item.hash, item.parent, item.weight, arrival, item, event.size, event.positions)
        return Node(event.number, event.hash, event.parent, event.weight, arrival, event)

    def _reference(self, ref: BlockRef, parent: bytes | None = None, weight: int = 0) -> Node:
        """Hold a block of the delivered chain of which only the reference is held."""
        liar = self._tree.get(ref.hash)
        if liar is not None:  # it claims a number that is not below its child's
            self._remove(liar)
            self._report_low(BlockRef(liar.number, liar.hash), f"its number should be {ref.number}")
        node = Node(ref.number, ref.hash, parent, weight, 0, linked=True, delivered=True)
        self._tree.insert(node)
        return node

    def _place(self, node: Node) -> list[Node]:
        """Insert a new block; returns the blocks that it links."""
        self._tree.insert(node)
        parent = self._tree.get(node.parent)
        if parent is not None and parent.linked:
            return self._link(node) if self._follows(node, parent) else []
        if self._start_configured and any(child.linked for child in self._tree.children(node.hash)):
            return self._link_down(node)
        self._waiting.add(node)
        self._evict(self._waiting, "too many blocks wait for a parent")
        return []

    def _fill(self, node: Node, new: Node, item: BlockHeader) -> list[Node]:
        """Add the content of a block of which only the reference was held, or that was delivered without."""
        if node.item is not None or (self._chosen is not None and node.number < self._chosen):
            return []
        if not self._belongs(node, item):
            self._reports.append(Quarantined(item.hash, item.number, "its Batch contradicts the delivered block"))
            return []
        self._waiting.resize(node, new.size)
        self._side.resize(node, new.size)
        node.item, node.weight, node.size, node.positions = item, item.weight, new.size, new.positions
        node.missing = node.missing and node.delivered
        if node.parent is not None:
            return []
        self._tree.set_parent(node, item.parent)
        # A block that left the chain before its content came stays on a side branch.
        return self._link_down(node) if node.delivered else []

    def _belongs(self, node: Node, item: BlockHeader) -> bool:
        """True when this can be the content of a block of which the number is held, and perhaps the parent.

        A false parent of a delivered block could close the chain to a circle.
        """
        parent = self._tree.get(item.parent)
        return (
            item.number == node.number
            and len(item.parent) == HASH_SIZE
            and (node.parent is None or node.parent == item.parent)
            and (parent is None or node.number == parent.number + 1)
        )

    # --- linking ---------------------------------------------------------------------------------------------

    def _link(self, node: Node) -> list[Node]:
        """Link a block and everything that waited above it; returns them, parents first."""
        linked: list[Node] = []
        pending = [node]
        while pending:
            current = pending.pop()
            current.linked = True
            self._waiting.discard(current)
            linked.append(current)
            pending += self._waiting_on(current)
        return linked

    def _link_down(self, node: Node) -> list[Node]:
        """Link the blocks below one of the chain, and those that waited there: history that is read after its child.

        The parent of the lowest is a possible fork point, unless blocks below it were delivered and forgotten. Where
        the start was chosen, none are below its number; another child of its parent may have replaced it.
        """
        fresh: list[Node] = []
        lowest = node
        for ancestor in self._tree.ancestors(node):
            lowest = ancestor
            ancestor.linked = ancestor.delivered = True
            self._waiting.discard(ancestor)
            fresh += [one for child in self._waiting_on(ancestor) for one in self._link(child)]
        bottom = self._start_configured or (self.start is not None and lowest.number == self.start.number)
        if bottom and lowest.parent is not None and lowest.number > self._floor:
            root = self._reference(BlockRef(lowest.number - 1, lowest.parent))
            fresh += [one for child in self._waiting_on(root) for one in self._link(child)]
        return fresh

    def _waiting_on(self, parent: Node) -> list[Node]:
        """The children of a linked block that wait; those whose number contradicts its are refused."""
        children = list(self._tree.children(parent.hash))
        return [child for child in children if not child.linked and self._follows(child, parent)]

    def _follows(self, node: Node, parent: Node) -> bool:
        """True when the numbers of a block and its parent agree; else the block is refused."""
        if node.number == parent.number + 1:
            return True
        self._remove(node)
        self._refuse(node, f"its number is {node.number}, its parent's is {parent.number}")
        return False

    # --- the delivered chain ---------------------------------------------------------------------------------

    @property
    def _chosen(self) -> int | None:
        """The number of the first block, where it was chosen: lower ones were never delivered and never will be."""
        return None if self._start_configured or self.start is None else self.start.number

    @property
    def _root(self) -> int:
        """The number of the lowest block that can be a fork point, 0 before the start is chosen."""
        return 0 if self.start is None else self.start.number - (not self._start_configured)

    def _too_low(self, block: BlockHeader) -> str | None:
        """The reason to prune a block for its number, None when there is none."""
        if block.number < self._floor:
            return _TOO_LOW
        if self._chosen is not None and block.number < self._chosen:
            return _BELOW_START
        return None

    @property
    def _floor(self) -> int:
        """Blocks with a lower number are not held."""
        if self._head is None:
            return -1
        floor = self._head.number - self._threshold
        return min(floor, *self._lifted.values()) if self._lifted else floor

    def _judge(self, fresh: Sequence[Node]) -> list[ChainUpdate]:
        """Move the head where blocks that were just linked require it; the others go to side branches."""
        if self._head is None:
            return []
        tip = best_tip(self._tree, self._head, fresh)
        updates = [] if tip is None else self._move(self._head, tip)
        self._add_to_side(fresh)
        return updates

    def _begin(self, lowest: Node, removed: tuple[AnyPayload, ...] = ()) -> list[ChainUpdate]:
        self.start = BlockRef(lowest.number, lowest.hash)
        # The start's parent stands in for the head until the first update, and is never delivered.
        root = self._head = self._reference(BlockRef(lowest.number - 1, lowest.parent or b""), None, -1)
        self.history.append(root)
        fresh = self._link_down(root)
        updates = self._move(root, climb(self._tree, lowest), removed)
        self._add_to_side(fresh)
        return updates

    def _begin_anew(self, start: BlockRef, waiting: Node) -> list[ChainUpdate]:
        """Begin with the chain of a block that waits, which removes all that was delivered: it waits from now on."""
        head = cast("Node", self._head)
        old = list(takewhile(lambda node: node.number >= start.number, self._tree.ancestors(head)))
        *_, lowest = self._tree.ancestors(waiting)
        allowed, report = self._final.allows(BlockRef(waiting.number, waiting.hash), start.number)
        self._reports += [] if report is None else [report]
        if not allowed:
            return []
        removed = tuple(map(_content, old))
        self._note_removed(old)
        for node in [*self._tree]:
            if node.linked:
                node.linked = node.delivered = False
                self._side.discard(node)
                if node.number < start.number:
                    self._tree.remove(node)
                else:
                    self._waiting.add(node)
        self._start_forks = StartForks(self._tree)
        updates = self._begin(lowest, removed)
        self._evict(self._waiting, "too many blocks wait for a parent")
        return updates

    def _move(self, head: Node, tip: Node, replaced: tuple[AnyPayload, ...] = ()) -> list[ChainUpdate]:
        """Make a linked block the head, unless finality forbids it. ``replaced``: what another start had delivered.

        No block is removed that was not delivered: the path down from the new tip ends at the first delivered block.
        """
        old, new = paths(self._tree, head, tip)
        if old:
            allowed, report = self._final.allows(BlockRef(tip.number, tip.hash), old[-1].number)
            self._reports += [] if report is None else [report]
            if not allowed:
                return []
        removed = replaced or tuple(_content(node) for node in old)
        for node in old:
            node.delivered = False
            node.missing = node.missing and node.item is None  # it returns with the content held by then
        self._note_removed(old)
        self._add_to_side(old)
        self.history.cut(len(old))
        new.reverse()
        updates = [self._deliver(removed, new)] if removed else [self._deliver((), part) for part in self._divided(new)]
        self._prune()
        return updates

    def _divided(self, new: list[Node]) -> Iterator[list[Node]]:
        """The blocks of an extension, update by update."""
        until, at = self._settings.until, 0
        while at < len(new):
            end = min(len(new), at + (self._settings.max_update or len(new)))
            if until is not None and new[at].number <= until < new[end - 1].number:
                end = at + until - new[at].number + 1
            yield new[at:end]
            at = end

    def _note_removed(self, old: Sequence[Node]) -> None:
        """Note the reorg with which these blocks, newest first, left the chain."""
        for node in old:
            self._last_states[node.hash], self._removed_at[node.hash] = REMOVED, old[-1].number

    def _deliver(self, removed: tuple[AnyPayload, ...], nodes: list[Node]) -> ChainUpdate:
        for node in nodes:
            node.delivered = True
            self._side.discard(node)
            self.history.append(node)
            if node.item is not None:
                self._final.delivered(node.item)
        self._head = nodes[-1]
        if self.start is not None and not self.start.hash:
            self.start = BlockRef(nodes[0].number, nodes[0].hash)
        self.seq += len(removed) + len(nodes)
        return ChainUpdate(self.seq, removed, tuple(_content(node) for node in nodes), self._final.marks)

    # --- removal ---------------------------------------------------------------------------------------------

    def _add_to_side(self, nodes: Sequence[Node]) -> None:
        """Put linked blocks that were not delivered on side branches, within the bounds."""
        for node in nodes:
            if not node.delivered and node.hash in self._tree:
                self._side.add(node)
        self._evict(self._side, "too many blocks on side branches")

    def _evict(self, pool: Pool, reason: str) -> None:
        for node in pool.surplus():
            self._remove(node)
            self._reports.append(Overflow(node.hash, node.number, node.positions, reason, node.parent or b""))
            self._last_states[node.hash] = f"evicted: {reason}"

    def _prune(self) -> None:
        """Remove the blocks below the floor, and the side branches above them: none leads back to the chain.

        Every uncle ends this way, so that nothing is reported.
        """
        cut: list[Node] = []
        for node in self._tree.pop_below(self._floor):
            if not node.delivered:
                self._forget(node)
            cut += [child for child in self._tree.children(node.hash) if child.linked and not child.delivered]
        for node in cut:
            self._tree.remove(node)
            self._forget(node)
            cut += self._tree.children(node.hash)

    def _forget(self, node: Node) -> None:
        self._waiting.discard(node)
        self._side.discard(node)
        self._last_states[node.hash] = f"{PRUNED}{_TOO_LOW}"

    def _remove(self, node: Node) -> None:
        self._tree.remove(node)
        self._waiting.discard(node)
        self._side.discard(node)
        parent = self._tree.get(node.parent)
        if parent is not None:
            self._side.requeue(parent)

    def _refuse(self, block: BlockHeader | Node, reason: str) -> None:
        """Refuse a block that is not held, and the blocks that wait above it; linked ones stay."""
        pending = [block]
        for current in pending:
            self._reports.append(Quarantined(current.hash, current.number, reason))
            self._last_states[current.hash] = f"refused: {reason}"
            self.admission.refused[current.hash] = None
            above = [child for child in self._tree.children(current.hash) if not child.linked]
            for child in above:
                self._remove(child)
            pending += above
            reason = DESCENDS

    def _report_low(self, ref: BlockRef, reason: str) -> None:
        self._reports.append(Stale(ref, reason))
        self._last_states[ref.hash] = f"{PRUNED}{reason}"

    def _report_start_fork(self, block_hash: bytes) -> list[ChainUpdate]:
        """Report the chain of a block that waits, when it is heavier and can only leave below the start.

        Returns the update with which the stream begins anew, if it does.
        """
        node, head, start = self._tree.get(block_hash), self._head, self.start
        if node is None or node.linked or head is None or start is None or not start.hash:
            return []  # nothing is delivered yet
        if start.number < self._floor:
            return []
        unlinkable = start.number - 1 if self._start_configured else start.number
        report = self._start_forks.found(node, head, start, unlinkable)
        if report is None:
            return []
        self._reports.append(report)
        anew = self._settings.begin_anew and not self._start_configured
        return self._begin_anew(start, node) if anew else []


def _item(event: Completed | BlockHeader) -> BlockHeader:
    return event.payload if isinstance(event, Completed) else event


def _content(node: Node) -> AnyPayload:
    if node.item is None or node.missing:
        return MissingPayload(node.number, node.hash)
    # Headers in, headers out; for consumers they are payloads.
    return cast("AnyPayload", node.item)
