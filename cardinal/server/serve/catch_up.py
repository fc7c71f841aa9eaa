"""Catch-up reads: clients older than the ring read through sources of their own, in a bounded number of slots.

A client holds its slot until it has caught up or accepts nothing; while others wait, for some seconds. A slot is free
when its source is closed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from .ring import FRAME_BYTES
from .source_thread import SourceThread
from .upstream import Poller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.websocket.protocol import Chunk

    from .client import Client, Plan
    from .upstream import Upstream

_SLOT_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.1
_POLL_BYTES: Final = 1 << 20


class CatchUpReads:
    """Slots of a server.

    Arguments:
        limit: number of slots.

    Attributes:
        active, waiting: clients that have a slot, and that wait for one.
        total: catch-up reads since the beginning.

    """

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._closing: set[asyncio.Task[None]] = set()
        self.active = self.waiting = self.total = 0

    async def run(self, client: Client, upstream: Upstream) -> None:
        """Send the client's partitions until the ring holds its positions, or until its slot is over."""
        async with self._slot(upstream, {topic for topic, _ in client.plan.wanted}) as reader:
            sending = await self._read(reader, client, upstream)
        if sending is not None:
            await sending

    async def _read(self, reader: SourceThread, client: Client, upstream: Upstream) -> asyncio.Task[bool] | None:
        """Read and send; returns the message that is still being sent when the slot is over."""
        until, poller = time.monotonic() + _SLOT_SECONDS, Poller(_POLL_BYTES, compress=upstream.compress)
        aimed: Plan | None = None
        chunks: list[Chunk] = []
        while client.reads and not upstream.ring.holds(client.wanted()) and not self._is_over(until):
            if client.credit <= 0:
                await client.wait_for_credit()
                if client.credit <= 0 and self.waiting:
                    break
            elif aimed is not client.plan:
                plan, chunks = client.plan, []
                await reader.call(_aim(client.wanted(), resumed=aimed is not None))
                aimed = plan
            elif not chunks:
                _, chunks = await reader.call(lambda source: poller.poll(source, _POLL_SECONDS))
            else:
                sending = asyncio.create_task(client.send(aimed, _take_frame(chunks)))
                if not await self._in_time(sending, until):
                    return sending
                sending.result()
        return None

    def _is_over(self, until: float) -> bool:
        """True if a slot is over: it has an end while others wait."""
        return self.waiting > 0 and time.monotonic() > until

    async def _in_time(self, sending: asyncio.Task[bool], until: float) -> bool:
        """Wait for a message to be sent; False if the slot is over before."""
        try:
            while not sending.done() and not self._is_over(until):
                await asyncio.wait({sending}, timeout=_TICK_SECONDS)
        except asyncio.CancelledError:
            sending.cancel()
            raise
        return sending.done()

    async def stop(self) -> None:
        """Wait until the sources are closed."""
        await asyncio.gather(*self._closing)

    @asynccontextmanager
    async def _slot(self, upstream: Upstream, topics: Iterable[str]) -> AsyncIterator[SourceThread]:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        self.total += 1
        reader = SourceThread(lambda: upstream.make(tuple(sorted(topics))), "cardinal-serve-catch-up")
        try:
            yield reader
        finally:
            # Not awaited: the client may have been cancelled.
            closing = asyncio.create_task(self._close(reader))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, reader: SourceThread) -> None:
        await asyncio.wrap_future(reader.close())
        self.active -= 1
        self._slots.release()


def _take_frame(chunks: list[Chunk]) -> list[Chunk]:
    """Remove as many chunks as a message has."""
    size = count = 0
    while count < len(chunks) and size < FRAME_BYTES:
        size += len(chunks[count].data)
        count += 1
    frame = chunks[:count]
    del chunks[:count]
    return frame


def _aim(wanted: Mapping[Partition, int], *, resumed: bool) -> Callable[[Source], None]:
    """Move the source to these positions. Pausing costs less than reassigning."""

    def aim(source: Source) -> None:
        positions = source.positions()
        if resumed and all(positions.get(tp) == at for tp, at in wanted.items()):
            source.pause(positions.keys() - wanted.keys())
        else:
            source.assign(wanted)

    return aim
