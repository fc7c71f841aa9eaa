"""Watch of a running service: what holds it up, how far it has to go, and whether its id is another producer's too."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from cardinal.feeds import Aiming, FeedReport, HasHead
from cardinal.server.produce.conditions import LOG, Condition, Conditions
from cardinal.server.produce.progress import Rate
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.feeds import BlockFeed
    from cardinal.server.produce.connection import Connection
    from cardinal.server.produce.retry_queue import RetryQueue
    from cardinal.server.produce.settings import ProduceSettings

_DOUBT_SECONDS: Final = 3.0
"""Blocks and pings are acknowledged within milliseconds: after this the broker is queried."""


class Position(NamedTuple):
    """Block numbers of a service.

    Attributes:
        first: where a new stream begins; None: the feed's first block.
        newest: the newest block that the feed has yielded; None before the first.
        published: the heaviest block that is sealed; None before the first.
        stop: the last block; None: the head is followed for ever.

    """

    first: int | None
    newest: int | None
    published: int | None
    stop: int | None


class Watch:
    """Watch of one service.

    Arguments:
        feed, stream, queue: what is watched.
        settings: those of the service.
        conditions: logs what holds the service up.
        position: returns the service's position.

    """

    def __init__(  # noqa: PLR0917 - the parts of one service
        self,
        feed: BlockFeed,
        stream: Connection,
        queue: RetryQueue,
        settings: ProduceSettings,
        conditions: Conditions,
        position: Callable[[], Position],
    ) -> None:
        self._feed = feed
        self._stream = stream
        self._queue = queue
        self._settings = settings
        self._conditions = conditions
        self._position = position
        self._rate = Rate()
        self._is_doubled = False
        self._head: tuple[int | None, float] = None, time.monotonic()
        self._queried = self._sealed_at = time.monotonic()
        self._pending_since: float | None = None

    @property
    def target(self) -> int | None:
        """The number of the block that the feed is going to; None where it is not known."""
        return self._feed.target if isinstance(self._feed, Aiming) else None

    @property
    def nodes(self) -> FeedReport:
        """State of the feed's nodes."""
        return self._feed.report if isinstance(self._feed, HasHead) else FeedReport()

    @property
    def idle_seconds(self) -> float:
        """Time since the node's head last moved."""
        return time.monotonic() - self._head[1]

    @property
    def stalled_seconds(self) -> float:
        """Time in which nothing was published although there was something to publish; 0 while there is nothing."""
        since = self._pending_since
        return 0.0 if since is None else time.monotonic() - max(since, self._sealed_at)

    @property
    def eta_seconds(self) -> float | None:
        """Time left to the target at the present rate; None where that is not known."""
        return self._rate.seconds_to(self.target)

    def sealed(self) -> None:
        """A block was sealed: nothing is in doubt."""
        self._sealed_at = time.monotonic()
        self._stream.check.answered()

    async def run(self) -> None:
        """Look at the service, for ever. TopicError: a topic was deleted."""
        querying: asyncio.Task[bool] | None = None
        try:
            while True:
                now = time.monotonic()
                if querying is not None and querying.done():
                    querying.result()
                    querying = None
                if querying is None and now - self._queried >= self._settings.query_seconds and self._is_in_doubt():
                    self._queried, querying = now, asyncio.create_task(self._stream.check.query())
                self._look(now)
                await asyncio.sleep(self._settings.watch_seconds)
        finally:
            if querying is not None:
                querying.cancel()

    def _is_in_doubt(self) -> bool:
        if self._stream.check.failure is not None:
            return True
        silent = max(self._stream.ping_waits, self._queue.oldest_seconds)
        return silent > _DOUBT_SECONDS and time.monotonic() - self._sealed_at > _DOUBT_SECONDS

    def _look(self, now: float) -> None:
        at, target = self._position(), self.target
        head = self.nodes.head if self.nodes.head is not None else target
        if head != self._head[0]:
            self._head = head, now
        if at.newest is not None:
            self._rate.sample(now, at.newest)
        pending = bool(self._queue.unsealed) or (
            target is not None and at.published is not None and target > at.published
        )
        self._pending_since = (self._pending_since or now) if pending else None
        self._conditions.update(self._holding(at, target, head))
        producers = self._stream.producer_count
        if producers is not None and producers.doubled and not self._is_doubled:
            self._is_doubled = True
            LOG.warning(
                "another running producer of this stream has the id %(producer)r: both take themselves for one, and "
                "each block may be sent twice; give each a --producer-id of its own",
                {"kind": "doubled", "producer": self._settings.producer_id},
            )

    def _holding(self, at: Position, target: int | None, head: int | None) -> dict[str, Condition]:
        """The conditions that hold, by name."""
        holding: dict[str, Condition] = {}
        published, failure = at.published, self._stream.check.failure
        if self.nodes.waits_for:
            holding["node"] = Condition(self.nodes.waits_for, "")  # the feed logs it
        if failure is not None:
            unsealed, peer = Count(len(self._queue.unsealed), "block waits", "blocks wait"), self._stream.check.peer
            holding["broker"] = Condition(
                f"the {peer} does not answer, and {unsealed} for it: {failure}",
                f"the {peer} answers again",
            )
        if published is None and at.first is not None and target is not None and target < at.first:
            holding["first"] = Condition(
                f"the stream begins with block {at.first}, and the node, less lag or finality, is at block {target}",
                f"the node has reached block {at.first}",
            )
        elif published is not None and head is not None and head < published:
            holding["behind"] = Condition(
                f"the node is at block {head}, behind the published block {published}",
                "the node has reached the published block",
            )
        elif published is not None and target is not None and target < published and at.stop is None:
            holding["held"] = Condition(
                f"the stream is at block {published}, and the node, less lag or finality, is at block {target}",
                "the node's chain, less lag or finality, is above the stream's end",
            )
        if not holding and (seconds := self.stalled_seconds) >= self._settings.stalled_seconds:
            holding["stalled"] = Condition(
                f"nothing was published for {seconds:.0f} s, though the node has newer blocks",
                "blocks are published again",
            )
        return holding
