"""Retry policy for node requests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from cardinal.errors import FeedError, NodeAnswerError, NodeUnreachableError
from cardinal_ethereum.feed.chain.blocks import ChainMovedError
from cardinal_ethereum.feed.settings import FeedSettings

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")

RESTARTS: Final = 50
"""Consecutive chain changes without a delivered block before a node counts as contradictory: in the worst storm of
reorgs a node needed a few."""


class NodeBehindError(NodeUnreachableError):
    """The node's head is below the published blocks: it is syncing, or was rewound."""


class RetryPolicy:
    """Retry policy, from the failures since the last delivered block.

    Arguments:
        address: address of the nodes for messages.
        settings: intervals.
        clock: seconds.

    Attributes:
        waits_for: the reason why no block can come, a sentence; empty while a node answers.

    """

    def __init__(self, address: str, settings: FeedSettings, clock: Callable[[], float]) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._restarts = 0
        self._unreachable_since: float | None = None
        self._kind: tuple[object, ...] | None = None
        self.waits_for = ""

    def over(self) -> None:
        """Reset after a successful step."""
        self._restarts = 0
        self._end()

    def left(self) -> float:
        """Reset after a switch to another node; returns no delay."""
        self._restarts = 0
        return 0.0

    def moved(self, moved: ChainMovedError, *, delivered: bool) -> float | None:
        """Seconds to wait after a chain change: few, since an announced head is soon available.

        None after too many in a row.
        """
        del moved
        self._restarts = 1 if delivered else self._restarts + 1
        self._end()
        if self._restarts > RESTARTS:
            return None
        return min(self._settings.rpc.pause(self._restarts) / 4, self._settings.poll)

    def contradiction(self, moved: ChainMovedError) -> NodeAnswerError:
        """Error for a node whose chain changed too often."""
        error = NodeAnswerError(
            f"the node at {self._address} contradicted itself {RESTARTS} times in a row ({moved}): use another node"
        )
        error.__cause__ = moved
        return error

    def unreachable(self, unreachable: FeedError, *, delivered: bool) -> float:
        """Seconds to wait for unreachable nodes; raises the error after a ``patience`` that is set."""
        now, patience = self._clock(), self._settings.patience
        if delivered or self._unreachable_since is None:
            self._unreachable_since = now
        kind = (type(unreachable), getattr(unreachable, "fault", None))
        if delivered or kind != self._kind:  # a node that returned, but is behind, is another state
            self._kind = kind
            _LOG.warning("%s; retrying%s", unreachable, "" if patience is None else f" for {patience:g} seconds")
        self.waits_for = str(unreachable)
        if patience is not None and now - self._unreachable_since >= patience:
            raise unreachable
        return self._settings.poll

    def _end(self) -> None:
        """Reset after an answer of a node."""
        if self._unreachable_since is not None:
            _LOG.info(
                "a node at %s answers again after %.0f seconds", self._address, self._clock() - self._unreachable_since
            )
        self._unreachable_since, self._kind, self.waits_for = None, None, ""
