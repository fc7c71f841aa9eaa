"""Long ranges of a node's chain, by number: several batches on their way at once, given in order.

Rules:

1. What is given is in order and may be of two chains where the node's moved in between: whoever takes it checks that
   each block is the child of the one before.
2. A batch aims at so many bytes, whatever the size of a block: learned from the last batch, and so memory is bounded
   by ``connections`` + 1 batches.
3. When the reader stops, nothing goes on behind its back: requests under way are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cardinal.errors import ApplicationError, NodeAnswerError

from .evidence import evidence
from .fetch import Answer
from .walk import ChainMovedError
from .worker import Job

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Finality

    from .fetch import BlockFetcher, Fetched
    from .rules import Rules
    from .settings import FeedSettings
    from .totals import Totals
    from .worker import Prepared
    from .workers import Workers

FIRST_BATCH = 8
"""Blocks in the first batch, when nothing is known of their size yet."""

Batch: TypeAlias = "list[Answer | Fetched | Prepared | None]"


class Batches:
    """Blocks by number, checked by other processes where so many have still to come that these pay.

    Arguments:
        fetcher: the node.
        workers: the processes; None for none.
        rules: what the blocks have to satisfy.
        finality: marks for them.
        last: the last block's number.
        totals: tells what is known of the total difficulty after the merge.
        settings: from how many bytes on processes pay, and whether what proves state deltas is asked for, too.

    """

    def __init__(
        self,
        fetcher: BlockFetcher,
        workers: Workers | None,
        rules: Rules,
        finality: Finality | None,
        *,
        last: int,
        totals: Totals,
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
        if self._workers is not None and await self._begun(self._workers, answers, numbers[-1]):
            whole = [answer for answer in answers if answer.whole]
            job = Job(self._rules, self._finality, self._totals.final, [answer.texts for answer in whole])
            prepared = dict(zip(map(id, whole), await self._workers.prepare(job), strict=True))
            return [prepared.get(id(answer)) or await self._fetcher.assembled(answer) for answer in answers]
        blocks = await self._fetcher.added(answers)
        return list(await self._with_evidence(blocks) if self._settings.state else blocks)

    async def _begun(self, workers: Workers, answers: Sequence[Answer], reached: int) -> bool:
        """Whether processes check blocks now. They are started when what lies ahead is worth it."""
        ahead = (self._last - reached) * sum(answer.size for answer in answers) // len(answers)
        if not workers.begun and ahead >= self._settings.worker_bytes:
            await workers.start()
        return workers.begun

    async def _with_evidence(self, answers: Sequence[Answer | Fetched | None]) -> list[Fetched | None]:
        """The blocks with what was said of their state; without it where a node refuses: the gate finds out why."""
        blocks = [await self._fetcher.assembled(one) if isinstance(one, Answer) else one for one in answers]
        there = [block for block in blocks if block is not None and block.header.height]
        try:
            said = dict(zip(map(id, there), await evidence(self._fetcher, there), strict=True))
        except (NodeAnswerError, ChainMovedError, ApplicationError):
            return blocks
        return [
            block
            if block is None or (one := said.get(id(block))) is None
            else replace(block, size=block.size + one.size, evidence=one)
            for block in blocks
        ]


async def backfill(
    by_numbers: Callable[[Sequence[int]], Coroutine[None, None, Batch]], first: int, last: int, settings: FeedSettings
) -> AsyncGenerator[Answer | Fetched | Prepared | None]:
    """The blocks from ``first`` through ``last``, in order; None where the node lacks one.

    Raises:
        NodeUnreachableError, NodeAnswerError.

    """
    under_way: deque[asyncio.Task[Batch]] = deque()
    size, following = FIRST_BATCH, first
    try:
        while following <= last or under_way:
            while following <= last and len(under_way) < settings.rpc.connections:
                numbers = range(following, min(following + size, last + 1))
                under_way.append(asyncio.create_task(by_numbers(numbers)))
                following = numbers.stop
            batch = await under_way[0]
            under_way.popleft()
            size = _next_size(batch, size, settings)
            for fetched in batch:
                yield fetched
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _next_size(batch: Batch, size: int, settings: FeedSettings) -> int:
    """Blocks for the next batch, so that its answers have about the size that is aimed at; at most doubled."""
    there = [fetched.size for fetched in batch if fetched is not None]
    if not there:
        return size
    fitting = settings.fetch_bytes * len(there) // max(1, sum(there))
    return max(1, min(fitting, size * 2, settings.fetch_blocks))
