"""Healing from a node: an incomplete block is fetched by its hash.

    with FeedHealer("http://node:8545", app) as healer:
        for update in cardinal.Consumer(url, heal=healer): …

Rules:

1. A block comes from a feed that yields blocks by their hash (:class:`cardinal.feeds.ByHash`), checked like all its
   blocks. A block that the node does not have now stays incomplete: a consumer calls once for a block.
2. Messages are encoded as by a producer. The consumer checks them against the block's Batch: a healer can only add
   missing messages.
3. The feed runs on a loop and a thread of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from cardinal.config.url import NodeUrl
from cardinal.errors import ConfigurationError, FeedError, NodeUnreachableError
from cardinal.feeds import BlockFeed, ByHash, open_feed
from cardinal.protocols.streams import split

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from cardinal.apps.base import Application
    from cardinal.protocols.streams import Routed
    from cardinal.protocols.streams.events import Explanation

_SECONDS: Final = 60.0
_ENDS_SECONDS: Final = 10.0


class FeedHealer:
    """A hook for ``Consumer(heal=)``; close it after the consumer.

    Arguments:
        url: the node's, or a feed, which is closed with the healer.
        app: the application whose blocks are healed.
        chain_id: refuse a node of another chain; None accepts any.
        seconds: time within which a block must arrive.

    Raises:
        ConfigurationError: there is no such feed, or it does not yield blocks by their hash.

    """

    def __init__(
        self,
        url: str | NodeUrl | BlockFeed,
        app: Application,
        *,
        chain_id: int | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        feed = open_feed(url, chain_id=chain_id) if isinstance(url, str | NodeUrl) else url
        if not isinstance(feed, ByHash):
            raise ConfigurationError(
                "this feed yields no blocks by their hash and cannot heal: use a node", setting="heal"
            )
        self._feed, self._by_hash = feed, feed
        self._app = app
        self._seconds = seconds
        self._loop = asyncio.new_event_loop()
        # A daemon: a node that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._loop.run_forever, name="cardinal-feed-healer", daemon=True)
        self._thread.start()

    def __call__(self, lacking: Explanation) -> list[Routed]:
        """All messages of a block; none where the node does not have it.

        Raises:
            FeedError: the node is unreachable or is of another kind, or the block fails its checks.

        """
        payload = self._run(self._by_hash.block(lacking.block), self._seconds)
        return [] if payload is None else split(payload, self._app.topics, self._app.default_topic)

    def close(self) -> None:
        """Close the feed. May be called twice."""
        if self._thread.is_alive():
            self._run(self._feed.close(), _ENDS_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_ENDS_SECONDS)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, Any], seconds: float) -> Any:  # noqa: ANN401 - any result
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise NodeUnreachableError(f"the node returned no block within {seconds:g} seconds", address="") from None
        except concurrent.futures.CancelledError:
            raise FeedError("the healer was closed while it waited for a block") from None
