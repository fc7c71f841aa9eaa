"""How long the feed bears it that its nodes move under it, or are away: seconds to wait, or that it is enough."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cardinal.errors import NodeAnswerError, NodeUnreachableError

from .blocks import ChainMovedError
from .settings import FeedSettings

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")

RESTARTS: Final = 50
"""Times in a row that the chain may move under the feed without a block given, before the node is called
contradictory: a node in the worst storm of reorgs was seen to settle within a few."""


class Trouble:
    """What went wrong since a block was given.

    Arguments:
        address: the nodes', for sentences.
        settings: intervals.
        clock: seconds.

    """

    def __init__(self, address: str, settings: FeedSettings, clock: Callable[[], float]) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._restarts = 0
        self._away_since: float | None = None

    def over(self) -> None:
        """The node answered all that was asked."""
        self._restarts, self._away_since = 0, None

    def left(self) -> float:
        """Another node is followed: it is asked at once, and begins with nothing against it."""
        self._restarts = 0
        return 0.0

    def moved(self, moved: ChainMovedError, *, gave: bool) -> float | None:
        """Seconds to wait: short ones, since a head that is announced before it can be read is there at once.

        None where it has been too often in a row.
        """
        del moved
        self._restarts = 1 if gave else self._restarts + 1
        self._away_since = None
        if self._restarts > RESTARTS:
            return None
        return min(self._settings.rpc.pause(self._restarts) / 4, self._settings.poll)

    def contradiction(self, moved: ChainMovedError) -> NodeAnswerError:
        """What a node is told that moved too often."""
        error = NodeAnswerError(
            f"The node at {self._address} has contradicted itself {RESTARTS} times in a row ({moved}) Use another node."
        )
        error.__cause__ = moved
        return error

    def away(self, away: NodeUnreachableError, *, gave: bool) -> float:
        """Seconds to wait; the error itself, when every node was away for longer than is waited for."""
        now = self._clock()
        if gave or self._away_since is None:
            self._away_since = now
            _LOG.warning("%s It is asked again for %g seconds.", away, self._settings.patience)
        if now - self._away_since >= self._settings.patience:
            raise away
        return self._settings.poll
