"""Skip list: records that a user names by their positions are ignored and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cardinal.protocols.streams.events import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.protocols.streams.types import Position, Row

    AnyRow = TypeVar("AnyRow", bound=Row)


class Skipping:
    """See the module. ``positions``: topic, partition and offset of each."""

    def __init__(self, positions: Iterable[Position]) -> None:
        self._positions = frozenset(positions)
        self._found: list[Rejected] = []

    def others(self, records: list[AnyRow]) -> list[AnyRow]:
        """The records that are not on the list; those that are become reports."""
        if not self._positions or not (found := self._positions.intersection(record[:3] for record in records)):
            return records
        self._found += [
            Rejected(record[:3], record[3], "it is on the skip list") for record in records if record[:3] in found
        ]
        return [record for record in records if record[:3] not in found]

    def found(self) -> list[Rejected]:
        """Reports of the records that were skipped since the last call."""
        found, self._found = self._found, []
        return found
