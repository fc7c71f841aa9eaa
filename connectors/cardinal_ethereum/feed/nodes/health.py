"""Health of nodes, and selection of the active one by lag and recent failures.

Rules:

1. A node that failed rests for some seconds: it is not selected while another one is healthy.
2. A node that serves another chain is never selected again.
3. If the active node is more than a few blocks behind the highest healthy one, another is selected. Otherwise the
   active node stays: equally good nodes do not alternate.
4. The head of a resting node is ignored.
5. A failure that waiting does not heal ends the feed only if the last failure of every node is one.
6. A node that refuses the credentials receives no request until its rest is over.

Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class NodeHealth:
    """Health of one node.

    Attributes:
        head: number of its last head; None before the first.
        failed: time of its last failure in seconds; None without a failure.
        refused: it refused the credentials.
        wrong: it serves another chain.
        final: its last failure will not pass by itself.

    """

    head: int | None = None
    failed: float | None = None
    refused: bool = False
    wrong: bool = False
    final: bool = False


class PoolHealth:
    """Health of the nodes of one chain, by their position in the URL.

    Arguments:
        count: number of nodes.
        behind: blocks that the active node may be behind.
        rest: seconds that a failed node rests.
        clock: seconds.

    """

    def __init__(self, count: int, *, behind: int, rest: float, clock: Callable[[], float]) -> None:
        self.of = [NodeHealth() for _ in range(count)]
        self._behind = behind
        self._rest = rest
        self._clock = clock

    def failed(self, index: int, *, refused: bool = False, final: bool = False) -> None:
        """Record a failure of a node now: ``refused`` the credentials, ``final`` if waiting does not help."""
        self.of[index].failed = self._clock()
        self.of[index].refused = refused
        self.of[index].final = final

    def delivered(self) -> None:
        """Record that a block was delivered: what the nodes failed at before is over."""
        for one in self.of:
            one.final = False

    @property
    def exhausted(self) -> bool:
        """True if no node is left for which waiting could help."""
        return all(one.final or one.wrong for one in self.of)

    def is_polled(self, index: int) -> bool:
        """True if the head of a standby node is requested."""
        return not self.of[index].wrong and not (self.of[index].refused and self.resting(index))

    def resting(self, index: int) -> bool:
        """True if a node failed recently."""
        failed = self.of[index].failed
        return failed is not None and self._clock() - failed < self._rest

    def lag(self, index: int) -> int:
        """Blocks that a node is behind the highest healthy one; 0 while its head is unknown."""
        heads = [
            one.head
            for at, one in enumerate(self.of)
            if one.head is not None and not one.wrong and not self.resting(at)
        ]
        head = self.of[index].head
        return 0 if head is None else max([0, *(other - head for other in heads)])

    def best(self, active: int) -> int | None:
        """The best node; None if all serve another chain."""
        places: Sequence[int] = [index for index, one in enumerate(self.of) if not one.wrong]
        return min(places, key=lambda index: self._worth(index, active), default=None)

    def _worth(self, index: int, active: int) -> tuple[bool, float, int, bool, int]:
        """Sort key, smaller is better: of resting nodes the one whose rest ends first, then the smallest lag."""
        resting = self.resting(index)
        failed = self.of[index].failed
        lag = self.lag(index)
        behind = lag if lag > self._behind and not resting else 0
        return resting, failed if resting and failed is not None else 0.0, behind, index != active, index
