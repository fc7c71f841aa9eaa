"""``ws://``, ``wss://`` and ``cardinal://``: a stream that ``cardinal serve`` sends.

:mod:`.settings` describes a URL's options, :mod:`.protocol` the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cardinal.errors import ConfigurationError

from . import protocol
from .client import Client
from .inbox import Inbox
from .settings import WebsocketSettings, websocket_settings
from .source import WebsocketSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.transports.registry import Topics

__all__ = ["WebsocketSettings", "WebsocketSource", "list_topics", "open_sink", "open_source"]


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> NoReturn:
    """Refuse: a server only sends records. ConfigurationError names where to write instead."""
    del app, producer_id
    raise ConfigurationError(
        f"{url.scheme}:// is read only: produce to what `cardinal serve` reads from (kafka://…)", setting="url"
    )


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
