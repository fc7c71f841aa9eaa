"""A producer's complete copies of blocks on which too few agree so far: what is kept of them while they wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.types import Partition

_STANDING_OVERHEAD: Final = 1200
_PARTITION_OVERHEAD: Final = 250
"""Bytes that a standing costs, and each partition that it names; measured on CPython 3.11."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A producer's complete copy of a block that waits for other producers.

    Attributes:
        digest: what it is; None where it cannot be compared.
        number, parent, weight: what its Batch says.
        positions, ends, published_ms, sealed: see :class:`~.events.Completed`.
        late: whether it became complete when the chain was past that number.

    """

    digest: bytes | None
    number: int
    parent: bytes
    weight: int
    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    published_ms: int
    sealed: bool
    late: bool = False

    @property
    def size(self) -> int:
        """What it costs, in bytes."""
        return _STANDING_OVERHEAD + _PARTITION_OVERHEAD * len(self.positions)


class Standings:
    """The standings of one producer, bounded: the lowest numbers go first.

    Arguments:
        most: standings.
        most_bytes: what they may cost.

    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._standings: dict[bytes, Standing] = {}
        self.bytes = 0
        self.get = self._standings.get
        """The standing of a block, or None."""

    def __iter__(self) -> Iterator[Standing]:
        """Every one."""
        return iter(self._standings.values())

    def add(self, block_hash: bytes, standing: Standing) -> list[tuple[bytes, Standing]]:
        """Hold one; returns those that had to go."""
        self.discard(block_hash)
        self._standings[block_hash] = standing
        self.bytes += standing.size
        if len(self._standings) <= self._most and self.bytes <= self._most_bytes:
            return []
        gone = []
        for other, held in sorted(self._standings.items(), key=lambda item: item[1].number):
            if len(self._standings) <= self._most * 9 // 10 and self.bytes <= self._most_bytes * 9 // 10:
                break
            self.discard(other)
            gone.append((other, held))
        return gone

    def discard(self, block_hash: bytes) -> None:
        """Let one go."""
        if (held := self._standings.pop(block_hash, None)) is not None:
            self.bytes -= held.size


def lowest(*places: Mapping[Partition, int]) -> dict[Partition, int]:
    """For every partition the lowest of these offsets."""
    found: dict[Partition, int] = {}
    for each in places:
        for partition, offset in each.items():
            found[partition] = min(offset, found.get(partition, offset))
    return found


def all_below(places: Mapping[Partition, int], until: Mapping[Partition, int]) -> bool:
    """Whether there are places, and every one of them lies below what its partition has in ``until``."""
    return bool(places) and all(offset < until.get(partition, 0) for partition, offset in places.items())


class JointEnds(Mapping[Partition, int]):
    """For every partition the highest end of several copies of a block, found when somebody asks."""

    __slots__ = ("_copies",)

    def __init__(self, copies: tuple[Mapping[Partition, int], ...]) -> None:
        self._copies = copies

    def __getitem__(self, partition: Partition) -> int:
        """The offset after the last message of the copies in this partition."""
        found = [copy[partition] for copy in self._copies if partition in copy]
        if not found:
            raise KeyError(partition)
        return max(found)

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that hold messages of the copies."""
        return iter(dict.fromkeys(partition for copy in self._copies for partition in copy))

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in self)


def joined(event: Completed, copies: Sequence[Standing], places: Mapping[Partition, int]) -> Completed:
    """The completion of a block by the last of the producers that agree on it, as one of all of them.

    Arguments:
        event: that producer's.
        copies: what those who agree supplied.
        places: where the messages of everybody's copies begin.

    """
    return replace(
        event,
        positions=lowest(event.positions, places),
        ends=JointEnds(tuple(copy.ends for copy in copies)),
        published_ms=min(copy.published_ms for copy in copies),
        sealed=any(copy.sealed for copy in copies),
    )
