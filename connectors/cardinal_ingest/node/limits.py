"""Limits of an ingest node: memory, disk and publishers, and the reasons against new blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cardinal_ingest.node.store import BodyStore

MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a node.

    Attributes:
        memory_bytes: of blocks that are received, verified or stored at once. When they are reached, only the lowest
            block is read on; it may exceed them.
        pool_bytes: of stored blocks that are not on the topics; when they are reached, publishers wait.
        reserve_bytes: that the disk keeps free; below it, publishers wait.
        publishers: connected at once.

    """

    memory_bytes: int = 512 * MEBIBYTE
    pool_bytes: int = 4096 * MEBIBYTE
    reserve_bytes: int = 256 * MEBIBYTE
    publishers: int = 256

    def obstacle(self, store: BodyStore, waiting_bytes: int, waiting: str) -> str:
        """Why no new block can be stored; empty where one can.

        Arguments:
            store: whose disk fills.
            waiting_bytes: of stored blocks that leave the pool by themselves. What waits for the next block is none.
            waiting: what these blocks are.

        """
        free = store.free_bytes()
        if free < self.reserve_bytes:
            return f"the disk of the data folder has {free // MEBIBYTE} MiB left: blocks wait until it has more"
        if waiting_bytes >= self.pool_bytes:
            return f"{waiting_bytes // MEBIBYTE} MiB of blocks are {waiting}: new ones wait"
        return ""
