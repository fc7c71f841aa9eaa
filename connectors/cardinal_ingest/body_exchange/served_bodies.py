"""Shelf of an ingest node: the acknowledged blocks whose bodies it can serve, parents first.

Rules:

1. A block is on the shelf from its acknowledgement until its body leaves the store.
2. A pinned block is retained: the store checks before it deletes a body.
3. Blocks are added on the event loop; everything else is called on any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from cardinal_ingest.body_exchange.objects import Objects, object_of
from cardinal_ingest.protocols.diffusion import ObjectId
from cardinal_ingest.protocols.publish import BlockId

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal_ingest.node.store import BodyStore


class Shelf:
    """Pool of the objects that a node announces.

    Arguments:
        store: of the bodies.
        objects: how ids and bodies are read.

    Attributes:
        objects: the same.
        watchers: called when a block was added.

    """

    def __init__(self, store: BodyStore, objects: Objects) -> None:
        self._store = store
        self.objects = objects
        self._lock = threading.Lock()
        self._blocks: dict[int, BlockId] = {}
        """By ticket; a ticket is the number of blocks added before, and one."""
        self._tickets: dict[BlockId, int] = {}
        self._pins: Counter[BlockId] = Counter()
        self._last = 0
        self._gone = 0
        """Nothing is left up to this ticket."""
        self.watchers: set[Callable[[], object]] = set()
        for block in store.blocks():
            if block.promoted and block.retained:
                self.add(BlockId(block.number, block.hash))
        store.unpinned = self._unpinned

    def add(self, block: BlockId) -> None:
        """A block is acknowledged."""
        with self._lock:
            self._last += 1
            self._blocks[self._last] = block
            self._tickets[block] = self._last
        for watcher in self.watchers:
            watcher()

    def after(self, ticket: int, limit: int) -> list[tuple[int, ObjectId, int]]:
        """Ticket, id and size of up to ``limit`` objects with a higher ticket."""
        with self._lock:
            later = range(max(ticket, self._gone) + 1, self._last + 1)
            found = list(islice(((at, self._blocks[at]) for at in later if at in self._blocks), limit))
        sizes = [self._store.size(block.number, block.hash) for _, block in found]
        return [
            (at, object_of(block), size) for (at, block), size in zip(found, sizes, strict=True) if size is not None
        ]

    def pin(self, one: ObjectId) -> None:
        """Retain a body until it is released as often."""
        with self._lock:
            self._pins[self.objects.block_of(one)] += 1

    def release(self, one: ObjectId) -> None:
        """Undo one :meth:`pin`."""
        block = self.objects.block_of(one)
        with self._lock:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]

    def body(self, one: ObjectId) -> bytes:
        """The bytes of a pinned object.

        Raises:
            StoreError: it left the store in the moment before it was pinned.

        """
        block = self.objects.block_of(one)
        return self._store.body(block.number, block.hash)

    def _unpinned(self, blocks: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Take blocks from the shelf, unless they are pinned."""
        with self._lock:
            going = {BlockId(*block) for block in blocks} - self._pins.keys()
            for block in going & self._tickets.keys():
                del self._blocks[self._tickets.pop(block)]
            while self._gone < self._last and self._gone + 1 not in self._blocks:
                self._gone += 1
        return [(block.number, block.hash) for block in going]
