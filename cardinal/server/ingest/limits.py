"""Limits of an ingest node: memory, disk and publishers, and the reasons against new blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cardinal.server.ingest.promoter import Promoter
    from cardinal.server.ingest.store import BodyStore

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


class Pool:
    """Room for new blocks in a store.

    Arguments:
        store, promoter: what fills, and what empties it.
        limits: of the node.

    """

    def __init__(self, store: BodyStore, promoter: Promoter, limits: Limits) -> None:
        self._store = store
        self._promoter = promoter
        self._limits = limits

    def obstacle(self) -> str:
        """Why no new block can be stored; empty where one can.

        A pool that promotion cannot empty is not full: what it holds waits for the next block.
        """
        free = self._store.free_bytes()
        if free < self._limits.reserve_bytes:
            return f"the disk of the data folder has {free // MEBIBYTE} MiB left: blocks wait until it has more"
        if self._promoter.waiting and self._store.pool_bytes >= self._limits.pool_bytes:
            return f"{self._store.pool_bytes // MEBIBYTE} MiB of blocks are not on the topics: new ones wait"
        return ""
