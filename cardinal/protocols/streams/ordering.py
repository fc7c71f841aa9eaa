"""Complete blocks in any order to chain updates: fork choice (specification, Reorg Handling).

Rules:

1. A child of the head extends it, whatever its weight; of several children the one with the heaviest chain above
   it goes. Its number is its parent's plus one.
2. Leaving the head takes a strictly heavier chain. Of equal ones the first received stays.
3. A switch is one update through the common ancestor: removed newest first, added oldest first.
4. Children that came before their parents wait, and leave with them in one update.
5. Blocks farther below the head than the reorg threshold are dropped; so are waiting blocks over the bound.
6. From nothing, the start is chosen when the reader says :meth:`Orderer.caught_up`, or when the heaviest linked
   chain is longer than the threshold: the lowest block of the heaviest linked chain. A heavier chain that shares
   the start's parent replaces it in one update; one that leaves deeper is reported.
7. A whitelist pins hashes at heights; another block at such a height is refused, and all that descends from it.
8. Finality only rises. A switch that would remove a finalized block latches :attr:`Orderer.violation`; it is
   withheld (``halt``) or made (``follow``).
9. After :meth:`Orderer.resume` nothing is judged until :meth:`Orderer.release`: what was delivered before is
   read again first.

The orderer reads only number, hash, parent and weight, so headers without content will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, cast

from cardinal.errors import ConfigurationError, CursorMismatchError

from .events import (
    ChainUpdate,
    Completed,
    FinalityViolated,
    ForkBelowStart,
    Header,
    OrderingEvent,
    Quarantined,
    Stale,
)
from .forktree import ForkTree, Node
from .payload import AnyPayload, MissingPayload
from .types import HASH_SIZE, BlockRef, Finality


class OnFinalityViolation(Enum):
    """What happens to a switch that would remove a finalized block."""

    HALT = "halt"
    FOLLOW = "follow"


class Ties(Enum):
    """Which of several equally heavy waiting chains goes."""

    FIRST = "first"
    """The one received first."""

    HASH = "hash"
    """The one whose tip has the lowest hash: independent of arrival, for planners that rebuild their state."""


_REFUSED_MAX: Final = 4096
WAITING_MAX: Final = 10_000
"""Blocks that may wait for a parent; the highest numbers go first."""


class Orderer:
    """The chain that this stream delivers.

    Arguments:
        start: the last block already delivered; None chooses by rule 6.
        start_weight: its weight; None counts as 0, so that its first child extends it.
        reorg_threshold: blocks below the head that a reorg may reach.
        whitelist: number to the only hash that may stand there.
        finality_of: the marks that a block carries, None where it has none.
        on_finality_violation: see :class:`OnFinalityViolation`.
        check_numbers: whether a child's number must be its parent's plus one.
        ties: see :class:`Ties`.
        seq: the last sequence number given.

    """

    def __init__(
        self,
        start: BlockRef | None = None,
        start_weight: int | None = None,
        reorg_threshold: int = 128,
        whitelist: Mapping[int, bytes] | None = None,
        *,
        finality_of: Callable[[Header], Finality | None] | None = None,
        on_finality_violation: OnFinalityViolation = OnFinalityViolation.HALT,
        check_numbers: bool = True,
        ties: Ties = Ties.FIRST,
        seq: int = 0,
    ) -> None:
        if reorg_threshold < 1:
            raise ConfigurationError("the reorg threshold must be 1 block or more", setting="reorg_threshold")
        self._threshold = reorg_threshold
        self._whitelist = dict(whitelist or {})
        self._finality_of = finality_of
        self._on_violation = on_finality_violation
        self._check_numbers = check_numbers
        self._ties = ties
        self._tree: ForkTree[Header] = ForkTree()
        self._head: Node[Header] | None = None
        self._arrivals = 0
        self._held = False
        self._chosen = False
        self._waiting = 0
        self._below_start: set[bytes] = set()
        self._refused: dict[bytes, None] = {}
        self._start_check = reorg_threshold
        self._events: list[OrderingEvent] = []
        self.seq = seq
        self.finality: Finality | None = None
        self.violation: FinalityViolated | None = None
        self.start: BlockRef | None = start
        if start is not None:
            self._head = self._reference(start, None, start_weight or 0)

    # --- reading ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> BlockRef | None:
        """The newest delivered block."""
        return None if self._head is None else BlockRef(self._head.number, self._head.hash)

    @property
    def head_weight(self) -> int:
        """The head's weight, 0 without a head."""
        return 0 if self._head is None else self._head.weight

    def ring(self) -> list[BlockRef]:
        """The delivered chain within the threshold, newest first."""
        return [BlockRef(node.number, node.hash) for node in self._delivered()]

    def held_hashes(self) -> list[bytes]:
        """Every block that is held: delivered within the threshold, on side branches, or waiting."""
        return [node.hash for node in self._tree]

    def standing(self, block_hash: bytes) -> str | None:
        """How a complete block stands to the chain; None where it is not held."""
        node = self._tree.get(block_hash)
        if node is None:
            return None
        if not node.linked:
            return f"complete, waiting for its parent {(node.parent or b'').hex()}"
        if any(other is node for other in self._delivered()):
            return "delivered"
        return "complete, on a side branch"

    def take_events(self) -> list[OrderingEvent]:
        """The reports since the last call."""
        events, self._events = self._events, []
        return events

    def receive(self, event: Completed | Header) -> list[ChainUpdate]:
        """Take one complete block; returns the updates that it makes possible, none or one."""
        item: Header = event.payload if isinstance(event, Completed) else event
        known = self._tree.get(item.hash)
        if known is not None:
            return self._fill(known, item)
        if not self._admissible(item):
            return []
        self._arrivals += 1
        node: Node[Header] = Node(item.number, item.hash, item.parent, item.weight, self._arrivals)
        node.item = item
        self._tree.insert(node)
        if self._head is None:
            self._waiting += 1
            return self._start_when_long_enough()
        parent = self._tree.get(item.parent)
        if parent is not None and parent.linked:
            return self._link(node, parent)
        self._wait(node)
        if node.hash in self._tree and any(child.linked for child in self._tree.children(node.hash)):
            return self._link_down(node)
        return []

    def caught_up(self) -> list[ChainUpdate]:
        """The reader has seen everything that was there when it opened: choose the start, if none is chosen."""
        return self._choose_start() if self._head is None and not self._held else []

    # --- resuming --------------------------------------------------------------------------------------------

    def resume(self, ring: Sequence[BlockRef], weight: int, finality: Finality | None, *, violated: bool) -> None:
        """Go on after blocks that an earlier run delivered; nothing is judged until :meth:`release`.

        Arguments:
            ring: delivered blocks, newest first, at least the head.
            weight: the head's weight.
            finality: the marks at the head.
            violated: whether the violation latch was set.

        Raises:
            CursorMismatchError: the whitelist forbids a delivered block.

        """
        for ref in ring:
            pinned = self._whitelist.get(ref.number)
            if pinned is not None and pinned != ref.hash:
                raise CursorMismatchError(
                    f"the whitelist pins another block at {ref.number} than the cursor delivered; "
                    "start anew, or take the entry out",
                    expected=pinned,
                    found=ref.hash,
                )
        for index, ref in enumerate(ring):
            parent = ring[index + 1].hash if index + 1 < len(ring) else None
            node = self._reference(ref, parent, weight if index == 0 else 0)
            if index == 0:
                self._head = node
        self.start = self.start or ring[-1]
        self.finality = finality
        if violated and finality is not None and finality.finalized is not None:
            self.violation = FinalityViolated(ring[0], finality.finalized)
        self._held = True

    def release(self) -> list[ChainUpdate]:
        """What was delivered before is read again, or can no longer be had: judge, and go on."""
        if not self._held:
            return []
        self._held = False
        self._recover_ancestors()
        for root in [node for node in self._tree if node.linked]:
            self._link_children(root)
        if self._head is not None:
            self._prune(self._head)
        return self._advance(self._best_tip([node for node in self._tree if node.linked]))

    def _recover_ancestors(self) -> None:
        """Parents of the head that were read again, where the ring did not name them (planners)."""
        if self._head is None:
            return
        for node in self._tree.ancestors(self._head):
            self._waiting -= not node.linked
            node.linked = True

    def _link_children(self, root: Node[Header]) -> list[Node[Header]]:
        linked: list[Node[Header]] = []
        for child in list(self._tree.children(root.hash)):
            if not child.linked and self._fits(child, root):
                linked += self._connect(child)
        return linked

    # --- rules -----------------------------------------------------------------------------------------------

    def _reference(self, ref: BlockRef, parent: bytes | None, weight: int) -> Node[Header]:
        node: Node[Header] = Node(ref.number, ref.hash, parent, weight, 0)
        node.linked = True
        self._tree.insert(node)
        return node

    def _fill(self, node: Node[Header], item: Header) -> list[ChainUpdate]:
        """A block that was known by reference is read (again): its content is at hand from now on."""
        if node.item is not None:
            return []
        node.item = item
        node.weight = item.weight
        if node.parent is None and node.linked:
            self._tree.set_parent(node, item.parent)
            if self._tree.get(item.parent) is None and self.start is not None and node.hash == self.start.hash:
                self._root_below(node)
            return self._link_down(node)
        return []

    def _root_below(self, start: Node[Header]) -> None:
        """Make the start's parent a known fork point; it is never delivered."""
        if start.parent is not None and start.number > 0:
            self._reference(BlockRef(start.number - 1, start.parent), None, 0)

    def _link_down(self, node: Node[Header]) -> list[ChainUpdate]:
        """Link what lies below a linked block, and what waited above those: history that is read after its child."""
        linked: list[Node[Header]] = []
        for ancestor in self._tree.ancestors(node):
            self._waiting -= not ancestor.linked
            ancestor.linked = True
            linked += self._link_children(ancestor)
        return [] if self._held else self._advance(self._best_tip(linked))

    def _admissible(self, item: Header) -> bool:
        ref = BlockRef(item.number, item.hash)
        if len(item.parent) != HASH_SIZE:
            self._events.append(Quarantined(item.hash, item.number, "its parent is no hash"))
            return False
        pinned = self._whitelist.get(item.number)
        if pinned is not None and pinned != item.hash:
            self._refuse(item.hash, item.number, "the whitelist pins another block at its number")
            return False
        if item.parent in self._refused:
            self._refuse(item.hash, item.number, "it descends from a refused block")
            return False
        if self._head is not None and item.number < self._head.number - self._threshold and not self._held:
            self._events.append(Stale(ref, "farther below the head than the reorg threshold"))
            return False
        return True

    def _refuse(self, block_hash: bytes, number: int, reason: str) -> None:
        self._events.append(Quarantined(block_hash, number, reason))
        self._refused[block_hash] = None
        if len(self._refused) > _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refuse_above(block_hash)

    def _refuse_above(self, block_hash: bytes) -> None:
        """Refuse what already waits above a refused block."""
        pending = [block_hash]
        while pending:
            for child in list(self._tree.children(pending.pop())):
                pending.append(child.hash)
                self._tree.remove(child)
                self._waiting -= not child.linked
                self._events.append(Quarantined(child.hash, child.number, "it descends from a refused block"))

    def _fits(self, node: Node[Header], parent: Node[Header]) -> bool:
        if not self._check_numbers or node.number == parent.number + 1:
            return True
        self._tree.remove(node)
        self._waiting -= 1
        reason = f"its number is {node.number}, its parent's is {parent.number}"
        self._events.append(Quarantined(node.hash, node.number, reason))
        return False

    def _wait(self, node: Node[Header]) -> None:
        self._waiting += 1
        if self._waiting > WAITING_MAX:
            highest = self._tree.highest()
            if highest is not None and not highest.linked:
                self._tree.remove(highest)
                self._waiting -= 1
                self._events.append(Stale(BlockRef(highest.number, highest.hash), "too many blocks wait for a parent"))
        self._report_fork_below_start(node)

    def _report_fork_below_start(self, node: Node[Header]) -> None:
        start, head = self.start, self._head
        if self._held or start is None or head is None or node.weight <= head.weight:
            return
        *_, lowest = self._tree.ancestors(node)
        if lowest.number < start.number and lowest.hash not in self._below_start and not lowest.linked:
            self._below_start.add(lowest.hash)
            self._events.append(ForkBelowStart(BlockRef(node.number, node.hash), start))

    def _link(self, node: Node[Header], parent: Node[Header]) -> list[ChainUpdate]:
        self._waiting += 1
        if not self._fits(node, parent):
            return []
        linked = self._connect(node)
        return [] if self._held else self._advance(self._best_tip(linked))

    def _connect(self, node: Node[Header]) -> list[Node[Header]]:
        """Link a block and what waited above it, without those whose number contradicts their parent's."""
        linked = self._tree.link(node)
        self._waiting -= len(linked)
        for other in linked[1:]:
            up = self._tree.get(other.parent)
            if up is not None and other.hash in self._tree and not self._check(other, up):
                self._cut(other)
        return [other for other in linked if other.hash in self._tree]

    def _check(self, node: Node[Header], parent: Node[Header]) -> bool:
        return not self._check_numbers or node.number == parent.number + 1

    def _cut(self, node: Node[Header]) -> None:
        """A waiting block whose number contradicts its parent's, and all above it."""
        reason = f"its number is {node.number}, not one more than its parent's"
        self._events.append(Quarantined(node.hash, node.number, reason))
        self._refuse_above(node.hash)
        self._tree.remove(node)

    # --- fork choice -----------------------------------------------------------------------------------------

    def _rank(self, node: Node[Header]) -> tuple[int, int, bytes]:
        """Smaller is better: heavier, then by the tie rule."""
        if self._ties is Ties.HASH:
            return (-node.weight, 0, node.hash)
        return (-node.weight, node.arrival, node.hash)

    def _best_tip(self, linked: list[Node[Header]]) -> Node[Header] | None:
        """The new head among newly linked blocks, or None where the head stays."""
        head = self._head
        if head is None or not linked:
            return None
        best = min(linked, key=self._rank)
        fresh = {node.hash for node in linked}
        above = self._children_in(head, fresh)
        if above:
            extension = self._climb(head, fresh)
            # A child extends the head whatever its weight, unless something new elsewhere is heavier still.
            if best.weight <= extension.weight or self._descends(best, head):
                return extension
        if best.weight > head.weight:
            return self._climb(best, fresh)
        return None

    def _children_in(self, node: Node[Header], among: set[bytes]) -> list[Node[Header]]:
        return [child for child in self._tree.children(node.hash) if child.hash in among]

    def _descends(self, node: Node[Header], ancestor: Node[Header]) -> bool:
        for current in self._tree.ancestors(node):
            if current is ancestor:
                return True
            if current.number <= ancestor.number:
                return False
        return False

    def _climb(self, node: Node[Header], among: set[bytes]) -> Node[Header]:
        """From a block up to a leaf, at every fork towards the heaviest block above it."""
        heaviest: dict[bytes, tuple[int, int, bytes]] = {}
        order = [node]
        for current in order:
            order += self._children_in(current, among)
        for current in reversed(order):
            above = [heaviest[child.hash] for child in self._children_in(current, among)]
            heaviest[current.hash] = (
                min([self._rank(current), *above]) if current is not node or not above else min(above)
            )
        while children := self._children_in(node, among):
            node = min(children, key=lambda child: heaviest[child.hash])
        return node

    def _advance(self, tip: Node[Header] | None) -> list[ChainUpdate]:
        head = self._head
        if tip is None or head is None or tip is head:
            return []
        old, new = self._paths(head, tip)
        if self._leaves_below_start(tip, old) or not self._finality_allows(tip, old):
            return []
        removed = tuple(self._content(node) for node in old)
        added = tuple(self._content(node) for node in reversed(new))
        return [self._deliver(tip, removed, added)]

    def _leaves_below_start(self, tip: Node[Header], old: Sequence[Node[Header]]) -> bool:
        """Whether a switch would remove blocks that were never delivered: the start's ancestors, read after it."""
        if self.start is None or not self._chosen or not old or old[-1].number >= self.start.number:
            return False
        if old[-1].hash not in self._below_start:
            self._below_start.add(old[-1].hash)
            self._events.append(ForkBelowStart(BlockRef(tip.number, tip.hash), self.start))
        return True

    def _paths(self, head: Node[Header], tip: Node[Header]) -> tuple[list[Node[Header]], list[Node[Header]]]:
        """The blocks from the head and from the tip down to, and without, their common ancestor."""
        old: list[Node[Header]] = []
        new: list[Node[Header]] = []
        left: Node[Header] | None = head
        right: Node[Header] | None = tip
        seen_left = {head.hash: 0}
        seen_right = {tip.hash: 0}
        while left is not None or right is not None:
            if left is not None:
                if left.hash in seen_right:
                    return old, new[: seen_right[left.hash]]
                old.append(left)
                left = self._tree.get(left.parent)
                if left is not None:
                    seen_left[left.hash] = len(old)
            if right is not None:
                if right.hash in seen_left:
                    return old[: seen_left[right.hash]], new
                new.append(right)
                right = self._tree.get(right.parent)
                if right is not None:
                    seen_right[right.hash] = len(new)
        raise AssertionError("two linked blocks have no common ancestor")

    def _finality_allows(self, tip: Node[Header], old: list[Node[Header]]) -> bool:
        finalized = None if self.finality is None else self.finality.finalized
        if finalized is None or not old or old[-1].number > finalized:
            return True
        self.violation = FinalityViolated(BlockRef(tip.number, tip.hash), finalized)
        self._events.append(self.violation)
        return self._on_violation is OnFinalityViolation.FOLLOW

    def _content(self, node: Node[Header]) -> AnyPayload:
        # Whoever feeds headers gets headers back; for consumers they are payloads.
        return MissingPayload(node.number, node.hash) if node.item is None else cast("AnyPayload", node.item)

    def _deliver(
        self, tip: Node[Header], removed: tuple[AnyPayload, ...], added: tuple[AnyPayload, ...]
    ) -> ChainUpdate:
        self._head = tip
        self.seq += len(removed) + len(added)
        if self._finality_of is not None:
            for block in added:
                if not isinstance(block, MissingPayload):
                    self.finality = _raised(self.finality, self._finality_of(block))
        self._prune(tip)
        return ChainUpdate(self.seq, removed, added, self.finality)

    def _prune(self, head: Node[Header]) -> None:
        """Forget what lies below the threshold, and what hung on it beside the chain: it can no longer be reached."""
        pruned = self._tree.prune(head.number - self._threshold)
        for node in pruned:
            self._waiting -= not node.linked
        chain = {node.hash for node in self._tree.ancestors(head)} if pruned else set()
        pending = [child for node in pruned for child in self._tree.children(node.hash) if child.hash not in chain]
        while pending:
            node = pending.pop()
            if node.linked:
                node.linked = False
                self._waiting += 1
                pending += self._tree.children(node.hash)

    def _delivered(self) -> list[Node[Header]]:
        if self._head is None:
            return []
        start = -1 if self.start is None else self.start.number
        return [node for node in self._tree.ancestors(self._head) if node.number >= start]

    # --- start -----------------------------------------------------------------------------------------------

    def _start_when_long_enough(self) -> list[ChainUpdate]:
        # The chain's length is looked at when the pool has grown by a quarter, so that the work stays linear.
        if self._held or self._waiting <= self._start_check:
            return []
        self._start_check = self._waiting + self._waiting // 4
        tip = min(self._tree, key=self._rank)
        linked = sum(1 for _ in self._tree.ancestors(tip))
        return self._choose_start() if linked > self._threshold else []

    def _choose_start(self) -> list[ChainUpdate]:
        if not len(self._tree):
            return []
        tip = min(self._tree, key=self._rank)
        *_, lowest = self._tree.ancestors(tip)
        self.start, self._chosen = BlockRef(lowest.number, lowest.hash), True
        # The start's parent is the fork point below which nothing is known; it stands in for the head until the
        # first update, and is never delivered.
        root = self._reference(BlockRef(lowest.number - 1, lowest.parent or b""), None, -1)
        self._head = root
        linked = self._link_children(root)
        on_chain = [node for node in linked if self._descends(node, lowest)]
        return self._advance(self._climb(lowest, {node.hash for node in on_chain}))


def _raised(old: Finality | None, new: Finality | None) -> Finality | None:
    """The marks, never lower than before."""
    if new is None or old is None:
        return new or old
    return Finality(_higher(old.safe, new.safe), _higher(old.finalized, new.finalized))


def _higher(old: int | None, new: int | None) -> int | None:
    return old if new is None or (old is not None and old > new) else new
