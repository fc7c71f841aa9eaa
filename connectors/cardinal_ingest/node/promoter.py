"""Promoter: puts acknowledged blocks on the topics, in their order, each once.

Rules:

1. A block is one transaction. When its commit is reported, its body leaves the store.
2. Whether a commit that was not reported took place is read from the topics, after a new producer has taken the
   transactional id: nothing of the old one can come later. A start is the same.
3. What a broker or a restart heals is waited for. Anything else ends the promoter.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from cardinal._concurrency import new_future
from cardinal.errors import CardinalError
from cardinal.server.produce.conditions import LOG, Conditions

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from cardinal.server.produce.connection import StreamConnection
    from cardinal_ingest.node.blocks import Blocks
    from cardinal_ingest.node.store import BodyStore
    from cardinal_ingest.protocols.publish import BlockId

    _Sent: TypeAlias = tuple[BlockId, Future[None]]

_TOGETHER: Final = 32
"""Blocks that are in flight: the next ones are read and sent while a transaction commits."""
STUCK_SECONDS: Final = 60.0


class Promoting(Protocol):
    """Numbers of a promoter.

    Attributes:
        promoted: blocks that it put on the topics.
        last: the number of the newest of them; None while there is none.

    """

    promoted: int
    last: int | None

    @property
    def waiting(self) -> int:
        """Blocks that are not on the topics."""
        ...

    @property
    def lag(self) -> float:
        """Seconds for which the oldest of them has waited."""
        ...

    @property
    def waits_for(self) -> str:
        """Why nothing is promoted; empty where something is, or could be."""
        ...


class Promoter:
    """Promotes the blocks of a store.

    Arguments:
        store, blocks: whose blocks.
        connection: to the topics, by a transactional producer.
        clock: seconds.

    Attributes:
        promoted: blocks that were put on the topics.
        last: the number of the newest of them; None while there is none.

    """

    def __init__(
        self,
        store: BodyStore,
        blocks: Blocks,
        connection: StreamConnection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._connection = connection
        self._conditions = Conditions()
        self._waiting: asyncio.Queue[BlockId] = asyncio.Queue()
        self._retries: deque[BlockId] = deque()
        self._sent: deque[_Sent] = deque()
        self._added: dict[BlockId, float] = {}
        self._clock = clock
        self._progress = clock()
        self.promoted = 0
        self.last: int | None = None
        self._there: frozenset[bytes] = frozenset()
        """Hashes of blocks that were on the topics when the producer was connected."""

    def add(self, block: BlockId) -> None:
        """A block is acknowledged; parents first."""
        self._waiting.put_nowait(block)
        self._added[block] = self._clock()

    async def run(self) -> None:
        """Promote until cancelled.

        Raises:
            CardinalError: what waiting does not heal.

        """
        await self._conditions.answer(self._connect)
        while True:
            if len(self._sent) < _TOGETHER and (self._retries or not self._sent or not self._waiting.empty()):
                block = self._retries.popleft() if self._retries else await self._waiting.get()
                self._sent.append((block, await asyncio.to_thread(self._send, block)))
                continue
            try:
                await asyncio.wrap_future(self._sent[0][1])
            except CardinalError as error:
                await self._renew(error)
            else:
                await self._finish(list(itertools.takewhile(_succeeded, self._sent)))

    async def drained(self) -> None:
        """Return when every block is on the topics."""
        await self._waiting.join()

    @property
    def waiting(self) -> int:
        """Blocks that are not on the topics."""
        return len(self._added)

    @property
    def lag(self) -> float:
        """Seconds for which the oldest of them has waited."""
        return self._clock() - next(iter(self._added.values())) if self._added else 0.0

    @property
    def waits_for(self) -> str:
        """Why nothing is promoted; empty where something is, or could be."""
        stuck = min(self.lag, self._clock() - self._progress)
        if not self._conditions.waits_for and stuck >= STUCK_SECONDS:
            return f"no block was put on the topics for {stuck:.0f} s"
        return self._conditions.waits_for

    async def _connect(self) -> None:
        await self._connection.open()
        self._there = frozenset((await self._connection.survey()).batches)

    def _send(self, block: BlockId) -> Future[None]:
        """Send a block; its future ends when it is on the topics."""
        payload = self._blocks.payload(block.number, self._store.body(block.number, block.hash))
        future = new_future()
        if payload.hash in self._there:
            future.set_result(None)
            return future
        try:
            return self._connection.submit(payload)
        except CardinalError as error:
            future.set_exception(error)
            return future

    async def _renew(self, error: CardinalError) -> None:
        """Replace the producer, and send again what it did not put on the topics."""
        if not error.retriable:
            raise error
        await self._connection.close()  # every future has ended then
        LOG.warning("the producer failed and is replaced: %(error)s", {"kind": "replaced", "error": error})
        await self._finish([one for one in self._sent if _succeeded(one)])
        self._retries.extendleft(block for block, _ in reversed(self._sent))
        self._sent.clear()
        await self._conditions.answer(self._connect)

    async def _finish(self, sent: list[_Sent]) -> None:
        """Blocks are on the topics."""

        async def store() -> None:
            changes = [self._store.promoted(block.number, block.hash) for block, _ in sent]
            await asyncio.gather(*map(asyncio.wrap_future, changes))

        await self._conditions.answer(store)
        for one in sent:
            block, _ = one
            self._sent.remove(one)
            del self._added[block]
            self._waiting.task_done()
            self._progress = self._clock()
            self.promoted += 1
            self.last = block.number if self.last is None else max(self.last, block.number)


def _succeeded(sent: _Sent) -> bool:
    _, future = sent
    return future.done() and future.exception() is None
