"""The nodes of one chain: the one that is followed, and those that stand by.

Rules:

1. All serve the same chain: id and first block are compared before a node is used, and at each new connection.
2. Which one is followed says :mod:`.standing`. Those that stand by are looked at beside what goes on, never waited for.
3. A failure is passed on only when no node in order is left to go to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from cardinal.config.url import Endpoint
from cardinal.errors import FeedError, NodeAnswerError, WrongChainError

from .credentials import REFUSED
from .node import Identity, Node
from .settings import FeedSettings
from .standing import Standings

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")


class Nodes:
    """Several nodes as one.

    Arguments:
        endpoints: one or more; the first is preferred.
        chain_id: refuse nodes of another chain; None takes the chain of the first that answers.
        settings: how they are asked, and when they are left.

    """

    def __init__(self, endpoints: Sequence[Endpoint], *, chain_id: int | None, settings: FeedSettings) -> None:
        identity = Identity(chain_id, settings.chain)
        self._nodes = [Node(endpoint, identity=identity, settings=settings.rpc) for endpoint in endpoints]
        self._settings = settings
        self._standings = Standings(len(endpoints), behind=settings.behind, rest=settings.rest, clock=time.monotonic)
        self._at = 0
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._looked = 0.0

    @property
    def active(self) -> Node:
        """The node that is followed."""
        return self._nodes[self._at]

    def others(self) -> list[Node]:
        """Where a block may be fetched too: the nodes that stand by, as far as they are known to serve this chain."""
        return [
            node for place, node in enumerate(self._nodes) if place != self._at and not self._standings.of[place].wrong
        ]

    @property
    def address(self) -> str:
        """The addresses of all of them."""
        return ", ".join(node.address for node in self._nodes)

    async def greet(self) -> int:
        """The chain id, from the node that is followed, or the next one that answers.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError: of the last node, when each was asked.

        """
        for _ in self._nodes:
            try:
                return await self.active.greet()
            except FeedError as failure:
                if not self.leave(failure):
                    raise
        return await self.active.greet()

    def leave(self, failure: FeedError) -> bool:
        """The node that is followed failed: go to another one.

        Returns:
            Whether there is one that did not fail lately. Where there is none, the one whose failure is the longest
            ago is followed, and whoever asks may wait or pass the failure on.

        """
        left = self.active
        self._standings.failed(self._at, refused=_refuses(failure))
        if isinstance(failure, WrongChainError):
            self._standings.of[self._at].wrong = self._standings.of[self._at].wrong or len(self._nodes) > 1
        best = self._standings.best(self._at)
        if best is None:
            return False
        self._at = best
        if best == self._nodes.index(left) or self._standings.resting(best):
            return False
        _LOG.warning("%s From now on the node at %s is followed.", failure, self.active.address)
        return True

    def look(self) -> bool:
        """Compare heads, and go to a node that is not behind; others are asked for theirs, for the next time.

        Returns:
            Whether another node is followed now.

        """
        for place, node in enumerate(self._nodes):
            self._standings.of[place].head = node.head
        before = self._at
        best = self._standings.best(before)
        self._at = before if best is None else best
        if self._at != before:
            _LOG.warning(
                "The node at %s is %d blocks behind; from now on the one at %s is followed.",
                self._nodes[before].address,
                self._standings.lag(before),
                self.active.address,
            )
        self._ask_others()
        return self._at != before

    async def close(self) -> None:
        """Release all connections. May be called twice."""
        looks = list(self._looks.values())
        for task in looks:
            task.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        for node in self._nodes:
            await node.close()

    def _ask_others(self) -> None:
        now = time.monotonic()
        if len(self._nodes) == 1 or now - self._looked < self._settings.watch:
            return
        self._looked = now
        for place in range(len(self._nodes)):
            if place != self._at and self._standings.looked_at(place) and place not in self._looks:
                task = self._looks[place] = asyncio.create_task(self._ask(place))
                task.add_done_callback(lambda _, place=place: self._looks.pop(place, None))  # type: ignore[misc] # mypy infers no type for a default

    async def _ask(self, place: int) -> None:
        """The head of a node that stands by; what is wrong with it is told once, and it is left alone."""
        node = self._nodes[place]
        try:
            await node.greet()
            await node.latest()
        except WrongChainError as wrong:
            self._standings.of[place].wrong = True
            _LOG.error("%s It is not used.", wrong)
        except FeedError as failure:
            told = self._standings.of[place].refused
            self._standings.failed(place, refused=_refuses(failure))
            _LOG.log(logging.WARNING if _refuses(failure) and not told else logging.INFO, "%s", failure)
        else:
            self._standings.of[place].refused = False


def _refuses(failure: FeedError) -> bool:
    """Whether a node refuses what it is shown."""
    return isinstance(failure, NodeAnswerError) and failure.code in REFUSED
