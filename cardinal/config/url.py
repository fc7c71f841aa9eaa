"""URLs of streams and nodes: their values and their one parser.

Streams (:class:`TransportUrl`)::

    kafka://user:password@host:port,host:port?tls=1&sasl.mechanism=SCRAM-SHA-512&compression.type=lz4
    file:///folder?fsync=never&segment.bytes=1000000        file://folder (relative)
    memory://name
    null://
    mux:URL,URL          mux:0=URL,64=URL

Further schemes of streams, and all of nodes, are those of other packages (:mod:`.schemes`).

Nodes (:class:`NodeUrl`), with options after ``#``, which no node receives::

    https://one#token_file=/run/secrets/one,ws://two:8546#lag=2&rate=50

Rules:

1. Percent-encoding escapes reserved characters; a ``+`` is a ``+``. An unescaped ``@`` appears only between a login and
   its hosts, and in the folder of a file URL after its first ``/``.
2. Members of a mux, and nodes, are separated by commas that are followed by ``scheme://`` (of a mux also
   ``number=scheme://``). Such a comma inside of a member is written ``%2C``.
3. The first node is preferred. ``token``, ``token_file`` and ``header`` belong to the node that they follow: no node
   receives another one's token. All other options follow the last node and belong to all. The last of two equal
   options counts.
4. Every secret option also exists with the suffix ``_file`` (:mod:`cardinal.config.secrets`). A URL holds the file's
   name only; the file is read when the transport is opened.
5. Neither ``str`` nor ``repr`` nor an error contains a secret. Path and query of a node's URL count as secrets, because
   gateways put keys there. An error repeats the scheme and names of options only: a password that is not
   percent-encoded may be in any other part.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from cardinal import plugins
from cardinal.config import schemes
from cardinal.config.options import nearest
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cardinal.config.schemes import Scheme

_PORT_MAX: Final = 65535
_MUX: Final = "mux:"
_STRIDE: Final = 64
"""Partition numbers of each member of a mux where the URL does not give them."""

_MEMBER: Final = re.compile(r",(?=(?:\d{1,9}=)?[A-Za-z][A-Za-z0-9+.-]*://)")
_NUMBERED: Final = re.compile(r"(?:(?P<number>\d{1,9})=)?(?P<name>.*)", re.DOTALL)
_NODE: Final = re.compile(r",(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_AUTHORITY: Final = re.compile(r"(?:(?P<user>[^@:,/]*)(?::(?P<password>[^@,/]*))?@)?(?P<hosts>[^@/]*)")
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^\[\]:%\s]+)(?::(?P<port>[0-9]{1,5}))?")
_OPTION_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_SECRET: Final = re.compile(
    r"(?:password|passphrase|secret|token|credential|\.pem|\.key$|oauthbearer\.config)(?!.*_file$)", re.IGNORECASE
)
_MASK: Final = "***"
_GROUP: Final = "group.id"

CREDENTIALS: Final[tuple[str, ...]] = ("token", "token_file", "header")
"""Options of one node: its token, the file that holds it, and the header that carries it."""

_SECRET_LENGTH: Final = 6
"""Length from which a part of a node's URL counts as a secret: ``v3`` and ``rpc`` do not."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, repr=False)
class TransportUrl:
    """The URL of a stream.

    Attributes:
        scheme: of :func:`cardinal.config.schemes.known`.
        hosts: ``host:port`` of every server; a memory broker's name; a folder's path; nothing.
        user, password: decoded; None where the URL has none.
        options: the query, in order. Names and meanings are the transport's.
        members: of a mux: the first partition number and the URL of each.

    """

    scheme: str
    hosts: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: _NONE)
    members: tuple[tuple[int, TransportUrl], ...] = ()

    def without_group(self) -> TransportUrl:
        """The same without a consumer group: for a second reader, whose positions the group must not report."""
        options = {name: value for name, value in self.options.items() if name != _GROUP}
        members = tuple((first, member.without_group()) for first, member in self.members)
        return replace(self, options=MappingProxyType(options), members=members)

    def with_defaults(self, options: Mapping[str, str]) -> TransportUrl:
        """The same with these options where it has none of that name; members of a mux keep theirs."""
        return replace(self, options=MappingProxyType({**options, **self.options}))

    def with_options(self, options: Mapping[str, str]) -> TransportUrl:
        """The same with these options in place of its own of that name; members of a mux keep theirs."""
        return replace(self, options=MappingProxyType({**self.options, **options}))

    @property
    def address(self) -> str:
        """The servers or the folder, without credentials, for errors."""
        return ",".join(self.hosts) if not self.members else ",".join(one.address for _, one in self.members)

    def __str__(self) -> str:
        """The URL with every secret masked; without secrets, parsing it gives an equal value."""
        if self.members:
            return _MUX + ",".join(f"{first}={member}" for first, member in self.members)
        login = f"{_MASK}@" if self.user is not None or self.password is not None else ""
        shown = {name: _MASK if is_secret(name) else value for name, value in self.options.items()}
        query = f"?{urlencode(shown, safe='*/:', quote_via=quote)}" if shown else ""
        address = quote(self.address) if self.scheme == "file" else self.address
        return f"{self.scheme}://{login}{address}{query}"

    def __repr__(self) -> str:
        """The masked URL."""
        return f"TransportUrl({str(self)!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One node of a feed.

    Attributes:
        url: for the client alone: every part may hold a secret.
        parts: the same, parsed.
        credentials: of :data:`CREDENTIALS`, those that the URL gives.

    """

    url: str
    parts: SplitResult
    credentials: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """The only node of a URL without options of all nodes; raises as :func:`parse_node_url`."""
        (endpoint,) = parse_node_url(text).nodes
        return endpoint

    @property
    def address(self) -> str:
        """Scheme, host and port, for errors; of a local socket its path, which holds no key."""
        parts = self.parts
        if parts.scheme == "ipc":
            return f"ipc://{parts.path}"
        host = parts.hostname or ""
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"

    def secrets(self) -> Iterator[str]:
        """Secrets of the URL: encoded, decoded, and in the form of basic authentication."""
        parts = self.parts
        if parts.scheme == "ipc":
            return
        user, password = parts.username or "", parts.password or ""
        values = [option if "=" not in option else option.partition("=")[2] for option in parts.query.split("&")]
        texts = [*parts.path.split("/"), *values, *(value for _, value in parse_qsl(parts.query)), user]
        yield from (one for one in {*texts, *map(unquote, texts)} if len(one) >= _SECRET_LENGTH)
        yield from (one for one in (password, unquote(password)) if one)
        if user or password:
            login = f"{unquote(user)}:{unquote(password)}"
            yield from (b64encode(login.encode(encoding, "replace")).decode() for encoding in ("latin-1", "utf-8"))

    def __repr__(self) -> str:
        """The address."""
        return f"Endpoint({self.address!r})"


@dataclass(frozen=True, slots=True, repr=False)
class NodeUrl:
    """The URL of a feed of blocks.

    Attributes:
        nodes: one or more of one chain, the preferred one first.
        options: of all nodes. Names and meanings are the feed's.

    """

    nodes: tuple[Endpoint, ...]
    options: Mapping[str, str] = field(default_factory=lambda: _NONE)

    @property
    def scheme(self) -> str:
        """The scheme of the preferred node, by which the feed is chosen."""
        return self.nodes[0].parts.scheme

    def with_options(self, options: Mapping[str, str]) -> NodeUrl:
        """The same with these options in place of its own of that name."""
        return replace(self, options=MappingProxyType({**self.options, **options}))

    def __str__(self) -> str:
        """The addresses of all nodes."""
        return ", ".join(node.address for node in self.nodes)

    def __repr__(self) -> str:
        """The addresses."""
        return f"NodeUrl({str(self)!r})"


def is_secret(option: str) -> bool:
    """True if the value of an option with this name is never printed."""
    return bool(_SECRET.search(option))


def parse_url(url: str | TransportUrl) -> TransportUrl:
    """Parse the URL of a stream; a parsed one passes through.

    Raises:
        ConfigurationError: an unknown scheme, no host, an invalid port, an option given twice. The sentence contains
            the form to use and never the URL itself.

    """
    if isinstance(url, TransportUrl):
        return url
    check_text(url)
    if url[: len(_MUX)].lower() == _MUX:
        return _mux(url[len(_MUX) :])
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise _refused(f"a stream's URL begins with a scheme: write {schemes.shown()}")
    if (kind := schemes.transport(scheme) or schemes.destination(scheme)) is None:
        raise _unknown(scheme)
    location, _, query = rest.partition("?")
    if "#" in rest or "@" in query:
        raise _unreadable(scheme, kind)
    options = _options(scheme, kind, query)
    if scheme == "file":
        return TransportUrl(scheme, (_folder(location),), options=options)
    if "/" in (location := location.rstrip("/")) and "@" not in location:
        raise _unreadable(scheme, kind, ", without a topic: topics come from the application")
    authority = _AUTHORITY.fullmatch(location)
    if authority is None:
        raise _unreadable(scheme, kind)
    user, password = authority["user"], authority["password"]
    return TransportUrl(
        scheme,
        _hosts(scheme, kind, authority["hosts"]),
        unquote(user) if user else None,
        None if password is None else unquote(password),
        options,
    )


def mux_of(members: Sequence[tuple[int | None, TransportUrl]]) -> TransportUrl:
    """A mux of these members, each with its first partition number or None for the default.

    Raises:
        ConfigurationError: a member is a mux, or the numbers do not ascend.

    """
    numbered: list[tuple[int, TransportUrl]] = []
    for number, member in members:
        first = number if number is not None else numbered[-1][0] + _STRIDE if numbered else 0
        if member.scheme == "mux":
            raise _refused("a mux has no mux as a member: list all members in one")
        if numbered and first <= numbered[-1][0]:
            raise _refused(
                f"the first partition numbers of a mux's members ascend, and {first} follows {numbered[-1][0]}"
            )
        numbered.append((first, member))
    return TransportUrl("mux", (), members=tuple(numbered))


def numbered(text: str) -> tuple[int | None, str]:
    """The first partition number of a mux's member, or None, and the rest."""
    match = _NUMBERED.fullmatch(text)
    assert match is not None, "the expression matches every text"  # noqa: S101 - for the type checker
    return None if match["number"] is None else int(match["number"]), match["name"]


