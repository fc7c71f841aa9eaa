"""Transport URLs: what they say, and which transport they open.

Forms::

    kafka://user:password@host:port,host:port?tls=1&sasl.mechanism=SCRAM-SHA-512&compression.codec=lz4
    file:///folder?fsync=interval&segment.bytes=1000000        file://folder (relative)
    memory://name
    null://
    mux:URL,URL          mux:0=URL,64=URL
    ws://host:port       wss://host:port?token_file=PATH     cardinal://host:port (the same as ws://)

Rules:

1. A URL is taken apart here and nowhere else. What an option means is the transport's business.
2. Credentials are held apart from everything that is printed: neither ``str`` nor ``repr`` nor an error shows them.
3. A scheme opens the module that the table names, imported at that moment.
4. In every part ``%XX`` stands for a byte that would mean something else there (``%40`` an ``@`` in a user's name,
   ``%3F`` a ``?`` in a folder).
5. Members of a mux are separated by a comma that is followed by ``scheme://`` (or ``number=scheme://``); the comma
   between Kafka's hosts is not. Such a comma inside of a member is written ``%2C``. See :mod:`.mux` for the numbers.
6. A secret may come from a file: ``password_file=/run/secrets/kafka``, and likewise every secret option with ``_file``
   behind its name (:mod:`.secrets`). It is read when the transport is opened.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from cardinal.errors import ConfigurationError

from .secrets import with_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .base import Sink, Source

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
_FORMS: Final = MappingProxyType(
    {
        "kafka": "kafka://host:port",
        "memory": "memory://name",
        "file": "file://DIR",
        "null": "null://",
        "mux": "mux:URL,URL",
        "ws": "ws://host:port",
        "wss": "wss://host:port",
        "cardinal": "cardinal://host:port",
    }
)
_DEFAULT_PORTS: Final = MappingProxyType({"kafka": 9092, "ws": 80, "wss": 443, "cardinal": 8765})
_PORT_MAX: Final = 65535
_SECRET: Final = re.compile(
    r"(?:password|passphrase|secret|token|credential|\.pem|\.key$|oauthbearer\.config)(?!.*_file$)", re.IGNORECASE
)
_MASK: Final = "***"
_MUX: Final = "mux:"
_MEMBER: Final = re.compile(r",(?=(?:\d{1,9}=)?[A-Za-z][A-Za-z0-9+.-]*://)")
_NUMBERED: Final = re.compile(r"(?:(\d{1,9})=)?(.*)", re.DOTALL)
_STRIDE: Final = 64
"""Partition numbers that a member of a mux has for itself unless the URL says otherwise: DESIGN's bound for cursors."""


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


@dataclass(frozen=True, slots=True, repr=False)
class TransportUrl:
    """A transport URL in parts.

    Attributes:
        scheme: ``kafka``, ``memory``, ``file``, ``null``, ``mux``, ``ws``, ``wss``, ``cardinal``.
        hosts: ``host:port`` of every server; a memory broker's name; a folder's path; nothing.
        user, password: decoded; None where the URL has none.
        options: the query, in order. Names and meanings are the transport's.
        members: of a mux: the first partition number and the URL of each.

    """

    scheme: str
    hosts: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    members: tuple[tuple[int, TransportUrl], ...] = ()

    @property
    def address(self) -> str:
        """The servers or the folder, without credentials: what an error may name."""
        return ",".join(self.hosts) if not self.members else ",".join(one.address for _, one in self.members)

    def __str__(self) -> str:
        """The URL with every secret masked."""
        if self.members:
            return _MUX + ",".join(f"{first}={member}" for first, member in self.members)
        who = f"{_MASK}@" if self.user is not None or self.password is not None else ""
        shown = {name: _MASK if is_secret(name) else value for name, value in self.options.items()}
        query = f"?{urlencode(shown, safe='*/:,')}" if shown else ""
        where = quote(self.address) if self.scheme == "file" else self.address
        return f"{self.scheme}://{who}{where}{query}"

    def __repr__(self) -> str:
        """The masked URL."""
        return f"TransportUrl({str(self)!r})"


