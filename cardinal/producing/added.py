"""Partitions that are added to topics while they are read: read too, from their start."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError
from cardinal.transports.pace import Unasked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.base import Source

_SECONDS: Final = 5.0


class Added:
    """Looks for them every few seconds; where the source can ask beside the reading, nothing waits for the answer.

    Arguments:
        source: what is read.
        now: the time, in seconds of any clock.

    """

    def __init__(self, source: Source, now: float) -> None:
        self._source = source
        self._looked = now
        self._asked: Future[dict[Partition, tuple[int, int]]] | None = None

    def look(self, now: float) -> None:
        """Read what was added; all others go on where they are.

        Raises:
            CardinalError: of the source, but where nobody answers.

        """
        if self._asked is not None:
            if self._asked.done():
                asked, self._asked = self._asked, None
                if not isinstance(asked.exception(), UnreachableError):
                    self._read(asked.result())
        elif now - self._looked >= _SECONDS:
            self._looked = now
            if isinstance(self._source, Unasked):
                self._asked = self._source.watermarks_later(look=True)
            else:
                with contextlib.suppress(UnreachableError):
                    self._read(self._source.watermarks())

    def _read(self, marks: Mapping[Partition, tuple[int, int]]) -> None:
        positions = self._source.positions()
        added = {where: low for where, (low, _) in marks.items() if where not in positions}
        if added:
            self._source.assign({**positions, **added})