def parse_node_url(url: str | NodeUrl) -> NodeUrl:
    """Parse the URL of a feed; a parsed one passes through.

    Raises:
        ConfigurationError: no scheme, an invalid host or port, options of all nodes behind another than the last one.

    """
    if isinstance(url, NodeUrl):
        return url
    check_text(url)
    endpoints: list[Endpoint] = []
    options: dict[str, str] = {}
    for text in _NODE.split(url):
        if options:
            raise ConfigurationError(
                f"behind # of a node that is not the last there may be {', '.join(CREDENTIALS)}: write the other "
                "options behind the last node",
                setting="from",
            )
        address, _, fragment = text.partition("#")
        pairs = (option.partition("=") for option in fragment.split("&") if option)
        given = {unquote(name): unquote(value) for name, _, value in pairs}
        credentials = {name: given.pop(name) for name in CREDENTIALS if name in given}
        endpoints.append(Endpoint(address, _split_node(address), MappingProxyType(credentials)))
        options = given
    return NodeUrl(tuple(endpoints), MappingProxyType(options))


def check_text(url: object) -> None:
    """ConfigurationError for text that is neither a URL nor a name, such as a path."""
    if isinstance(url, PurePath):
        raise _refused("a URL is text, not a path: write f'file://{path}'")
    if not isinstance(url, str):
        raise _refused(f"a URL, or a name of the settings, is text, not {type(url).__name__}")


