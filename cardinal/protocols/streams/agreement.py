"""What one producer supplied for a block, in a form that can be compared with what others supplied.

Rules:

1. Two producers agree on a block where their digests are equal: the same Batch (number, weight, parent, entries) and
   the same content as a consumer gets it, whatever the order of maps on the wire and however sub batches were cut.
   Values at volatile paths are left out, the paths are not.
2. Where records carry digests instead of values (:mod:`.digests`), parts of sub batches are content: producers that
   cut them differently do not agree.
3. A block that is larger than what may be kept of finished blocks is agreed on by its header and content alone; where
   records carry digests there is nothing to compare, and nobody agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import Final

from .events import Completed
from .finished import FinishedBlock
from .keys import HASH_END
from .messages import BATCH_MSG
from .payload import PathMap, Payload
from .types import Partition, path_bytes

_ALTERNATIVES: Final = re.compile(r"\||\(\?")
"""What lets an expression that begins with an anchor be found elsewhere."""

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

    """

    digest: bytes | None
    number: int
    parent: bytes
    weight: int
    positions: Mapping[Partition, int]
    ends: Mapping[Partition, int]
    published_ms: int
    sealed: bool

    @property
    def size(self) -> int:
        """What it costs, in bytes."""
        return _STANDING_OVERHEAD + _PARTITION_OVERHEAD * len(self.positions)


class Volatile:
    """The paths whose values may differ between producers: one of these expressions is found in them."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._tests = [_test(source) for source in expressions]

    def among(self, paths: Sequence[bytes]) -> set[bytes]:
        """Those of these paths; many are asked for at once, since every path of every block is."""
        if not self._tests:
            return set()
        texts = [path.decode("utf-8", "surrogateescape") for path in paths]
        return {path for test in self._tests for path, text in zip(paths, texts, strict=True) if test(text)}


def _test(source: str) -> Callable[[str], object]:
    pattern = re.compile(source)
    if source.startswith("^") and not _ALTERNATIVES.search(source):
        return pattern.match  # the same answer, without a look at every place of the path
    return pattern.search


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


def lowest(*places: Mapping[Partition, int]) -> dict[Partition, int]:
    """For every partition the lowest of these offsets."""
    found: dict[Partition, int] = {}
    for each in places:
        for partition, offset in each.items():
            found[partition] = min(offset, found.get(partition, offset))
    return found


def standing(event: Completed, finished: FinishedBlock, volatile: Volatile) -> Standing:
    """What a producer's complete copy says.

    Arguments:
        event: its completion.
        finished: what is kept of it.
        volatile: whether the value at a path may differ.

    """
    block = event.payload
    return Standing(
        _digest(event, finished, volatile),
        block.number,
        block.parent,
        block.weight,
        event.positions,
        event.ends,
        event.published_ms,
        event.sealed,
    )


def _digest(event: Completed, finished: FinishedBlock, volatile: Volatile) -> bytes | None:
    block = event.payload
    found = blake2b(repr((block.number, block.parent, block.weight)).encode(), digest_size=32)
    if finished.candidate is not None:
        entries = sorted(finished.candidate.fields.entries.items())
        marks = volatile.among([path for path, _ in entries])
        for path, entry in entries:
            value = b"" if path in marks else entry.value
            _add(found, [path, value, b"%d %d" % (entry.count, entry.delete), entry.sub_batch])
    content = _content(event, finished)
    if content is None:
        return None
    deletes, values = content
    paths = sorted(values)
    _add(found, sorted(deletes))
    _add(found, paths)
    marks = volatile.among(paths)
    _add(
        found, [b"" if path in marks else values[path] for path in paths] if marks else [values[path] for path in paths]
    )
    return found.digest()


def _content(event: Completed, finished: FinishedBlock) -> tuple[Iterable[bytes], Mapping[bytes, bytes]] | None:
    """Deletes and values; for a block without its content what stands for them."""
    block = event.payload
    if isinstance(block, Payload) and isinstance(block.updates, PathMap):
        return map(path_bytes, block.deletes), block.updates.raw
    held, candidate = finished.held, finished.candidate
    if held is None or candidate is None:
        return None
    counted = [record for key, record in held.messages.items() if key not in candidate.surplus]
    values = {record.key[HASH_END:]: record.value for record in counted if record.key[0] == BATCH_MSG}
    return [record.key + record.value for record in counted if record.key[0] != BATCH_MSG], values


def _add(found: blake2b, pieces: Sequence[bytes]) -> None:
    """Take pieces of any length so that no two lists of pieces are taken alike."""
    found.update(pack(f"<{len(pieces) + 1}Q", len(pieces), *map(len, pieces)))
    found.update(b"".join(pieces))
