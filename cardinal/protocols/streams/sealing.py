"""When a Batch may be handed over: the producer's side of sealing, as a pure state machine.

The promise is that a sealed Batch which can be read means that its block is complete on the topics. Hence:

1. A block's Batch waits until every other message of the block is acknowledged, sub batches that were only
   announced included.
2. It waits until its parent's Batch was *handed over*. Waiting for the parent's acknowledgement would cost a
   round trip per block; the broker keeps the order of what one producer hands over.
3. The first Batch that a producer ever sends is acknowledged before the next is handed over: until then the
   stream's beginning is not certain.
4. When a block fails, its descendants wait until it was added and acknowledged again.
5. A parent that this queue does not know was published before, and holds nobody up.

A block moves through these states; every call names the transition::

    add ──▶ CONTENT ──acknowledged──▶ READY ──(rules 2, 3)──▶ HANDED ──sealed──▶ forgotten
              ▲  └────────failed────────┴──────────┬──────────────┘
              └──────────────add──────────────── FAILED

The queue never sends: it returns the hashes whose Batch may be handed over now, parents first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from cardinal.errors import LocalProtocolError


class _State(Enum):
    CONTENT = auto()
    READY = auto()
    HANDED = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Entry:
    parent: bytes
    state: _State
    announced: set[bytes] = field(default_factory=set)
    content_acknowledged: bool = False


class SealQueue:
    """The blocks under way and which of them may be sealed.

    Every method that can free a seal returns the hashes to seal now, in the order in which to hand them over.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}
        self._children: dict[bytes, list[bytes]] = {}
        self._first: bytes | None = None
        self._first_done = False

    def __len__(self) -> int:
        """Blocks that are not sealed and acknowledged yet."""
        return len(self._entries)

    def __contains__(self, block_hash: bytes) -> bool:
        """Whether this block is under way."""
        return block_hash in self._entries

    def add(self, block_hash: bytes, parent: bytes, announced: Iterable[bytes] = ()) -> None:
        """A block's messages are being sent; also the way to send a failed block again.

        Arguments:
            block_hash: the block.
            parent: its parent.
            announced: ids of sub batches whose content comes later.

        Raises:
            LocalProtocolError: the block is under way and has not failed.

        """
        entry = self._entries.get(block_hash)
        if entry is not None and entry.state is not _State.FAILED:
            raise LocalProtocolError(f"block {block_hash.hex()} is already being sent")
        if entry is None:
            self._children.setdefault(parent, []).append(block_hash)
        self._entries[block_hash] = _Entry(parent, _State.CONTENT, set(announced))

    def acknowledged(self, block_hash: bytes) -> list[bytes]:
        """All messages of the block but its Batch and its announced sub batches are acknowledged."""
        entry = self._entries.get(block_hash)
        if entry is None or entry.state is not _State.CONTENT:
            return []
        entry.content_acknowledged = True
        return self._settle(block_hash, entry)

    def sub_batch_acknowledged(self, block_hash: bytes, batch_id: bytes) -> list[bytes]:
        """All messages of an announced sub batch are acknowledged."""
        entry = self._entries.get(block_hash)
        if entry is None:
            return []
        entry.announced.discard(batch_id)
        return self._settle(block_hash, entry) if entry.state is _State.CONTENT else []

    def sealed(self, block_hash: bytes) -> list[bytes]:
        """The block's Batch is acknowledged: the block is on the topics and forgotten here."""
        entry = self._entries.pop(block_hash, None)
        if entry is None:
            return []
        siblings = self._children.get(entry.parent, [])
        siblings.remove(block_hash)
        if not siblings:
            self._children.pop(entry.parent, None)
        if block_hash != self._first:
            return []
        self._first, self._first_done = None, True
        return self._release(list(self._entries))

    def failed(self, block_hash: bytes) -> None:
        """A message of the block was not acknowledged; its descendants wait until it is added again."""
        entry = self._entries.get(block_hash)
        if entry is None:
            return
        entry.state = _State.FAILED
        if block_hash == self._first:
            self._first = None

    def _settle(self, block_hash: bytes, entry: _Entry) -> list[bytes]:
        if not entry.content_acknowledged or entry.announced:
            return []
        entry.state = _State.READY
        return self._release([block_hash])

    def _release(self, candidates: list[bytes]) -> list[bytes]:
        """Hand over every candidate that may go, and what waited for it, parents before children."""
        out: list[bytes] = []
        while candidates:
            block_hash = candidates.pop(0)
            entry = self._entries[block_hash]
            if entry.state is not _State.READY or not self._parent_handed(entry) or self._first is not None:
                continue
            entry.state = _State.HANDED
            out.append(block_hash)
            if not self._first_done:
                self._first = block_hash
            candidates = self._children.get(block_hash, []) + candidates
        return out

    def _parent_handed(self, entry: _Entry) -> bool:
        parent = self._entries.get(entry.parent)
        return parent is None or parent.state is _State.HANDED
