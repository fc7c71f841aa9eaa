"""Transports by URL scheme.

The module of a scheme is imported on first use. URLs are those of :mod:`cardinal.config.url`, or names of streams of
:mod:`cardinal.config.settings`. A login or an option that the transport does not have is refused when it is opened.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from cardinal.config import schemes
from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl

    from .base import Sink, Source


class Topics(Protocol):
    """The topics of an application."""

    @property
    def default_topic(self) -> str:
        """The topic of Batches, pings and Reorg announcements."""
        ...

    @property
    def all_topics(self) -> Sequence[str]:
        """Every topic of the stream, the default topic among them."""
        ...


class Transport(Protocol):
    """The module of a scheme."""

    def open_sink(self, url: TransportUrl, app: Topics, *, producer_id: str) -> Sink:
        """A sink for the application's topics."""
        ...

    def open_source(self, url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> Source:
        """A source of these topics; ``wait``: seconds to wait for them to exist."""
        ...

    def list_topics(self, url: TransportUrl) -> frozenset[str]:
        """The names of all existing topics."""
        ...


def _opened(url: str | TransportUrl) -> tuple[Transport, TransportUrl]:
    """The transport and the parsed URL of a URL or name."""
    parsed = find_url(url)
    if (scheme := schemes.transport(parsed.scheme)) is None:
        other = schemes.destination(parsed.scheme)
        assert other is not None, "a URL's scheme is known"  # noqa: S101 - for the type checker
        raise ConfigurationError(
            f"{parsed.scheme}:// is for `cardinal produce --to` alone: {other.other_way}", setting="url"
        )
    module: Any = importlib.import_module(scheme.module)
    return cast("Transport", module), parsed


def _check_app(app: object) -> None:
    """ConfigurationError for the name of an application, which lacks the chain."""
    if not hasattr(app, "default_topic"):
        given = f"its name: write cardinal.apps.get({app!r}, chain_id=…)" if isinstance(app, str) else f"{type(app)}"
        raise ConfigurationError(f"app must be an application, not {given}", setting="app")


def open_sink(url: str | TransportUrl, app: Topics, *, producer_id: str) -> Sink:
    """Open the producing side of a stream.

    Arguments:
        url: the stream's, or its name in the settings.
        app: the application whose topics are written; missing topics are created.
        producer_id: the configured id of the producer, put on every record.

    Raises:
        ConfigurationError: the URL or an option cannot work.
        UnreachableError, RefusedError, TopicError: the server is unreachable, refuses us, or has unsuitable topics.

    """
    _check_app(app)
    transport, parsed = _opened(url)
    if (scheme := schemes.transport(parsed.scheme)) is not None and scheme.other_way:
        raise ConfigurationError(f"{parsed.scheme}:// is read only: {scheme.other_way}", setting="url")
    return transport.open_sink(parsed, app, producer_id=producer_id)


def open_source(
    url: str | TransportUrl, app: Topics, *, topics: Sequence[str] | None = None, wait: float = 0.0
) -> Source:
    """Open the consuming side of a stream.

    Arguments:
        url: the stream's, or its name in the settings.
        app: the application whose topics are read.
        topics: only these of them; default all.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        ConfigurationError: the URL or an option cannot work.
        UnreachableError, RefusedError, TopicError: the server is unreachable, refuses us, or has no such topic.

    """
    _check_app(app)
    transport, parsed = _opened(url)
    chosen = tuple(app.all_topics if topics is None else topics)
    return transport.open_source(parsed, app, topics=chosen, wait=wait)


def list_topics(url: str | TransportUrl) -> frozenset[str]:
    """The names of all existing topics.

    Raises:
        ConfigurationError, UnreachableError, RefusedError: as :func:`open_source`.

    """
    transport, parsed = _opened(url)
    return transport.list_topics(parsed)