def parse_url(url: str | TransportUrl) -> TransportUrl:
    """Take a transport URL apart.

    Raises:
        ConfigurationError: an unknown scheme, no host, a port that is none, an option given twice. The sentence
            shows the form to use and never the URL itself, which may hold a password.

    """
    if isinstance(url, TransportUrl):
        return url
    if url[: len(_MUX)].lower() == _MUX:
        return _mux(url[len(_MUX) :])
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise ConfigurationError(f"a transport URL begins with a scheme: write {_all_forms()}", setting="url")
    if scheme not in _TRANSPORTS:
        raise ConfigurationError(f"no transport is called {_safe_name(scheme)!r}: write {_all_forms()}", setting="url")
    form = _FORMS[scheme]
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError(
            f"this {scheme} URL cannot be read: write {form}?option=value&option=value", setting="url"
        ) from None
    if scheme == "file":
        return _file(parts, options)
    if parts.path.strip("/") or parts.fragment:
        raise ConfigurationError(
            f"a {scheme} URL has nothing after its hosts but options (topics come from the application): write {form}",
            setting="url",
        )
    who, _, where = parts.netloc.rpartition("@")
    if scheme == "null":
        if parts.netloc:
            raise ConfigurationError(f"a null URL names nothing: write {form}", setting="url")
        return TransportUrl(scheme, (), options=_options(scheme, options))
    user, has_password, password = who.partition(":")
    return TransportUrl(
        scheme,
        _hosts(scheme, where),
        unquote(user) if user else None,
        unquote(password) if has_password else None,
        _options(scheme, options),
    )


def is_secret(option: str) -> bool:
    """Whether the value of an option with this name is never to be shown."""
    return bool(_SECRET.search(option))


def mux_of(members: Sequence[tuple[int | None, TransportUrl]]) -> TransportUrl:
    """A mux of these members, each with its first partition number or None for the usual one.

    Raises:
        ConfigurationError: a member is a mux, or the numbers do not ascend.

    """
    numbered: list[tuple[int, TransportUrl]] = []
    for number, member in members:
        first = number if number is not None else numbered[-1][0] + _STRIDE if numbered else 0
        if member.scheme == "mux":
            raise ConfigurationError("a mux in a mux is not needed: list all members in one", setting="url")
        if numbered and first <= numbered[-1][0]:
            raise ConfigurationError(
                f"the first partition numbers of a mux's members ascend, and {first} follows {numbered[-1][0]}",
                setting="url",
            )
        numbered.append((first, member))
    return TransportUrl("mux", (), members=tuple(numbered))


def _mux(text: str) -> TransportUrl:
    members: list[tuple[int | None, TransportUrl]] = []
    for part in _MEMBER.split(text):
        number, rest = _NUMBERED.fullmatch(part).groups()  # type: ignore[union-attr] # it matches every text
        members.append((None if number is None else int(number), parse_url(rest)))
    return mux_of(members)


def _file(parts: SplitResult, options: list[tuple[str, str]]) -> TransportUrl:
    folder = unquote(parts.netloc + parts.path)
    if not folder or "\0" in folder or parts.fragment:
        raise ConfigurationError(
            f"a file URL names a folder: write {_FORMS['file']}, with %23 for a # in it", setting="url"
        )
    return TransportUrl("file", (folder,), options=_options("file", options))


def _all_forms() -> str:
    return " or ".join(_FORMS.values())


def _safe_name(scheme: str) -> str:
    # What stands before :// could be a pasted secret as well; only what looks like a scheme is repeated.
    return scheme if re.fullmatch(r"[a-z][a-z0-9+.-]{0,15}", scheme) else "…"


def _hosts(scheme: str, text: str) -> tuple[str, ...]:
    hosts = tuple(_host(scheme, host) for host in text.split(",") if host)
    if not hosts:
        raise ConfigurationError(f"this {scheme} URL names no host: write {_FORMS[scheme]}", setting="url")
    return hosts


def _host(scheme: str, text: str) -> str:
    default = _DEFAULT_PORTS.get(scheme)
    if default is None:
        return text
    # An IPv6 address stands in brackets, so that its colons are not taken for the port's.
    match = re.fullmatch(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/?#\s]+)(?::(?P<port>.*))?", text)
    if match is None:
        raise ConfigurationError(f"{text!r} is no host: write {_FORMS[scheme]}", setting="url")
    port = match["port"]
    if port is None:
        return f"{match['name']}:{default}"
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        raise ConfigurationError(
            f"{port!r} is no port of {match['name']}: write a number from 1 to {_PORT_MAX}, as in {_FORMS[scheme]}",
            setting="url",
        )
    return f"{match['name']}:{int(port)}"


def _options(scheme: str, pairs: list[tuple[str, str]]) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options:
            raise ConfigurationError(f"this {scheme} URL gives the option {name!r} twice", setting=name)
        options[name] = value
    return MappingProxyType(options)


def _opened(url: str | TransportUrl) -> tuple[Transport, TransportUrl]:
    """A URL's transport, and the URL with its secrets read."""
    parsed = with_secrets(parse_url(url))
    module: Any = importlib.import_module(_TRANSPORTS[parsed.scheme])
    return cast("Transport", module), parsed


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
