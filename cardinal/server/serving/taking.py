"""What one client takes: which partitions, from where, and for how many bytes it has given leave.

The task that receives its requests writes this, the one that sends records reads it and counts the leave down.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.transports.websocket.frames import GO_ON

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.websocket.frames import Read

    from .stream import Stream

_CREDIT_MAX: Final = 1 << 40


@dataclass(slots=True)
class Plan:
    """By which READ, which partitions, and how far the ring has been looked through for it."""

    id: int
    wanted: frozenset[Partition]
    place: int = 0


class Taking:
    """See the module.

    Arguments:
        unsent: how many bytes wait in the client's socket.

    Attributes:
        stream, topics: what the client has opened; None and nothing before.
        positions: the next offset of every partition that it has ever named; ``since``: how many losses the ring had
            had when it was named.
        plan: of its last READ.
        credit: bytes that may be sent.
        took: when it last gave leave, or a frame had gone to its socket, by the monotonic clock.
        wake: set whenever something of this changes.

    """

    def __init__(self, unsent: Callable[[], int]) -> None:
        self.unsent = unsent
        self.stream: Stream | None = None
        self.topics: frozenset[str] = frozenset()
        self.positions: dict[Partition, int] = {}
        self.since: dict[Partition, int] = {}
        self.plan = Plan(0, frozenset())
        self.credit = 0
        self.took = time.monotonic()
        self.wake = asyncio.Event()

    def open(self, stream: Stream, topics: frozenset[str]) -> None:
        """The client takes these topics of this stream."""
        self.stream, self.topics = stream, topics
        stream.listen(self.wake.set)

    def give(self, size: int) -> None:
        """So many more bytes may be sent."""
        self.credit = min(self.credit + size, _CREDIT_MAX)
        self.took = time.monotonic()
        self.wake.set()

    def read(self, frame: Read, losses: int) -> None:
        """Take what a READ names, which has been checked; ``losses``: of the ring, when that began."""
        for where, position in frame.positions.items():
            if position != GO_ON:
                self.positions[where] = position
                self.since[where] = losses
        self.plan = Plan(frame.id, frozenset(frame.positions))
        self.wake.set()

    def wanted(self, plan: Plan | None = None) -> dict[Partition, int]:
        """The positions of what a plan, or the one of now, wants."""
        return {where: self.positions[where] for where in (plan or self.plan).wanted}

    def lost(self) -> dict[Partition, tuple[int, int]]:
        """Positions that mean nothing any more, each with what it is beyond, where any are in topics that it reads."""
        if self.stream is None or not self.stream.ring.losses:
            return {}
        lost = self.stream.ring.lost({where: self.since[where] for where in self.plan.wanted})
        return {where: (max(at, self.positions.get(where, at)), limit) for where, (at, limit) in lost.items()}

    def lag(self) -> int:
        """Records that it has to take yet, of what it reads now."""
        if self.stream is None:
            return 0
        ends = self.stream.ring.ends()
        return sum(max(0, ends.get(where, at) - at) for where, at in self.wanted().items())
