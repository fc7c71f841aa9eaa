"""Records that a user names by their positions, because the stream should go on without them: passed over, and told."""

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
        """The records that are not to be passed over."""
        if not self._positions or not (found := self._positions.intersection(record[:3] for record in records)):
            return records
        self._found += [
            Rejected(record[:3], record[3], "it is to be passed over") for record in records if record[:3] in found
        ]
        return [record for record in records if record[:3] not in found]

    def found(self) -> list[Rejected]:
        """What was passed over since the last call."""
        found, self._found = self._found, []
        return found
