"""Catch-up reads: clients at positions that the ring does not hold read through sources of their own.

The number of sources is bounded by slots; other clients wait. A client returns its slot when the ring holds its
positions. While others wait, slots of clients without credit are closed, and those held for some seconds; such a client
waits for another one. A slot is free when its source is closed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from .ring import FRAME_BYTES
from .source_thread import SourceThread
from .upstream import Poller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal_relay.transport.protocol import Chunk

    from .upstream import Reader, Upstream

_SLOT_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.1
_POLL_BYTES: Final = 1 << 20


class CatchUpRead:
    """A client's source for older records, in a slot.

    Attributes:
        client: whose it is.
        closed: true when it is no longer the client's.
        began: time by the monotonic clock.

    """

    def __init__(self, client: Reader, upstream: Upstream, topics: tuple[str, ...]) -> None:
        self.client = client
        self.closed = False
        self.began = time.monotonic()
        self.thread = SourceThread(lambda: upstream.make(topics), "cardinal-serve-catch-up")
        self._poller = Poller(_POLL_BYTES, compress=upstream.compress)
        self._chunks: list[Chunk] = []
        self._next: dict[Partition, int] = {}

    async def read(self, wanted: Mapping[Partition, int]) -> list[Chunk]:
        """Chunks from these positions on, up to a message; empty where none arrived. Raises errors of the source."""
        if self._next != wanted:
            self._chunks, self._next = [], dict(wanted)
            await self.thread.call(lambda source: _aim(source, self._next))
        if not self._chunks:
            _, self._chunks = await self.thread.call(lambda source: self._poller.poll(source, _POLL_SECONDS))
        size = count = 0
        while count < len(self._chunks) and size < FRAME_BYTES:
            size += len(self._chunks[count].data)
            count += 1
        chunks = self._chunks[:count]
        del self._chunks[:count]
        self._next |= {chunk.tp: chunk.next for chunk in chunks}
        return chunks


class CatchUpReads:
    """Slots of a server.

    Arguments:
        limit: number of slots.

    Attributes:
        waiting: clients that wait for a slot.
        total: catch-up reads since the beginning.

    """

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._reads: list[CatchUpRead] = []
        self._closing: set[asyncio.Task[None]] = set()
        self.waiting = self.total = 0

    @property
    def active(self) -> int:
        """Clients that have a slot."""
        return len(self._reads)

    async def open(self, client: Reader, upstream: Upstream, topics: tuple[str, ...]) -> CatchUpRead:
        """A slot for a client that reads these topics, as soon as one is free."""
        self.waiting += 1
        acquiring = asyncio.ensure_future(self._slots.acquire())
        try:
            while not (await asyncio.wait({acquiring}, timeout=_TICK_SECONDS))[0]:
                self._revoke()
        except asyncio.CancelledError:
            if not acquiring.cancel():
                self._slots.release()
            raise
        finally:
            self.waiting -= 1
        self.total += 1
        self._reads.append(read := CatchUpRead(client, upstream, topics))
        return read

    def release(self, read: CatchUpRead) -> None:
        """Close the source after its call in flight; then its slot is free."""
        if read.closed:
            return
        read.closed = True
        # Not awaited: the client may have been cancelled.
        closing = asyncio.create_task(self._close(read))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def stop(self) -> None:
        """Wait until the sources are closed."""
        await asyncio.gather(*self._closing)

    def _revoke(self) -> None:
        """Close the oldest slots whose time is over, at most as many as clients wait."""
        late = time.monotonic() - _SLOT_SECONDS
        over = [one for one in self._reads if not one.closed and (one.client.credit <= 0 or one.began < late)]
        for read in over[: max(0, self.waiting - len(self._closing))]:
            self.release(read)

    async def _close(self, read: CatchUpRead) -> None:
        await asyncio.wrap_future(read.thread.close())
        self._reads.remove(read)
        self._slots.release()


def _aim(source: Source, wanted: Mapping[Partition, int]) -> None:
    """Move the source to these positions. Pausing costs less than reassigning."""
    positions = source.positions()
    if positions and all(positions.get(tp) == at for tp, at in wanted.items()):
        source.pause(positions.keys() - wanted.keys())
    else:
        source.assign(wanted)
