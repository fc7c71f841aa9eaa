"""Subscription of a client: the partitions that it reads, its positions and credit, and the messages queued for it.

The client's requests change it; the upstream wakes it; its records come from the ring or from a catch-up read.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError
from cardinal.transports.websocket import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.protocols.streams.types import Partition

    from .ring import Ring
    from .status import Totals

_TICK_SECONDS: Final = 0.5
_CREDIT_MAX: Final = 1 << 40


@dataclass(slots=True)
class Plan:
    """The partitions of a READ, its id, and how far the ring has been searched for it."""

    id: int
    wanted: frozenset[Partition]
    index: int = 0


class Subscription:
    """See the module. Used on the event loop.

    Arguments:
        totals: counts of all clients.

    Attributes:
        topics: what the client has opened.
        plan: of its last READ.
        credit: bytes that may be sent.
        outbox: messages for its socket.
        progress: when it last granted credit, or accepted some of a message, by the monotonic clock.

    """

    def __init__(self, totals: Totals) -> None:
        self.topics: frozenset[str] = frozenset()
        self.plan = Plan(0, frozenset())
        self.credit = 0
        self.outbox: asyncio.Queue[str | bytes] = asyncio.Queue()
        self.progress = time.monotonic()
        self._totals = totals
        self._positions: dict[Partition, int] = {}
        self._sent_ms: dict[Partition, int] = {}
        self._lost: dict[str, Mapping[Partition, tuple[int, int]]] = {}
        self._stale: set[Partition] = set()
        self._woken = asyncio.Event()

    def knows(self, tp: Partition) -> bool:
        """Whether the partition has a position to continue from."""
        return tp in self._positions

    def wanted(self) -> dict[Partition, int]:
        """The positions of the wanted partitions."""
        return {tp: self._positions[tp] for tp in self.plan.wanted}

    def begin(self, number: int, positions: Mapping[Partition, int | None]) -> None:
        """Read these partitions, which were checked; None continues where it stands."""
        named = {tp: position for tp, position in positions.items() if position is not None}
        self._positions |= named
        self._stale -= named.keys()
        self.plan = Plan(number, frozenset(positions))
        self.wake()

    def end(self) -> None:
        """Read nothing until the next READ."""
        self.plan = Plan(self.plan.id, frozenset())

    def expire(self, lost: Mapping[Partition, tuple[int, int]]) -> None:
        """The positions in these partitions' topics mean nothing any more."""
        for topic in {topic for topic, _ in lost} & self.topics:
            self._lost[topic] = {tp: both for tp, both in lost.items() if tp[0] == topic}
            self._stale |= {tp for tp in self._positions if tp[0] == topic}

    @property
    def expired(self) -> CursorExpiredError | None:
        """Why wanted positions mean nothing any more; None while they do."""
        topics = {topic for topic, _ in self._stale & self.plan.wanted}
        missing = {
            tp: (max(at, self._positions.get(tp, at)), limit)
            for topic in topics
            for tp, (at, limit) in self._lost[topic].items()
        }
        return CursorExpiredError("the stream was recreated", missing=missing) if missing else None

    # --- records -------------------------------------------------------------------------------------------------

    @property
    def accepts(self) -> bool:
        """Whether records may be sent now."""
        return self.credit > 0 and self.outbox.empty()

    def grant(self, size: int) -> None:
        """Permit so many more bytes."""
        if size:
            self.credit = min(self.credit + size, _CREDIT_MAX)
            self.progress = time.monotonic()
            self.wake()

    def send(self, chunks: Sequence[protocol.Chunk]) -> None:
        """Queue the next chunks; only while it accepts records."""
        frame = protocol.encode_frame(self.plan.id, chunks)
        for chunk in chunks:
            self._positions[chunk.tp] = chunk.next
            self._sent_ms[chunk.tp] = chunk.newest_ms or self._sent_ms.get(chunk.tp, 0)
            self._totals.records += chunk.count
        self._totals.bytes += len(frame)
        self.credit -= len(frame)
        self.outbox.put_nowait(frame)

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    async def changed(self) -> None:
        """Wait until something changes after the last call."""
        await self._woken.wait()
        self._woken.clear()

    async def changed_soon(self) -> None:
        """Wait until something changes, for a moment."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_SECONDS):
                await self.changed()

    def lag(self, ring: Ring, now_ms: float) -> tuple[int, float]:
        """Records to be sent yet, and seconds since the newest one that was sent of these partitions."""
        behind = {tp: ring.ends[tp] - at for tp, at in self.wanted().items() if ring.ends.get(tp, at) > at}
        times = [self._sent_ms.get(tp) or ring.oldest_ms for tp in behind]
        return sum(behind.values()), max((now_ms - at for at in times if at), default=0.0) / 1000
