"""A node of a small application's blocks, for services that produce them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from blocks import DEADLINE, line, name_of
from cardinal.errors import NodeAnswerError
from cardinal.protocols.streams.types import SEALED_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cardinal.protocols.streams import BlockRef, Payload
    from cardinal.server.produce import ProduceService
    from cardinal_devkit.testing.memory import MemoryBroker

CHAIN = line(1, 40)


class Node:
    """A chain up to its head, and beside it what the node has by hash alone.

    Attributes:
        given: numbers of the blocks that were yielded.
        asked: names of the blocks that were requested by hash.
        compared: numbers of the blocks that were followed alone, as before anything is published.
        learned: weights of published blocks by their names; ``learned_after`` so many were yielded.

    """

    def __init__(
        self,
        chain: Sequence[Payload] = CHAIN,
        beside: Sequence[Payload] = (),
        *,
        ends: bool = True,
        fails_at: int | None = None,
    ) -> None:
        self.chain = chain
        self.has = {payload.hash: payload for payload in (*chain, *beside)}
        self.closed = False
        self.given: list[int] = []
        self.asked: list[str] = []
        self.compared: list[int | None] = []
        self.learned: dict[str, int] = {}
        self.learned_after = 0
        self.target: int | None = None
        self._ends = ends
        self._fails_at = fails_at

    async def chain_id(self) -> int:
        return 1

    def learn(self, weights: Mapping[bytes, int]) -> None:
        self.learned_after = len(self.given)
        self.learned = {name_of(block): weight for block, weight in weights.items()}

    async def block(self, block_hash: bytes) -> Payload | None:
        self.asked.append(name_of(block_hash))
        return self.has.get(block_hash)

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        if start == until:
            self.compared.append(start)
        head = self.chain[-1].number
        self.target = head if until is None else min(head, until)
        known = {ref.hash for ref in published}
        await asyncio.sleep(0)
        for payload in self.chain:
            above = known or payload.number >= (start or 0)
            if above and payload.hash not in known and payload.number <= self.target:
                if payload.number == self._fails_at:
                    raise NodeAnswerError("the node lost its head", code=-32000)
                self.given.append(payload.number)
                yield payload
        if not self._ends or self.target < (until or 0):
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed = True


async def run(service: ProduceService) -> list[BlockRef]:
    """Where it went on."""
    try:
        published = await service.prepare()
        await asyncio.wait_for(service.run(), DEADLINE)
    finally:
        await service.close()
    return published


def sealed(broker: MemoryBroker) -> list[bytes]:
    """Sealed blocks in the order of their Batches; the topic has one partition."""
    return [record.key[1:] for record in broker.records("block") if SEALED_HEADER in dict(record.headers)]
