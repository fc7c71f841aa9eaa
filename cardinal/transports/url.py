"""Transport URLs: what they say, and which transport they open.

Forms::

    kafka://user:password@host:port,host:port?tls=1&sasl.mechanism=SCRAM-SHA-512&compression.codec=lz4
    file:///folder?fsync=interval&segment.bytes=1000000        file://folder (relative)
    memory://name
    null://
    mux:URL,URL          mux:0=URL,64=URL
    ws://host:port       wss://host:port?token_file=PATH     cardinal://host:port (the same as ws://)

Rules:

1. A URL is taken apart by :mod:`.parsing` and nowhere else. What an option means is the transport's business.
2. Credentials are held apart from everything that is printed: neither ``str`` nor ``repr`` nor an error shows them.
3. A scheme opens the module that the table names, imported at that moment.
4. In every part ``%XX`` stands for a byte that would mean something else there (``%40`` an ``@`` in a user's name,
   ``%3F`` a ``?`` in a folder). A ``+`` is a ``+`` everywhere.
5. Members of a mux are separated by a comma that is followed by ``scheme://`` (or ``number=scheme://``); the comma
   between Kafka's hosts is not. Such a comma inside of a member is written ``%2C``. See :mod:`.mux` for the numbers.
6. A secret may come from a file: ``password_file=/run/secrets/kafka``, and likewise every secret option with ``_file``
   behind its name (:mod:`.secrets`). It is read when the transport is opened.
7. Where a URL is wanted, the name of one may stand as well: :mod:`.settings` says who gives names.
8. A login or an option that the transport has no use for is refused by its name when it is opened, wherever it stood.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from cardinal.errors import ConfigurationError

from .address import TransportUrl
from .parsing import parse_url
from .secrets import with_secrets
from .settings import find_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .base import Sink, Source

__all__ = ["Topics", "Transport", "TransportUrl", "list_topics", "open_sink", "open_source", "parse_url"]

_TRANSPORTS: Final = MappingProxyType(
    {
        "kafka": "cardinal.transports.kafka",
        "memory": "cardinal.transports.memory",
        "file": "cardinal.transports.file",
        "null": "cardinal.transports.null",
        "mux": "cardinal.transports.mux",
        "ws": "cardinal.transports.websocket",
        "wss": "cardinal.transports.websocket",
        "cardinal": "cardinal.transports.websocket",
    }
)


class Topics(Protocol):
    """What a transport needs to know of an application: the names of its topics."""

    @property
    def default_topic(self) -> str:
        """Where Batches, pings and Reorg announcements go."""
        ...

    @property
    def all_topics(self) -> Sequence[str]:
        """Every topic of the stream, the default topic among them."""
        ...


class Transport(Protocol):
    """What the module of a scheme offers."""

    def open_sink(self, url: TransportUrl, app: Topics, *, producer_id: str) -> Sink:
        """A sink for the application's topics."""
        ...

    def open_source(self, url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> Source:
        """A source of these topics, that waits so many seconds for them to exist."""
        ...

    def list_topics(self, url: TransportUrl) -> frozenset[str]:
        """The names of all topics that are there."""
        ...


def _opened(url: str | TransportUrl) -> tuple[Transport, TransportUrl]:
    """A URL's transport, and the URL with its secrets read. A name is looked up in the environment."""
    parsed = with_secrets(find_url(url))
    module: Any = importlib.import_module(_TRANSPORTS[parsed.scheme])
    return cast("Transport", module), parsed


def _check_app(app: object) -> None:
    """ConfigurationError for the name of an application, which does not say of which chain."""
    if not hasattr(app, "default_topic"):
        given = f"its name: write cardinal.apps.get({app!r}, chain_id=…)" if isinstance(app, str) else f"{type(app)}"
        raise ConfigurationError(f"app must be an application, not {given}", setting="app")


def open_sink(url: str | TransportUrl, app: Topics, *, producer_id: str) -> Sink:
    """Open the producing side of a stream.

    Arguments:
        url: see the module's text.
        app: the application whose topics are written; missing topics are created.
        producer_id: the configured id of the producer, put on every record.

    Raises:
        ConfigurationError: the URL or an option cannot work.
        UnreachableError, RefusedError, TopicError: the server is away, says no, or has topics that cannot carry this.

    """
    _check_app(app)
    transport, parsed = _opened(url)
    return transport.open_sink(parsed, app, producer_id=producer_id)


def open_source(
    url: str | TransportUrl, app: Topics, *, topics: Sequence[str] | None = None, wait: float = 0.0
) -> Source:
    """Open the consuming side of a stream.

    Arguments:
        url: see the module's text.
        app: the application whose topics are read.
        topics: only these of them; default all.
        wait: seconds to wait for topics that do not exist yet.

    Raises:
        ConfigurationError: the URL or an option cannot work.
        UnreachableError, RefusedError, TopicError: the server is away, says no, or has no such topic.

    """
    _check_app(app)
    transport, parsed = _opened(url)
    chosen = tuple(app.all_topics if topics is None else topics)
    return transport.open_source(parsed, app, topics=chosen, wait=wait)


def list_topics(url: str | TransportUrl) -> frozenset[str]:
    """The names of all topics that are there, for whoever does not know which stream to read.

    Raises:
        ConfigurationError, UnreachableError, RefusedError: as :func:`open_source`.

    """
    transport, parsed = _opened(url)
    return transport.list_topics(parsed)
