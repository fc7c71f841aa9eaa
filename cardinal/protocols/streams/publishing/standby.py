"""Rank of redundant producers, and the order in which they publish a block: a pure state machine.

1. Producers are ranked by their configured ids, lowest first, among those that live. The lowest sends at once; rank r
   waits r steps, and then sends what is not done by then. The steps count from when the block was offered, or when the
   one before it was done: a producer that is busy sending much is not overtaken. A lowest one that has not read for
   longer than a step may have missed what was done meanwhile: it reads first.
2. A block is done when a sealed Batch of it was read, of any producer. A Batch without the seal proves nothing: its
   producer may have died before the rest. A done block is skipped, also by the lowest.
3. Blocks are sent in the order in which they were offered, each judged by itself.
4. A producer lives while records of its own come, pings or Batches. Its last one may be ``alive`` older than the newest
   record of any producer, by the topic's clock, so that a reader that lags behind takes no producer for dead.

Time here is the time *up to which the stream has been read* (seconds; any clock that goes forward). So a reader that
lags waits for longer. At worst a block is sent twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.types import path_bytes

REMEMBERED: Final = 65_536
"""Blocks whose end is remembered: more than any producer's feed is behind another's, and 10 MB."""

_NAMES: Final = 1_024
"""Producers whose blocks are counted; ids come from the topic, where any writer may use any id."""


class Verdict(Enum):
    """Decision on a block."""

    SEND = auto()
    """Publish it now."""

    WAIT = auto()
    """Another producer has the first right to it; :meth:`Standby.advance` decides later."""

    SKIP = auto()
    """It is on the topics."""


@dataclass(frozen=True, slots=True)
class ProducerCount:
    """Producers of a stream, as seen by one of them or by a consumer.

    Attributes:
        live: configured ids, lowest first; a producer that sends none is named by its ping, ``0x…``.
        rank: how many live ones come before us; 0 sends at once.
        first: the number of blocks that each producer was first with.
        doubled: whether another producer pings under our id, so that neither can tell them apart.

    """

    live: tuple[str, ...]
    rank: int
    first: Mapping[str, int]
    doubled: bool = False

    @property
    def count(self) -> int:
        """Number of live producers."""
        return len(self.live)


class Peers:
    """The live producers, and their counts of first blocks. ``alive`` is in milliseconds of the topic's clock."""

    def __init__(self, alive: float) -> None:
        self._alive = alive
        self._newest = 0
        self._last: dict[str, int] = {}
        self._unnamed: dict[str, int] = {}
        self._ended: BoundedDict[str, int] = BoundedDict(_NAMES)
        self._seen: BoundedDict[bytes, None] = BoundedDict(REMEMBERED)
        self._first: dict[str, int] = {}

    def heard(self, producer: str, at_ms: int, *, named: bool = True) -> None:
        """Note a record of a producer, appended at this time. Unnamed producers count and are not ranked."""
        if at_ms <= self._ended.get(producer, -1):
            return  # read after its last ping, from another partition
        self._newest = max(self._newest, at_ms)
        last = self._last if named else self._unnamed
        last[producer] = max(at_ms, last.get(producer, at_ms))
        if len(last) > 2 * len(self.live()) + 64:  # ids that come and go
            for gone in [one for one, at in last.items() if at < self._newest - self._alive]:
                del last[gone]

    def ended(self, producer: str, at_ms: int) -> None:
        """Note the last ping of a producer that ended cleanly; records that it appends later count again."""
        self._newest = max(self._newest, at_ms)
        self._ended[producer] = at_ms
        self._last.pop(producer, None)

    def batch(self, block_hash: bytes, producer: str) -> None:
        """Note a Batch that was read. Copies of it are in one partition, so the first that is read came first."""
        if block_hash not in self._seen:
            self._seen[block_hash] = None
            if producer in self._first or len(self._first) < _NAMES:
                self._first[producer] = self._first.get(producer, 0) + 1

    def named(self) -> list[str]:
        """The configured ids of the live producers, lowest first."""
        return sorted((one for one, at in self._last.items() if at >= self._newest - self._alive), key=path_bytes)

    def live(self) -> tuple[str, ...]:
        """All live producers: the named ones by rank, then the others."""
        others = sorted(one for one, at in self._unnamed.items() if at >= self._newest - self._alive)
        return (*self.named(), *others)

    def count(self, me: str) -> ProducerCount:
        """Snapshot for users."""
        named = [one for one in self.named() if one != me]
        rank = sum(path_bytes(one) < path_bytes(me) for one in named)
        live = (*named[:rank], me, *named[rank:], *self.live()[len(self.named()) :])
        return ProducerCount(live, rank, MappingProxyType(dict(self._first)))

    def rank(self, me: str) -> int:
        """Number of live producers that come before this one."""
        return sum(path_bytes(one) < path_bytes(me) for one in self.named())


class Standby:
    """One producer's part: ``me`` is its configured id, ``step`` the seconds between two ranks."""

    def __init__(self, me: str, step: float, peers: Peers) -> None:
        if step <= 0:
            raise ConfigurationError("the step between two producers must be longer than 0 s", setting="standby_step")
        self._me = me
        self._step = step
        self._peers = peers
        self._done: BoundedDict[bytes, None] = BoundedDict(REMEMBERED)
        self._waiting: dict[bytes, float] = {}
        self._skips: deque[bytes] = deque()
        self._read_until = self._moved_on = float("-inf")
        self._moving = False

    def done(self, block_hash: bytes) -> None:
        """Note that this block is on the topics: its sealed Batch was read, or all of its messages were."""
        self._done[block_hash] = None
        if block_hash in self._waiting:
            self._moving = self._moving or block_hash == next(iter(self._waiting))
            del self._waiting[block_hash]
            self._skips.append(block_hash)

    def is_done(self, block_hash: bytes) -> bool:
        """Return True for a block that is on the topics."""
        return block_hash in self._done

    def offer(self, block_hash: bytes, now: float) -> Verdict:
        """Offer a block that our node has, at this time. One that waits is returned by :meth:`advance`."""
        if block_hash in self._done:
            return Verdict.SKIP
        fresh = now - self._read_until <= self._step
        if fresh and not self._waiting and self._peers.rank(self._me) == 0:
            return Verdict.SEND
        self._waiting[block_hash] = now
        return Verdict.WAIT

    def advance(self, now: float) -> list[tuple[bytes, Verdict]]:
        """Note that the stream was read up to this time; returns decisions on blocks that waited, in order."""
        self._read_until = now
        out = [(block_hash, Verdict.SKIP) for block_hash in self._skips]
        self._skips.clear()
        if self._moving:
            self._moved_on, self._moving = now, False
        while (due := self.due()) is not None and due <= now:
            block_hash = next(iter(self._waiting))
            del self._waiting[block_hash]
            out.append((block_hash, Verdict.SEND))
        return out

    def due(self) -> float | None:
        """Time at which the next block is to be sent, as things stand; None where none waits."""
        if not self._waiting:
            return None
        rank = self._peers.rank(self._me)
        offered = next(iter(self._waiting.values()))
        return max(offered, self._moved_on) + rank * self._step if rank else offered
