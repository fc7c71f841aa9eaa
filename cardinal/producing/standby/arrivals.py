"""Arrivals: the copies of Batches that the producers of a stream append, compared with the first of each block.

Copies of a Batch are in one partition, so the first that is read came first. A further copy is a duplicate, and a
divergence where it declares another number, parent, weight or other entries, volatile paths left out. Only Batches are
compared: a difference in other messages is found by consumers. The newest 4,096 blocks are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal.errors import DecodeError
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cardinal.protocols.streams.types import Record

_BLOCKS: Final = 4_096
_PRODUCERS: Final = 1_024
"""Producers whose lag is kept; ids come from the topic, where anybody may write any."""


@dataclass(frozen=True, slots=True)
class ArrivalCounts:
    """Snapshot of the arrivals: copies beyond the first of a block, and those among them that differ from the first.

    ``lag``: seconds of each producer's newest copy behind the first copy of the same block, by the topic's clock.
    """

    duplicates: int
    divergences: int
    lag: Mapping[str, float]


class Arrivals:
    """Counts copies of Batches. ``volatile``: expressions of paths whose values may differ between honest producers."""

    def __init__(self, volatile: Iterable[str] = ()) -> None:
        self._volatile = [re.compile(expression) for expression in volatile]
        self._first: BoundedDict[bytes, Record] = BoundedDict(_BLOCKS)
        self._duplicates = self._divergences = 0
        self._lag: dict[str, float] = {}

    @property
    def counts(self) -> ArrivalCounts:
        """The counts so far."""
        return ArrivalCounts(self._duplicates, self._divergences, MappingProxyType(dict(self._lag)))

    def batch(self, record: Record, producer: str) -> None:
        """Count the Batch of a producer."""
        first = self._first.get(record.key)
        if first is None:
            self._first[record.key] = record
        else:
            self._duplicates += 1
            self._divergences += first.value != record.value and self._content(first) != self._content(record)
        if producer in self._lag or len(self._lag) < _PRODUCERS:
            since = record.timestamp_ms if first is None else first.timestamp_ms
            self._lag[producer] = max(0, record.timestamp_ms - since) / 1000

    def _content(self, record: Record) -> object:
        """The part of a Batch that honest producers agree on; the bytes where it cannot be read."""
        try:
            batch = decode(record.key, record.value)
        except DecodeError:
            return record.value
        if not isinstance(batch, Batch):
            return record.value
        entries = {
            path: update
            for path, update in batch.updates.items()
            if not any(expression.search(path) for expression in self._volatile)
        }
        return batch.number, batch.parent, batch.weight, entries