# --- parts -----------------------------------------------------------------------------------------------------------


def _split_node(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for an invalid one
    except ValueError:
        scheme = url.partition("://")[0].lower()
        raise ConfigurationError(
            f"the URL of the node cannot be read: write {_safe(scheme)}://host:port, and percent-encode the password",
            setting="from",
        ) from None
    if "://" not in url:
        forms = ", ".join(f"{name}://" for name in plugins.names(plugins.FEEDS))
        raise ConfigurationError(f"a node's URL begins with a scheme: write one of {forms}", setting="from")
    return parts


def _mux(text: str) -> TransportUrl:
    members: list[tuple[int | None, TransportUrl]] = []
    for part in _MEMBER.split(text):
        number, rest = numbered(part)
        members.append((number, parse_url(rest)))
    return mux_of(members)


def _folder(location: str) -> str:
    if "@" in location.partition("/")[0]:
        raise _refused("a file URL has no user and no password: write file://DIR, with %40 for an @ before the first /")
    folder = unquote(location)
    if not folder or "\0" in folder:
        raise _refused("a file URL names a folder: write file://DIR")
    return folder


def _hosts(scheme: str, kind: Scheme, text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if scheme == "null":
        if names:
            raise _refused("a null URL has no host: write null://")
        return ()
    if not names:
        raise _refused(f"this {scheme} URL names no host: write {kind.form}")
    return tuple(_host(scheme, kind, name, at) for at, name in enumerate(names, start=1))


def _host(scheme: str, kind: Scheme, text: str, at: int) -> str:
    """One host with its port; ``at``: its number in the URL, for errors, because its text may be a password."""
    if kind.port is None:
        return text
    match = _HOST.fullmatch(text)
    port = kind.port if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port <= _PORT_MAX:
        raise _refused(
            f"host {at} of this {scheme} URL cannot be read: write {kind.form}, with a port from 1 to {_PORT_MAX} "
            "and an IPv6 address in brackets, and an @ behind a percent-encoded password"
        )
    return f"{match['name']}:{port}"


def _options(scheme: str, kind: Scheme, query: str) -> Mapping[str, str]:
    options: dict[str, str] = {}
    for option in query.split("&") if query else ():
        name, equals, value = option.partition("=")
        name = unquote(name)
        if not equals or not _OPTION_NAME.fullmatch(name):
            raise _unreadable(scheme, kind)
        if name in options:
            raise ConfigurationError(f"this {scheme} URL gives the option {name!r} twice", setting=name)
        options[name] = unquote(value)
    return MappingProxyType(options)


def _unreadable(scheme: str, kind: Scheme, hint: str = "") -> ConfigurationError:
    encode = ", and percent-encode the password (%40 for @, %2F for /, %3F for ?, %23 for #)"
    form = kind.form.replace("kafka://", "kafka://user:password@")
    return _refused(f"this {scheme} URL cannot be read: write {form}?option=value&option=value{hint or encode}")


def _unknown(scheme: str) -> ConfigurationError:
    if scheme in plugins.names(plugins.FEEDS):
        return _refused(f"{scheme}:// is the URL of a node, not of a stream: write {schemes.shown()}")
    name = _safe(scheme)
    advice = nearest(name, schemes.known(), f"write {schemes.shown()}")
    return _refused(f"no transport is called {name!r}: {advice}")


def _refused(sentence: str) -> ConfigurationError:
    return ConfigurationError(sentence, setting="url")


def _safe(scheme: str) -> str:
    """A scheme for an error, masked unless it is well-formed: it may be a pasted secret."""
    return scheme if re.fullmatch(r"[a-z][a-z0-9+.-]{0,15}", scheme) else "…"
