"""Sealing queue: the order in which Batches may be sent, as a pure state machine.

The promise is that a sealed Batch which can be read means that its block is complete on the topics. Hence:

1. A block's Batch waits until every other message of the block is acknowledged, sub batches that were only
   announced included.
2. It waits until its parent's Batch was *sent*. Waiting for the parent's acknowledgement would cost a round trip
   per block; the broker keeps the order of what one producer sends.
3. The first Batch that a producer ever sends is acknowledged before the next is sent: until then the stream's
   beginning is not certain. Where it fails, another may be the first.
4. When a block fails, all its descendants wait until its Batch was resent, also those that were free to be sent and
   those whose own parent did not fail. Batches that were sent before stay sent.
5. A parent that this queue does not hold was published before, and delays no block.

A block moves through these states; every call names the transition::

    add ──▶ CONTENT ──acknowledged──▶ READY ──(rules 2, 3, 4)──▶ FREE ──hand_over──▶ SENT ───sealed───▶ SEALED
              ▲  └────────failed────────┴──────────┬──────◀──(rule 4)──┘  │             │                  │
              └──────────────add──────────────── FAILED ◀───failed────────┴─────────────┘    forgotten after its parent

The queue never sends. Free Batches stand in one line, parents first: :meth:`SealQueue.next_free` returns the first of
them and :meth:`SealQueue.hand_over` takes it out. A failure takes every descendant out of the line at once.

Every step costs a constant time for each block that changes its state; a failure costs one for each descendant that
was free or sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from cardinal.errors import LocalProtocolError

BEFORE_BATCH_MS: Final = 600_000
"""Longest time between the rest of a block and its Batch; ample: a message may be in flight for two minutes before it
fails, and a seal waits for all of its block, and for a sub batch that was announced."""


class _State(Enum):
    CONTENT = auto()
    READY = auto()
    FREE = auto()
    SENT = auto()
    SEALED = auto()
    FAILED = auto()


_SENT = frozenset({_State.SENT, _State.SEALED})
_RESENDABLE = frozenset({_State.FAILED, _State.SEALED})


class _Entry:
    __slots__ = ("announced", "content_acknowledged", "flows", "parent", "state")

    def __init__(self, parent: bytes) -> None:
        self.parent = parent
        self.flows = False
        """True while its Batch, and those of all its ancestors here, are free or sent: children may follow."""
        self.begin(())

    def begin(self, announced: Iterable[bytes]) -> None:
        self.state = _State.CONTENT
        self.announced = set(announced)
        self.content_acknowledged = False


class SealQueue:
    """The blocks in flight, and the line of those whose Batch may be sent now."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}
        self._line: OrderedDict[bytes, None] = OrderedDict()
        self._first: bytes | None = None
        self._first_done = False
        self._behind_first: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Blocks that are not sealed and acknowledged yet."""
        return sum(map(self.__contains__, self._entries))

    def __contains__(self, block_hash: bytes) -> bool:
        """Return True for a block that is in flight."""
        entry = self._entries.get(block_hash)
        return entry is not None and entry.state is not _State.SEALED

    def add(self, block_hash: bytes, parent: bytes, announced: Iterable[bytes] = ()) -> None:
        """Add a block whose messages are being sent; also the way to resend a failed block.

        ``announced``: ids of sub batches whose content comes later. LocalProtocolError where the block is in flight and
        has not failed, had another parent before, or is its own ancestor.
        """
        entry = self._entries.get(block_hash)
        if entry is None:
            if self._is_ancestor(block_hash, parent):
                raise LocalProtocolError(f"block {block_hash.hex()} is its own ancestor")
            self._entries[block_hash] = entry = _Entry(parent)
            self._children.setdefault(parent, {})[block_hash] = None
        elif entry.state not in _RESENDABLE:
            raise LocalProtocolError(f"block {block_hash.hex()} is already being sent")
        elif entry.parent != parent:
            raise LocalProtocolError(f"block {block_hash.hex()} was added with another parent, {entry.parent.hex()}")
        else:
            self._stop(block_hash)
        entry.begin(announced)

    def next_free(self) -> bytes | None:
        """The first block in the line; None where no Batch may be sent now."""
        return next(iter(self._line), None)

    def hand_over(self, block_hash: bytes) -> None:
        """Note that the Batch of a block in the line is being sent."""
        del self._line[block_hash]
        self._entries[block_hash].state = _State.SENT

    def acknowledged(self, block_hash: bytes) -> None:
        """Note that all messages of the block but its Batch and its announced sub batches are acknowledged."""
        entry = self._entries.get(block_hash)
        if entry is not None and entry.state is _State.CONTENT:
            entry.content_acknowledged = True
            self._ready(block_hash, entry)

    def sub_batch_acknowledged(self, block_hash: bytes, batch_id: bytes) -> None:
        """Note that all messages of a sub batch are acknowledged. One that fails is resent; its block waits."""
        entry = self._entries.get(block_hash)
        if entry is not None and entry.state is _State.CONTENT:
            entry.announced.discard(batch_id)
            self._ready(block_hash, entry)

    def sealed(self, block_hash: bytes) -> None:
        """Note that the block's Batch is acknowledged: the block is on the topics."""
        entry = self._entries.get(block_hash)
        if entry is None or entry.state is not _State.SENT:
            return
        entry.state = _State.SEALED
        self._forget(block_hash)
        if block_hash == self._first:
            self._first, self._first_done = None, True
            waiting, self._behind_first = list(self._behind_first), {}
            self._release(waiting)

    def failed(self, block_hash: bytes) -> None:
        """Note that a message of the block was not acknowledged; its descendants wait until it is resent (rule 4)."""
        entry = self._entries.get(block_hash)
        if entry is None or entry.state in _RESENDABLE:
            return
        self._stop(block_hash)
        entry.state = _State.FAILED
        if block_hash == self._first:
            self._first = None
            while self._behind_first and self._first is None:
                waiting = next(iter(self._behind_first))
                del self._behind_first[waiting]
                self._release([waiting])

    # --- inside --------------------------------------------------------------------------------------------

    def _is_ancestor(self, block_hash: bytes, of: bytes) -> bool:
        """Return True for a new block that would close a circle; only one that has children here can."""
        if block_hash == of:
            return True
        if block_hash not in self._children:
            return False
        entry = self._entries.get(of)
        while entry is not None:
            if entry.parent == block_hash:
                return True
            entry = self._entries.get(entry.parent)
        return False

    def _ready(self, block_hash: bytes, entry: _Entry) -> None:
        if entry.content_acknowledged and not entry.announced:
            entry.state = _State.READY
            self._release([block_hash])

    def _release(self, candidates: list[bytes]) -> None:
        """Put every candidate that may be sent, and the blocks that waited for it, into the line, parents first."""
        pending = candidates[::-1]
        while pending:
            block_hash = pending.pop()
            entry = self._entries.get(block_hash)
            if entry is None or entry.flows or not self._parent_flows(entry):
                continue
            if entry.state is _State.READY:
                if self._first is not None:
                    self._behind_first[block_hash] = None
                    continue
                entry.state = _State.FREE
                self._line[block_hash] = None
                if not self._first_done:
                    self._first = block_hash
            elif entry.state not in _SENT:
                continue
            entry.flows = True
            pending += reversed(self._children.get(block_hash, {}))

    def _parent_flows(self, entry: _Entry) -> bool:
        parent = self._entries.get(entry.parent)
        return parent is None or parent.flows

    def _stop(self, block_hash: bytes) -> None:
        """Hold everything behind this block: blocks in the line leave it until the block was resent."""
        pending = [block_hash]
        while pending:
            current = pending.pop()
            entry = self._entries[current]
            if not entry.flows:
                continue
            entry.flows = False
            if entry.state is _State.FREE:
                entry.state = _State.READY
                del self._line[current]
            pending += self._children.get(current, {})

    def _forget(self, block_hash: bytes) -> None:
        """Forget a sealed block, and sealed ones above it, unless something below may still fail."""
        pending = [block_hash]
        while pending:
            current = pending.pop()
            entry = self._entries[current]
            if entry.state is not _State.SEALED or entry.parent in self._entries:
                continue
            del self._entries[current]
            siblings = self._children[entry.parent]
            del siblings[current]
            if not siblings:
                del self._children[entry.parent]
            pending += self._children.get(current, {})
