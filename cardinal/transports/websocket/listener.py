"""Who listens on a link: see :mod:`.link`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .frames import Answer, Failed, Records, Request


class Listener(Protocol):
    """Who is told what happens. All calls come from the link's thread."""

    def greeting(self, number: Callable[[], int]) -> Sequence[Request]:
        """What to send first on a new connection; ids of requests by ``number``."""
        ...

    def take(self, frame: Records, size: int) -> None:
        """Records, in a frame of so many bytes. RemoteProtocolError ends the link."""
        ...

    def answered(self, frame: Answer) -> None:
        """Any answer, before who asked has it."""
        ...

    def refused(self, frame: Failed) -> None:
        """An answer to the greeting, or to nothing: the reading has failed."""
        ...

    def ended(self) -> None:
        """The link has ended, or has changed: who waits looks again."""
        ...
