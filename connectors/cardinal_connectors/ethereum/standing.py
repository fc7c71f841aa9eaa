"""Which of several nodes is followed: how far each is behind, and whether it failed lately.

Rules:

1. A node that failed rests for some seconds: it is not gone to while another one has not failed.
2. A node that serves another chain is never gone to again.
3. A node is left that is more than a few blocks behind the highest of those that are in order, for one that is not.
   Otherwise whoever is followed stays: two nodes that are equally good are not changed for each other.
4. The head that a resting node claims counts for nothing.
5. A node that refuses what it is shown is left alone until its rest is over.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Standing:
    """What is known of one node.

    Attributes:
        head: the number of the head that it told last; None before.
        failed: when it failed last, in seconds of the clock; None: never.
        refused: it failed because it refuses what it is shown: a request is not made again and again.
        wrong: it serves another chain.

    """

    head: int | None = None
    failed: float | None = None
    refused: bool = False
    wrong: bool = False


class Standings:
    """The nodes of one chain, by their place in the URL.

    Arguments:
        count: how many there are.
        behind: blocks that the followed node may be behind.
        rest: seconds that a node rests.
        clock: seconds.

    """

    def __init__(self, count: int, *, behind: int, rest: float, clock: Callable[[], float]) -> None:
        self.of = [Standing() for _ in range(count)]
        self._behind = behind
        self._rest = rest
        self._clock = clock

    def failed(self, place: int, *, refused: bool = False) -> None:
        """This node failed now. ``refused``: because it refuses what it is shown."""
        self.of[place].failed = self._clock()
        self.of[place].refused = refused

    def looked_at(self, place: int) -> bool:
        """Whether a node that stands by is asked for its head."""
        return not self.of[place].wrong and not (self.of[place].refused and self.resting(place))

    def resting(self, place: int) -> bool:
        """Whether a node failed lately."""
        failed = self.of[place].failed
        return failed is not None and self._clock() - failed < self._rest

    def lag(self, place: int) -> int:
        """Blocks that a node is behind the highest one in order; 0 where its head is not known."""
        heads = [
            one.head
            for at, one in enumerate(self.of)
            if one.head is not None and not one.wrong and not self.resting(at)
        ]
        head = self.of[place].head
        return 0 if head is None else max([0, *(other - head for other in heads)])

    def best(self, active: int) -> int | None:
        """The node to follow; None where every one serves another chain."""
        places: Sequence[int] = [place for place, one in enumerate(self.of) if not one.wrong]
        return min(places, key=lambda place: self._worth(place, active), default=None)

    def _worth(self, place: int, active: int) -> tuple[bool, float, int, bool, int]:
        """Smaller is better. Of those that rest the one whose rest ends first; of those behind the least so."""
        resting = self.resting(place)
        failed = self.of[place].failed
        lag = self.lag(place)
        behind = lag if lag > self._behind and not resting else 0
        return resting, failed if resting and failed is not None else 0.0, behind, place != active, place
