"""What is done when nothing comes any more: blocks that were dropped for want of room are read again.

While a stream goes on, what a chain lacks shows in time (:mod:`.gaps`), counted in blocks that come. At its end none
come: a block that was dropped would be waited for until the stream goes on. Which of the dropped ones a chain lacks
nobody knows, since the children of most were dropped as well: so all of them are read again, the oldest first.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

from .tombstones import TOMBSTONES_MAX

_TOGETHER: Final = 4_096


class Rest:
    """See the module."""

    def __init__(self) -> None:
        self._completed = 0
        self._told = 0

    def due(self, completed: int, dropped: Collection[bytes]) -> list[bytes]:
        """The blocks to be read again now, of these that were dropped.

        None any more when as many as may be remembered have completed nothing: they are nobody's.

        Arguments:
            completed: how many blocks were completed so far.
            dropped: their hashes, oldest first.

        """
        if completed != self._completed:
            self._completed, self._told = completed, 0
        elif self._told >= TOMBSTONES_MAX:
            return []
        found = list(islice(dropped, _TOGETHER))
        self._told += len(found)
        return found
