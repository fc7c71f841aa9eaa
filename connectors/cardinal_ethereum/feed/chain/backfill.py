"""Backfill of a long range of a node's chain by number: several batches in flight, yielded in order.

Rules:

1. Blocks are yielded in order, perhaps from two chains if the node's chain changed in between: the caller checks that
   each block is the child of the one before.
2. The size of a batch in bytes is constant: the number of blocks follows from the previous batch. Memory is bounded by
   2 x ``connections`` + 1 batches: while one waits before an attempt is repeated, others use its connection.
3. When the reader stops, requests in flight are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cardinal.errors import ApplicationError, NodeAnswerError
from cardinal_ethereum.feed.rpc.faults import FailedError
from cardinal_ethereum.feed.state.evidence import evidence
from cardinal_ethereum.feed.verify.worker import VerificationJob

from .blocks import ChainMovedError
from .fetch import Answer

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Finality
    from cardinal_ethereum.feed.settings import FeedSettings
    from cardinal_ethereum.feed.verify.rules import Rules
    from cardinal_ethereum.feed.verify.total_difficulty import TotalDifficulties
    from cardinal_ethereum.feed.verify.worker import Prepared
    from cardinal_ethereum.feed.verify.worker_pool import WorkerPool

    from .blocks import Fetched
    from .fetch import BlockFetcher

FIRST_BATCH = 8
"""Blocks in the first batch, while their size is unknown."""

Batch: TypeAlias = "list[Answer | Fetched | Prepared | None]"


class Batches:
    """Fetches batches of blocks by number, verified by worker processes where the rest of the range repays them.

    Arguments:
        fetcher: fetches the blocks.
        workers: the worker pool; None for none.
        rules: verification rules.
        finality: finality of the payloads.
        last: the last block's number.
        totals: supplies the total difficulty after the merge.
        settings: threshold for workers in bytes, and whether evidence of state is requested.

    """

    def __init__(
        self,
        fetcher: BlockFetcher,
        workers: WorkerPool | None,
        rules: Rules,
        finality: Finality | None,
        *,
        last: int,
        totals: TotalDifficulties,
        settings: FeedSettings,
    ) -> None:
        self._fetcher = fetcher
        self._workers = workers
        self._rules = rules
        self._finality = finality
        self._last = last
        self._totals = totals
        self._settings = settings

    async def by_numbers(self, numbers: Sequence[int]) -> Batch:
        """The blocks at these heights, in order; None where the node lacks one."""
        answers = await self._fetcher.answers(numbers)
        if self._workers is not None and await self._started(self._workers, answers, numbers[-1]):
            prepared = await self._prepared(self._workers, answers)
            return [
                one if one is not None and one.header.height == number else await self._fetcher.at(number, answer)
                for number, answer, one in zip(numbers, answers, prepared, strict=True)
            ]
        blocks = await self._fetcher.added(numbers, answers)
        return list(await self._with_evidence(numbers, blocks) if self._settings.state else blocks)

    async def _prepared(self, workers: WorkerPool, answers: Sequence[Answer]) -> list[Prepared | None]:
        """The workers' results; None for what they did not verify."""
        whole = [answer for answer in answers if answer.whole]
        job = VerificationJob(self._rules, self._finality, self._totals.final, [answer.texts for answer in whole])
        prepared = dict(zip(map(id, whole), await workers.prepare(job), strict=True))
        return [prepared.get(id(answer)) for answer in answers]

    async def _started(self, workers: WorkerPool, answers: Sequence[Answer], reached: int) -> bool:
        """Start the workers when the rest of the range repays it; returns whether they run."""
        ahead = (self._last - reached) * sum(answer.size for answer in answers) // len(answers)
        if not workers.started and ahead >= self._settings.worker_bytes:
            await workers.start()
        return workers.started

    async def _with_evidence(
        self, numbers: Sequence[int], answers: Sequence[Answer | Fetched | None]
    ) -> list[Fetched | None]:
        """Add evidence to the blocks; without it if one request fails.

        The verification requests it again, block by block: the blocks before the one that fails are published.
        """
        blocks = [
            await self._fetcher.at(number, each) if isinstance(each, Answer) else each
            for number, each in zip(numbers, answers, strict=True)
        ]
        present = [block for block in blocks if block is not None and block.header.height]
        try:
            by_block = dict(zip(map(id, present), await evidence(self._fetcher, present), strict=True))
        except (NodeAnswerError, FailedError, ChainMovedError, ApplicationError):
            return blocks
        return [
            block
            if block is None or (found := by_block.get(id(block))) is None
            else replace(block, size=block.size + found.size, evidence=found)
            for block in blocks
        ]


async def backfill(
    by_numbers: Callable[[Sequence[int]], Coroutine[None, None, Batch]], first: int, last: int, settings: FeedSettings
) -> AsyncGenerator[Answer | Fetched | Prepared | None]:
    """The blocks from ``first`` through ``last``, in order; None where the node lacks one.

    Raises:
        NodeUnreachableError, NodeAnswerError.

    """
    in_flight: deque[asyncio.Task[Batch]] = deque()
    size, following = FIRST_BATCH, first
    try:
        while following <= last or in_flight:
            while following <= last and len(in_flight) < 2 * settings.rpc.connections:
                numbers = range(following, min(following + size, last + 1))
                in_flight.append(asyncio.create_task(by_numbers(numbers)))
                following = numbers.stop
            batch = await in_flight[0]
            in_flight.popleft()
            size = _next_size(batch, size, settings)
            for fetched in batch:
                yield fetched
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)


def _next_size(batch: Batch, size: int, settings: FeedSettings) -> int:
    """Number of blocks in the next batch for the configured size in bytes; at most doubled."""
    sizes = [fetched.size for fetched in batch if fetched is not None]
    if not sizes:
        return size
    fitting = settings.fetch_bytes * len(sizes) // max(1, sum(sizes))
    return max(1, min(fitting, size * 2, settings.fetch_blocks))
