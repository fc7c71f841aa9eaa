"""Pool of the nodes of one chain: the active one, and the standby ones.

Rules:

1. All serve the same chain: id and first block are compared before a node is used, and at each new connection.
2. :mod:`.health` selects the active one. The heads of standby nodes are read in the background, without waiting.
3. A failure is raised only if no healthy node is left, and waiting helps for none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from cardinal.config.url import Endpoint
from cardinal.errors import (
    FeedError,
    IntegrityError,
    NodeAnswerError,
    NodeUnreachableError,
    ReorgTooDeepError,
    WrongChainError,
)
from cardinal.feeds import NodeReport
from cardinal.texts import Count
from cardinal_ethereum.feed.rpc.credentials import REFUSED
from cardinal_ethereum.feed.settings import FeedSettings

from .health import PoolHealth
from .node import Identity, Node

_KINDS: Final[tuple[tuple[type[FeedError], str], ...]] = (
    (NodeUnreachableError, "unreachable"),
    (NodeAnswerError, "answer"),
    (IntegrityError, "integrity"),
    (ReorgTooDeepError, "reorg_too_deep"),
    (WrongChainError, "wrong_chain"),
    (FeedError, "other"),
)
_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")


class NodePool:
    """Pool of nodes.

    Arguments:
        endpoints: one or more; the first is preferred.
        chain_id: refuse nodes of another chain; None accepts that of the first that answers.
        settings: request settings, and bounds of lag and rest.

    """

    def __init__(self, endpoints: Sequence[Endpoint], *, chain_id: int | None, settings: FeedSettings) -> None:
        identity = Identity(chain_id, settings.chain)
        self._nodes = [Node(endpoint, identity=identity, settings=settings.rpc) for endpoint in endpoints]
        self._settings = settings
        self._health = PoolHealth(len(endpoints), behind=settings.behind, rest=settings.rest, clock=time.monotonic)
        for index, node in enumerate(self._nodes):
            node.set_replaceable(partial(self._is_replaceable, index))
        self._at = 0
        self._errors = [Counter[str]() for _ in endpoints]
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._requested = 0.0

    @property
    def active(self) -> Node:
        """The active node."""
        return self._nodes[self._at]

    def others(self) -> list[Node]:
        """The standby nodes that may serve this chain."""
        return [
            node for index, node in enumerate(self._nodes) if index != self._at and not self._health.of[index].wrong
        ]

    @property
    def address(self) -> str:
        """The addresses of all of them."""
        return ", ".join(node.address for node in self._nodes)

    @property
    def report(self) -> tuple[NodeReport, ...]:
        """State of every node, the active one first."""
        order = sorted(range(len(self._nodes)), key=lambda index: index != self._at)
        return tuple(
            NodeReport(node.address, node.head, node.requests, dict(self._errors[index] + node.faults))
            for index, node in ((index, self._nodes[index]) for index in order)
        )

    async def greet(self) -> int:
        """The chain id, from the active node or the next one that answers.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError: failure of the last node, after all failed; of one
                for which waiting helps, if there is any.

        """
        waits: FeedError | None = None
        while True:
            try:
                return await self.active.greet()
            except FeedError as failure:
                waits = failure if failure.retriable else waits
                if not self.leave(failure):
                    raise (waits or failure) from None

    @property
    def exhausted(self) -> bool:
        """True if no node is left for which waiting could help."""
        return self._health.exhausted

    def delivered(self) -> None:
        """Record that a block was delivered."""
        self._health.delivered()

    def leave(self, failure: FeedError) -> bool:
        """Switch to another node after a failure of the active one.

        Returns:
            True if the new node is healthy. If none is, the one with the oldest failure becomes active, and the caller
            waits or raises the failure.

        """
        left = self.active
        self._errors[self._at][_kind(failure)] += 1
        self._health.failed(self._at, refused=_refuses(failure), final=not failure.retriable)
        if isinstance(failure, WrongChainError):
            self._health.of[self._at].wrong = self._health.of[self._at].wrong or len(self._nodes) > 1
        best = self._health.best(self._at)
        if best is None:
            return False
        self._at = best
        if best == self._nodes.index(left) or self._health.resting(best):
            return False
        _LOG.warning("%s; switching to the node at %s", failure, self.active.address)
        return True

    def look(self) -> bool:
        """Switch to another node if the active one is behind, and request the heads of the others for the next call.

        Returns:
            True if the active node changed.

        """
        for index, node in enumerate(self._nodes):
            self._health.of[index].head = node.head
        before = self._at
        best = self._health.best(before)
        self._at = before if best is None else best
        if self._at != before:
            _LOG.warning(
                "the node at %s is %s behind; switching to the node at %s",
                self._nodes[before].address,
                Count(self._health.lag(before), "block"),
                self.active.address,
            )
        self._request_heads()
        return self._at != before

    async def close(self) -> None:
        """Release all connections. May be called twice."""
        looks = list(self._requests.values())
        for task in looks:
            task.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        for node in self._nodes:
            await node.close()

    def _is_replaceable(self, index: int) -> bool:
        """True if another node is healthy, as far as anything is known of it."""
        return any(
            other != index and not one.wrong and not self._health.resting(other)
            for other, one in enumerate(self._health.of)
        )

    def _request_heads(self) -> None:
        now = time.monotonic()
        if len(self._nodes) == 1 or now - self._requested < self._settings.watch:
            return
        self._requested = now
        for index in range(len(self._nodes)):
            if index != self._at and self._health.is_polled(index) and index not in self._requests:
                task = self._requests[index] = asyncio.create_task(self._request_head(index))
                task.add_done_callback(lambda _, index=index: self._requests.pop(index, None))  # type: ignore[misc] # mypy infers no type for a default

    async def _request_head(self, index: int) -> None:
        """Read the head of a standby node; a failure is logged once."""
        node = self._nodes[index]
        try:
            await node.greet()
            await node.latest()
        except WrongChainError as wrong:
            self._health.of[index].wrong = True
            self._errors[index][_kind(wrong)] += 1
            _LOG.error("%s; the node is not used", wrong)
        except FeedError as failure:
            self._errors[index][_kind(failure)] += 1
            reported = self._health.of[index].refused
            self._health.failed(index, refused=_refuses(failure))
            _LOG.log(logging.WARNING if _refuses(failure) and not reported else logging.INFO, "%s", failure)
        else:
            self._health.of[index].refused = False


def _refuses(failure: FeedError) -> bool:
    """True if a node refuses the credentials."""
    return isinstance(failure, NodeAnswerError) and failure.code in REFUSED


def _kind(failure: FeedError) -> str:
    """A failure's kind, as metrics name it."""
    return next(kind for error, kind in _KINDS if isinstance(failure, error))
