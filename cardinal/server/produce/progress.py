"""Progress of the producing service: one snapshot, for printing and for metrics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cardinal.feeds import FeedReport
    from cardinal.producing.inflight import ProducerStats
    from cardinal.producing.standby.arrivals import ArrivalCounts
    from cardinal.producing.survey.partial import PartialBlock
    from cardinal.protocols.streams.publishing.standby import ProducerCount
    from cardinal.protocols.streams.types import Finality

_SAMPLES: Final = 30


@dataclass(frozen=True, slots=True)
class Progress:
    """Snapshot of a service.

    Attributes:
        number, hash: the newest block that the feed has yielded; None before the first.
        first: number of the first block of a new stream; None before it is known.
        published: number of the heaviest block that is sealed; None before the first.
        target: number of the block that the feed is going to; None before it is known.
        stats: counters of the producer.
        retries: blocks that were submitted again.
        renewals: producers that were replaced.
        reorgs: reorgs of the node's chain since the start.
        partial: partially published blocks that are not completed; ``above``: those higher than what was followed;
            ``absent``: hashes of those that the node does not have.
        producers: the stream's producers; None where they are not followed.
        arrivals: copies of blocks by producer; None where they are not followed.
        finality: the marks of the newest block; None where the application has none.
        oldest_seconds: age of the oldest block that is not sealed; 0 where there is none.
        idle_seconds: time since the node's head last moved.
        stalled_seconds: time in which nothing was published although there was something to publish; 0 while there is
            nothing.
        eta_seconds: time left to ``target`` at the present rate; None where that is not known.
        connected: the broker answers.
        nodes: state of the feed's nodes.
        waits_for: why nothing is published, in a sentence; empty while the service delivers.

    """

    number: int | None
    hash: bytes | None
    first: int | None
    published: int | None
    target: int | None
    stats: ProducerStats
    retries: int
    renewals: int
    reorgs: int
    partial: tuple[PartialBlock, ...]
    above: tuple[PartialBlock, ...]
    absent: frozenset[bytes]
    producers: ProducerCount | None
    arrivals: ArrivalCounts | None
    finality: Finality | None
    oldest_seconds: float
    idle_seconds: float
    stalled_seconds: float
    eta_seconds: float | None
    connected: bool
    nodes: FeedReport
    waits_for: str

    @property
    def head(self) -> int | None:
        """The number of the node's head; of a feed without nodes, of the block that it is going to."""
        return self.nodes.head if self.nodes.head is not None else self.target

    @property
    def lag(self) -> int:
        """Blocks between the published head and the target; before the first one, of a new stream up to the target.

        The target allows for lag, finality and the last block: what they hold back is no lag.
        """
        below = self.published
        if below is None and self.first is not None:
            below = self.first - 1
        return 0 if self.target is None or below is None else max(0, self.target - below)


class Rate:
    """Blocks a second, over the last samples."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def sample(self, now: float, number: int) -> None:
        """Add a sample."""
        self._samples.append((now, number))

    def seconds_to(self, target: int | None) -> float | None:
        """Time left to a block; None where it is not known."""
        if target is None or not self._samples:
            return None
        (first, low), (last, high) = self._samples[0], self._samples[-1]
        if high >= target:
            return 0.0
        return None if high <= low or last <= first else (target - high) * (last - first) / (high - low)
