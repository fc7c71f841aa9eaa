"""Partitions that are added to topics while they are read: read too, from their beginning.

Where the source can ask beside the reading (:class:`.pace.Unasked`), nothing waits for an answer: what is read goes on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError

from .pace import Unasked

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition

    from .base import Source

_SECONDS: Final = 5.0


class Added:
    """See the module.

    Arguments:
        source: what is read.
        now: the time, in seconds of any clock.
        then: called when some were added: the source was assigned anew, and pauses nothing.

    """

    def __init__(self, source: Source, now: float, then: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._unasked = source if isinstance(source, Unasked) else None
        self._looked = now
        self._then = then
        self._asked: Future[tuple[Partition, ...]] | None = None

    def look(self, now: float) -> None:
        """Every few seconds :meth:`look_now`."""
        if self._asked is None:
            if now - self._looked < _SECONDS:
                return
            self._looked = now
        self.look_now()

    def look_now(self) -> None:
        """Ask, or read what was added where an answer has come; all others go on where they are.

        Raises:
            CardinalError: of the source; that nobody answers is none, the next call asks again.

        """
        with contextlib.suppress(UnreachableError):
            if self._asked is not None:
                if self._asked.done():
                    asked, self._asked = self._asked, None
                    if set(asked.result()) - self._source.positions().keys():
                        self.read()
            elif self._unasked is not None:
                self._asked = self._unasked.look_later()
            else:
                self.read()

    def read(self) -> bool:
        """Read what was added by now, and wait for the answer; whether there is some.

        Where it begins is asked of whoever has it: of several places read as one another one may be away just then.

        Raises:
            UnreachableError: the server is away.
            CardinalError: of the source.

        """
        source = self._source
        positions = source.positions()
        added = set(source.partitions()) - positions.keys()
        if not added:
            return False
        marks = self._unasked.watermarks_later(look=False).result() if self._unasked else source.watermarks()
        begin = {where: marks[where][0] for where in added if where in marks}
        if begin:
            source.assign(positions | begin)
            self._then()
        return bool(begin)
