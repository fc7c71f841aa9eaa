"""New partitions of topics that are being read: read too, from their beginning.

The server is queried on another thread; reading continues meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import run_in_thread
from cardinal.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports.base import Source

LOOK_SECONDS: Final = 5.0
"""Between two queries for new partitions."""


class NewPartitions:
    """Partitions that a source does not read yet; ``now`` is in seconds of any clock.

    ``on_added`` is called when some were added: the source was assigned again, and pauses nothing.
    """

    def __init__(self, source: Source, now: float, on_added: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._looked = now
        self._on_added = on_added
        self._request: Future[dict[Partition, int]] | None = None

    def look(self, now: float) -> None:
        """Query every few seconds, and read what an answer names; raises as :meth:`look_now`."""
        if self._request is None:
            if now - self._looked < LOOK_SECONDS:
                return
            self._looked = now
        self.look_now()

    def look_now(self) -> None:
        """Query the server, or read what the answer to the last query names. Raises as the source does.

        Not for a server that is away: the next call queries again.
        """
        if self._request is None:
            assigned = frozenset(self._source.positions())
            self._request = run_in_thread(lambda: self._find(assigned), "cardinal-new-partitions")
        elif self._request.done():
            request, self._request = self._request, None
            with contextlib.suppress(UnreachableError):
                self.add(request.result())

    def add(self, begin: Mapping[Partition, int]) -> None:
        """Read those of these partitions that are not read yet, from these offsets; raises as ``Source.assign``."""
        positions = self._source.positions()
        new = {tp: at for tp, at in begin.items() if tp not in positions}
        if new:
            self._source.assign(positions | new)
            self._on_added()

    def _find(self, assigned: frozenset[Partition]) -> dict[Partition, int]:
        new = frozenset(self._source.partitions()) - assigned
        marks = self._source.watermarks() if new else {}
        return {tp: marks[tp][0] for tp in new if tp in marks}
