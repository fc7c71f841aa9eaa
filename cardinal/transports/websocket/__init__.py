"""``ws://``, ``wss://`` and ``cardinal://``: a stream that ``cardinal serve`` sends.

See :mod:`.settings` for a URL's options and :mod:`.wire` for the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cardinal.errors import ConfigurationError

from .asking import served_topics
from .settings import WebsocketSettings, websocket_settings
from .source import WebsocketSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.transports.registry import Topics

__all__ = ["WebsocketSettings", "WebsocketSource", "list_topics", "open_sink", "open_source"]


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> NoReturn:
    """Refused: a server only gives records. ConfigurationError says where to write instead."""
    del app, producer_id
    raise ConfigurationError(
        f"{url.scheme}:// is read only: produce to what `cardinal serve` reads from (kafka://…)", setting="url"
    )


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> WebsocketSource:
    """A source of these topics."""
    del app
    return WebsocketSource(websocket_settings(url), topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The names of all topics that the server gives."""
    return served_topics(websocket_settings(url))
