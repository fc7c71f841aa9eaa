"""Invariants of a simulated cluster, checked while it runs and after it healed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from cardinal_ingest.protocols.replication import Block, Header, Marker, Ref, State

from .cluster_kafka import Kafka, Part, Seal

if TYPE_CHECKING:
    from .cluster_node import Node

ROOT = bytes(31) + b"\x01"
"""Parent of the first block."""


class Broken(Exception):  # noqa: N818 - a broken invariant, the simulation's result
    """An invariant does not hold."""


def require(holds: object, *what: object) -> None:
    if not holds:
        raise Broken(" ".join(map(str, what)))


class Laws:
    """Facts about a run that no node has, and the invariants over them.

    Args:
        nodes: all members.
        quorum: of them.

    """

    def __init__(self, nodes: Iterable[Node], quorum: int) -> None:
        self.nodes = list(nodes)
        self.quorum = quorum
        self.blocks: dict[bytes, Block] = {}
        self.acknowledged: dict[bytes, None] = {}
        self.agreed: dict[int, Header] = {}
        self.order: dict[bytes, int] = {}
        """Agreed blocks, in their order."""
        self.lost = 0
        """Disks lost or restored since the last repair."""
        self.stats: Counter[str] = Counter()

    def on_disks(self, one: bytes) -> int:
        return sum(one in node.disk.blocks for node in self.nodes)

    def acknowledge(self, ref: Ref) -> None:
        """Durability: what is acknowledged is on a majority of the disks, or agreed."""
        if ref.hash not in self.acknowledged and ref.hash not in self.order:
            held = self.on_disks(ref.hash)
            require(held >= self.quorum - self.lost, "acknowledged on", held, "disks:", ref)
        self.acknowledged[ref.hash] = None

    def certify(self, header: Header) -> None:
        """Certified: when a claim is sent, a majority of the disks holds every body."""
        for item in header.items:
            held = self.on_disks(item.hash)
            require(held >= self.quorum - self.lost or header.num in self.agreed, "claimed on", held, "disks:", item)

    def agree(self, header: Header) -> None:
        """Agreement, once, order: one batch of a number at all readers, a block in one batch, parents first."""
        known = self.agreed.setdefault(header.num, header)
        require(known.hash == header.hash, "two batches of number", header.num)
        if known is not header:
            return
        require(header.num - 1 in self.agreed or header.num == 1, "no batch before", header.num)
        parent = header.parent
        for item in header.items:
            require(item.hash not in self.order, "in two batches:", item)
            require(self.blocks[item.hash].parent == parent, "no path:", header)
            require(parent in self.order or parent == ROOT, "before its parent:", item)
            self.order[item.hash] = len(self.order)
            parent = item.hash

    def topics(self, kafka: Kafka) -> None:
        """Markers rise; what is up to the last one is on the topics; blocks are there in the order of the batches."""
        written = kafka.committed()
        positions = [value.position for value in written if isinstance(value, Marker)]
        require(all(a < b for a, b in pairwise(positions)), "markers do not rise:", positions)
        seals = [value.placed.item.hash for value in written if isinstance(value, Seal)]
        parts = {value.placed.item.hash for value in written if isinstance(value, Part)}
        sealed = dict.fromkeys(seals)
        num, index = positions[-1] if positions else (0, 0)
        for at in range(1, num + 1):
            for item in self.agreed[at].items[: index if at == num else None]:
                require(item.hash in sealed and item.hash in parts, "promoted and not on the topics:", at, item)
        order = [self.order[one] for one in sealed]
        require(order == sorted(order), "topics are not in the order of the batches")
        self.stats["doubled"] += len(seals) - len(sealed)

    def bounded(self) -> None:
        """Storage: open blocks, what is not promoted, and a few blocks below."""
        for node in self.nodes:
            state = node.replica.state if node.up else None
            if state is None:
                continue
            winners = node.replica.winners.values()
            pending = {i.hash for header in winners if header.num >= node.replica.promoted[0] for i in header.items}
            floor = state.highest - state.rules.window - node.settings.retain_blocks - state.rules.max_blocks
            for one in node.disk.blocks.keys() - pending:
                require(self.blocks[one].number >= floor, "not pruned:", self.blocks[one].number, state.highest)
            require(len(node.disk.candidates) <= 2 * node.settings.max_candidates * len(self.nodes), "candidates")

    def promoted(self, kafka: Kafka) -> bool:
        """Progress: the head is as heavy as any acknowledged block that still counts, and all batches are promoted."""
        last = max(self.agreed, default=0)
        if last and (not kafka.markers or kafka.markers[-1].position != (last, len(self.agreed[last].items))):
            return False
        states = [node.replica.state for node in self.nodes if node.up]
        if any(state is None or state.num != last for state in states):
            return False
        state = states[0]
        assert state is not None
        return all(
            self.blocks[one].weight <= state.head.weight or not self._reaches(one, state) for one in self.acknowledged
        )

    def _reaches(self, one: bytes, state: State) -> bool:
        """The block descends from the agreed chain above the window's floor."""
        while one not in (state.ring or (ROOT,)):
            block = self.blocks.get(one)
            if block is None or block.number < state.floor:
                return False
            one = block.parent
        return True
