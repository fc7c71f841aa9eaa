"""Catch-up reads: clients older than the ring read through sources of their own, a few at once.

A client has a source for some seconds when others wait, or until it accepts nothing; then the next one has its slot. A
slot is free again only when its source is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from cardinal.transports.websocket.protocol import Chunk, encode_chunks

from .ring import FRAME_BYTES
from .threads import BatchSize, SourceThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source

    from .subscription import Plan, Subscription
    from .upstream import Upstream

_SLOT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_POLL_BYTES: Final = 1 << 20


class CatchUpReads:
    """See the module.

    Arguments:
        limit: sources at once.

    Attributes:
        active, waiting: clients that have a slot, and that wait for one.
        total: catch-up reads since the beginning.

    """

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._closing: set[Future[None]] = set()
        self.active = self.waiting = self.total = 0

    async def run(self, client: Subscription, upstream: Upstream) -> None:
        """Send what the client wants until the ring holds its positions, or until its turn is over."""
        topics = tuple(sorted(client.topics))
        async with self._slot(lambda: upstream.make(topics)) as reader:
            self.total += 1
            began, aimed, batch = time.monotonic(), None, BatchSize(_POLL_BYTES)
            while client.plan.wanted and not client.expired and not upstream.ring.holds(client.wanted()):
                if not await self._may_send(client, began):
                    return
                plan = client.plan
                if aimed is not plan:
                    await reader.call(_aim(client.wanted(), resumed=aimed is not None))
                    aimed = plan
                chunks = await reader.call(_poll(batch, compress=upstream.compress))
                if not await self._send(client, plan, chunks, began):
                    return

    async def stop(self) -> None:
        """Wait until the sources are closed."""
        await asyncio.gather(*map(asyncio.wrap_future, tuple(self._closing)))

    async def _send(self, client: Subscription, plan: Plan, chunks: list[Chunk], began: float) -> bool:
        """Send what a poll returned; False where the turn is over before all of it was sent.

        What is left is then re-read in the next turn: the source is beyond it.
        """
        while chunks and client.plan is plan:
            if not await self._may_send(client, began):
                return False
            if client.plan is not plan:
                break
            size = count = 0
            while count < len(chunks) and size < FRAME_BYTES:
                size += len(chunks[count].data)
                count += 1
            client.send(chunks[:count])
            del chunks[:count]
        return True

    async def _may_send(self, client: Subscription, began: float) -> bool:
        """Wait until the client accepts more; False where others wait and its turn is over, or it accepts nothing."""
        while True:
            if self.waiting and time.monotonic() - began > _SLOT_SECONDS:
                return False
            if client.accepts:
                return True
            await client.changed_soon()
            if not client.accepts and client.credit <= 0 and self.waiting:
                return False

    @asynccontextmanager
    async def _slot(self, make: Callable[[], Source]) -> AsyncIterator[SourceThread]:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        reader = SourceThread(make, "cardinal-serve-catch-up")
        try:
            yield reader
        finally:
            # Not awaited: the client may have been cancelled.
            loop, closing = asyncio.get_running_loop(), reader.close()
            self._closing.add(closing)

            def closed(future: Future[None]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended before
                    loop.call_soon_threadsafe(self._free, future)

            closing.add_done_callback(closed)

    def _free(self, closed: Future[None]) -> None:
        self._closing.discard(closed)
        self.active -= 1
        self._slots.release()


def _aim(wanted: Mapping[Partition, int], *, resumed: bool) -> Callable[[Source], None]:
    """Let the source read from these positions. To pause costs less than to assign again."""

    def aim(source: Source) -> None:
        positions = source.positions()
        if resumed and all(positions.get(tp) == at for tp, at in wanted.items()):
            source.pause(positions.keys() - wanted.keys())
        else:
            source.assign(wanted)

    return aim


def _poll(batch: BatchSize, *, compress: bool) -> Callable[[Source], list[Chunk]]:
    def poll(source: Source) -> list[Chunk]:
        before = source.positions()
        records = source.poll(batch.records, _POLL_SECONDS)
        batch.update(len(records), sum(len(record.key) + len(record.value) for record in records))
        return encode_chunks(records, before, source.positions(), compress=compress)

    return poll
