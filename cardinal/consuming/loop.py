"""The consumer's loop: read, follow, and do what the follower wants, one step after the other.

What a follower wants of its reader (new watermarks, a rewind, channels, older Batches) is done between two reads; what
takes many of them is done a poll at a time. A handler of reports may supply messages, and may raise. So it is called at
the end of a step, when all that came about is noted, in the order in which it came about. Where it raises, what comes
after that report waits for the next step.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.consuming.gc_pause import collector_waits
from cardinal.consuming.healing import Healer, HealingFailed
from cardinal.protocols.streams.events import ChainUpdate, Incomplete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cardinal.consuming.reader import Reader
    from cardinal.protocols.streams.events import Event
    from cardinal.protocols.streams.following.follower import Follower, Requests, Step
    from cardinal.protocols.streams.types import Partition, Routed, Row

    OnEvent: TypeAlias = Callable[[Event | HealingFailed], None]

_POLL_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 5.0
"""Without a record, after which nothing is about to come."""
_DOUBT_SECONDS: Final = 30.0
"""For blocks below a stream's start, counted from when everything was read: an unreachable broker is back by then."""
_LOOKUP_SECONDS: Final = 0.05
"""For a poll of older Batches when nothing of the stream was there: so long its next record may have to wait."""


class Loop:
    """Steps of one thread: the reader stands where the follower begins.

    ``on_event`` takes everything that is not an update, ``healer`` is queried for what an absent block lacks.
    """

    def __init__(self, follower: Follower, reader: Reader, on_event: OnEvent, healer: Healer | None) -> None:
        self.follower = follower
        self.ready: deque[ChainUpdate] = deque()
        """Updates that wait to be fetched."""
        self._noted: deque[ChainUpdate | Event | HealingFailed] = deque()
        self._delivering = False
        self._reader = reader
        self._on_event = on_event
        self._healer = healer
        self._last_record = self._last_certain = time.monotonic()
        reader.sync.use(follower.reassembler.number_of, lambda: follower.fullness)

    @property
    def delivered(self) -> bool:
        """True when every update was fetched."""
        return not self.ready and not self._noted

    def step(self) -> None:
        """Read once, and sort what came of it.

        Where a handler has raised, what it did not receive yet comes first, and nothing is read.
        """
        try:
            if not self._noted:
                self._read()
        finally:
            self._deliver()

    def supply(self, messages: Iterable[Routed]) -> None:
        """Take messages that an incomplete block lacks. A handler may call it: what comes of it is delivered last."""
        self._take(self.follower.supply(messages))
        self._deliver()

    # --- inside --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        ends = self._reader.answered_ends()  # before the poll: nothing fails between that and the step
        with collector_waits():
            records = self._reader.poll()
            if records:
                self._follow(records, ends)
                return
        self._follow(self._reader.poll(_POLL_SECONDS), ends)

    def _follow(self, records: Sequence[Row], ends: Mapping[Partition, int] | None) -> None:
        follower, reader = self.follower, self._reader
        self._noted += reader.skipping.found()
        waited, healing = self._has_waited(records), self._healer is not None and self._healer.busy
        # The answer that brought the watermarks brought these, or a newer one did: both were requested after the step.
        beyond = None if ends is None else reader.ends
        step = follower.step(records, reader.positions(), ends, beyond=beyond, waited=waited, may_abandon=not healing)
        self._take(step)
        if self._healer is not None:
            for healed in self._healer.results():
                if isinstance(healed, HealingFailed):
                    self._noted.append(healed)
                else:
                    self._take(follower.supply(healed))
        self._serve(step.requests, 0.0 if records else _LOOKUP_SECONDS)

    def _take(self, step: Step) -> None:
        """Note what came about; what an absent block lacks is queried, and nobody is notified of it yet."""
        for item in step.items:
            if isinstance(item, Incomplete) and self._healer is not None:
                self._healer.request(item.explanation)
            self._noted.append(item)

    def _serve(self, requests: Requests, timeout: float) -> None:
        follower, reader = self.follower, self._reader
        reader.channels.follow(requests.channels)
        if requests.watermarks:
            reader.request_ends()
        if requests.rewind is not None:
            reader.rewind(requests.rewind)
        if requests.history is None or (lowest := follower.orderer.history.lowest) is None:
            reader.lookup.close()
        elif (parents := reader.lookup.poll(requests.history, lowest, timeout)) is not None:
            self._take(follower.recall(parents))

    def _deliver(self) -> None:
        """Make updates ready and hand out reports, each once, unless that is in progress already."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._noted:
                item = self._noted.popleft()
                if isinstance(item, ChainUpdate):
                    self.ready.append(item)
                else:
                    self._on_event(item)
        finally:
            self._delivering = False

    def _has_waited(self, records: Sequence[Row]) -> bool:
        """True when no record arrived for long, or the wait for blocks below the start has timed out."""
        now = time.monotonic()
        if records:
            self._last_record = now
        if not self.follower.in_doubt:
            self._last_certain = now
        return now - self._last_record > _QUIET_SECONDS or now - self._last_certain > _DOUBT_SECONDS
