"""Texts to transport URLs. The forms and rules are those of :mod:`.url`.

No error repeats what was written but ports that are numbers, the hosts before them, and names of options: the rest may
be a secret. Where a password's ``?`` is not escaped, or the ``@`` behind it is left out, it stands in another part's
place.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

from cardinal.errors import ConfigurationError

from .address import TransportUrl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_SEVERAL: Final = re.compile(r"@.*[,:]|^[^:]*:[0-9]{1,5},.*:", re.DOTALL)
"""Before the last ``@``: a host behind another ``@``, or one with its port before a user."""
_SHORT_NUMBER: Final = re.compile(r"[0-9]{1,5}")
_MUX: Final = "mux:"
_MEMBER: Final = re.compile(r",(?=(?:\d{1,9}=)?[A-Za-z][A-Za-z0-9+.-]*://)")
_NUMBERED: Final = re.compile(r"(?:(\d{1,9})=)?(.*)", re.DOTALL)
_STRIDE: Final = 64
"""Partition numbers that a member of a mux has for itself unless the URL says otherwise: DESIGN's bound for cursors."""


def parse_url(url: str | TransportUrl) -> TransportUrl:
    """Take a transport URL apart.

    Raises:
        ConfigurationError: an unknown scheme, no host, a port that is none, an option given twice. The sentence
            shows the form to use and never the URL itself, which may hold a password.

    """
    if isinstance(url, TransportUrl):
        return url
    check_text(url)
    if url[: len(_MUX)].lower() == _MUX:
        return _mux(url[len(_MUX) :])
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise ConfigurationError(f"a transport URL begins with a scheme: write {_all_forms()}", setting="url")
    if scheme not in _FORMS:
        raise ConfigurationError(f"no transport is called {_safe_name(scheme)!r}: write {_all_forms()}", setting="url")
    form = _FORMS[scheme]
    parts, options = _split(scheme, url)
    if scheme == "file":
        return _file(parts, options)
    if parts.path.strip("/") or parts.fragment:
        raise ConfigurationError(
            f"a {scheme} URL has nothing after its hosts but options (topics come from the application): write {form}",
            setting="url",
        )
    if scheme == "null":
        if parts.netloc:
            login = ", and has no user and no password" if "@" in parts.netloc else ""
            raise ConfigurationError(f"a null URL names nothing{login}: write {form}", setting="url")
        return TransportUrl(scheme, (), options=_options(scheme, options))
    user, password, where = _login(scheme, parts.netloc)
    return TransportUrl(scheme, _hosts(scheme, where), user, password, _options(scheme, options))


def check_text(url: object) -> None:
    """ConfigurationError for what is neither a URL nor a name, such as a path."""
    if isinstance(url, PurePath):
        raise ConfigurationError("a stream is named by text, not by a path: write f'file://{path}'", setting="url")
    if not isinstance(url, str):
        raise ConfigurationError(
            f"a stream is named by text, a URL or a name of the settings, not by {type(url).__name__}", setting="url"
        )


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


def _split(scheme: str, url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The URL's parts, and the names and values of its options."""
    try:
        parts = urlsplit(url)
        options = _pairs(parts.query)
    except ValueError:
        if scheme != "file" and "@" in url.partition("?")[2]:
            raise _misplaced(scheme) from None
        raise ConfigurationError(
            f"this {scheme} URL cannot be read: write {_FORMS[scheme]}?option=value&option=value", setting="url"
        ) from None
    names = (name for name, _ in options)
    if scheme != "file" and re.search("[@?]", " ".join((parts.path, parts.fragment, *names))):
        raise _misplaced(scheme)
    return parts, options


def _pairs(query: str) -> list[tuple[str, str]]:
    """Names and values of a query, a ``+`` in them being one: secrets have them. ValueError: an option has no ``=``."""
    pairs: list[tuple[str, str]] = []
    for option in query.split("&") if query else ():
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError
        pairs.append((unquote(name), unquote(value)))
    return pairs


def _mux(text: str) -> TransportUrl:
    members: list[tuple[int | None, TransportUrl]] = []
    for part in _MEMBER.split(text):
        number, rest = _NUMBERED.fullmatch(part).groups()  # type: ignore[union-attr] # it matches every text
        members.append((None if number is None else int(number), parse_url(rest)))
    return mux_of(members)


def _file(parts: SplitResult, options: list[tuple[str, str]]) -> TransportUrl:
    if "@" in parts.netloc + parts.query:
        raise ConfigurationError(
            f"a file URL has no user and no password: write {_FORMS['file']}, with %40 for an @ before the first /",
            setting="url",
        )
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


def _misplaced(scheme: str) -> ConfigurationError:
    """A part of the user or the password stands where a host or an option belongs, and is not repeated."""
    if scheme != "kafka":
        return ConfigurationError(
            f"a {scheme} URL has no user and no password: write {_FORMS[scheme]}, one ? before its options if it has "
            "some, and %3F or %40 for a ? or @ of another meaning",
            setting="url",
        )
    return ConfigurationError(
        f"this {scheme} URL has an @ or a ? where none belongs: write {scheme}://user:password@host:port, with %3F, "
        "%23, %2F or %40 for a ?, #, / or @ in a user or password",
        setting="url",
    )


def _login(scheme: str, netloc: str) -> tuple[str | None, str | None, str]:
    """User, password, and the text of the hosts behind them."""
    who, _, where = netloc.rpartition("@")
    if _SEVERAL.search(who):
        raise ConfigurationError(
            f"a user and a password stand once in a {scheme} URL, before its first host: write "
            f"{scheme}://user:password@host:port,host:port, with %40, %2C or %3A for an @, a comma or a colon in them",
            setting="url",
        )
    user, has_password, password = who.partition(":")
    return unquote(user) if user else None, unquote(password) if has_password else None, where


def _hosts(scheme: str, text: str) -> tuple[str, ...]:
    hosts = tuple(_host(scheme, host, at) for at, host in enumerate(filter(None, text.split(",")), start=1))
    if not hosts:
        raise ConfigurationError(f"this {scheme} URL names no host: write {_FORMS[scheme]}", setting="url")
    return hosts


def _host(scheme: str, text: str, at: int) -> str:
    """One host with its port; ``at``: which of the URL's hosts, as its text may be a password."""
    default = _DEFAULT_PORTS.get(scheme)
    if default is None:
        return text
    if "%40" in text:
        raise _misplaced(scheme)
    # An IPv6 address stands in brackets, so that its colons are not taken for the port's.
    match = re.fullmatch(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/?#\s]+)(?::(?P<port>.*))?", text, re.DOTALL)
    if match is None:
        raise ConfigurationError(
            f"what this {scheme} URL has as host {at} is no host: write {_FORMS[scheme]}, an IPv6 address in brackets",
            setting="url",
        )
    port = match["port"]
    if port is None:
        return f"{match['name']}:{default}"
    if not _SHORT_NUMBER.fullmatch(port):
        raise ConfigurationError(
            f"what this {scheme} URL has behind the colon of host {at} is no port: write a number from 1 to "
            f"{_PORT_MAX}, as in {_FORMS[scheme]}, and an @ behind a password",
            setting="url",
        )
    if not 0 < int(port) <= _PORT_MAX:
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
