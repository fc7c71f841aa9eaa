"""The transport: sources of a server's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import protocol
from .client import Client
from .inbox import Inbox
from .settings import WebsocketSettings, websocket_settings
from .source import WebsocketSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.transports.registry import Topics

__all__ = ["WebsocketSettings", "WebsocketSource", "list_topics", "open_source"]


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> WebsocketSource:
    """Open a source of these topics."""
    del app
    return WebsocketSource(websocket_settings(url), topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The names of all topics that the server sends."""
    settings = websocket_settings(url)
    client = Client(settings, Inbox(settings.window, settings.frame_max))
    try:
        return frozenset(client.request(protocol.ListTopics, protocol.Topics, "topics").topics)
    finally:
        client.close()
