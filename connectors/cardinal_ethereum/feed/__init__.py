"""Ethereum-like nodes over JSON-RPC: HTTP, WebSocket and IPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import MissingExtraError

if TYPE_CHECKING:
    from cardinal.config.url import NodeUrl
    from cardinal.feeds import BlockFeed

    from .settings import FeedSettings

__all__ = ["open_feed"]


def open_feed(url: str | NodeUrl, *, chain_id: int | None = None, settings: FeedSettings | None = None) -> BlockFeed:
    """Open the feed of a node; nothing is connected before the first call.

    Arguments:
        url: ``http://``, ``https://``, ``ws://``, ``wss://`` or ``ipc://``; several, separated by commas, and options
            after ``#`` (:mod:`cardinal.config.url`, :class:`.url.NodeOptions`).
        chain_id: refuse a node of another chain; None accepts any.
        settings: intervals and bounds (:class:`.settings.FeedSettings`).

    Raises:
        ConfigurationError: no such scheme or option.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    try:
        from .feed import NodeFeed  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as absent:
        raise MissingExtraError("a node feed", "evm") from absent
    return NodeFeed(url, chain_id=chain_id, settings=settings)
