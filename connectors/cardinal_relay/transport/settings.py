"""The options of ``ws://``, ``wss://`` and ``cardinal://`` URLs.

Several hosts are several servers of the same stream: when one is unreachable, the next is used.
``cardinal://`` is the Go implementation's name for its websocket; here it equals ``ws://``.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, SecretStr

from cardinal.config.secrets import variable
from cardinal.errors import ConfigurationError
from cardinal.transports.options import TransportOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.config.url import TransportUrl

TOKEN_VARIABLE: Final = "CARDINAL_TOKEN"  # noqa: S105 - the variable's name
_CA: Final = "ssl.ca.location"
_CERTIFICATE: Final = "ssl.certificate.location"
_KEY: Final = "ssl.key.location"
_KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105 - the option's name


class WebsocketOptions(TransportOptions):
    """Options of a URL."""

    token: SecretStr | None = None
    """The server's token; ``token_file`` gives the file that holds it. Default: the environment variable
    ``CARDINAL_TOKEN``"""
    ca: str | None = Field(default=None, alias=_CA)
    """A PEM file with the authority that signed the server's certificate. Default: the system's authorities"""
    certificate: str | None = Field(default=None, alias=_CERTIFICATE)
    """A PEM file with the client's certificate, for servers that require one"""
    key: str | None = Field(default=None, alias=_KEY)
    """A PEM file with the certificate's key, where the certificate's file does not hold it"""
    key_password: SecretStr | None = Field(default=None, alias=_KEY_PASSWORD)
    """The key's password; ``ssl.key.password_file`` gives the file that holds it"""
    path: Annotated[str, Field(pattern=r"^/[!-~]*$")] = "/"
    """The resource behind the host, where a proxy needs one"""
    window: Annotated[int, Field(ge=1_000, le=1 << 30, alias="window.bytes")] = 8 << 20
    """Bytes that may be on their way or not yet read; a client holds at most these and one message"""
    frame_max: Annotated[int, Field(ge=1_000, le=1 << 30, alias="max.frame.bytes")] = 16 << 20
    """The largest message, thus the largest record, that a client accepts"""
    connect_timeout_ms: Annotated[int, Field(ge=1, le=600_000, alias="cardinal.connect.timeout.ms")] = 10_000
    """Milliseconds in which a server must accept a connection, or answer"""
    ping_interval_ms: Annotated[int, Field(ge=10, le=600_000, alias="ping.interval.ms")] = 20_000
    """Milliseconds between two pings; a server that is silent for three intervals is unreachable"""


@dataclass(frozen=True, slots=True, repr=False)
class WebsocketSettings:
    """Addresses and limits of a client.

    Attributes:
        addresses: the websocket URIs of all of them.
        address: their hosts, for errors.
        headers: of the handshake; they hold the token.
        tls: makes the context for ``wss``; None for ``ws``.
        window, frame_max: bytes.
        connect_timeout, ping_interval: seconds.

    """

    addresses: tuple[str, ...]
    address: str
    headers: tuple[tuple[str, str], ...]
    tls: Callable[[], ssl.SSLContext] | None
    window: int
    frame_max: int
    connect_timeout: float
    ping_interval: float


def websocket_settings(url: TransportUrl) -> WebsocketSettings:
    """The settings of a URL. ConfigurationError names the option that cannot work, and never a token."""
    if url.user is not None or url.password is not None:
        raise ConfigurationError(
            f"a {url.scheme} URL has no user or password: set the server's token with token_file=PATH",
            setting="token_file",
        )
    options = WebsocketOptions.of(url)
    secure = url.scheme == "wss"
    _check_tls(options, url, secure=secure)
    token = options.token.get_secret_value() if options.token else variable(TOKEN_VARIABLE)
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token):
        origin = "" if options.token else f" of {TOKEN_VARIABLE}"
        raise ConfigurationError(f"the token{origin} has characters that no header can carry", setting="token")
    return WebsocketSettings(
        addresses=tuple(f"{'wss' if secure else 'ws'}://{host}{options.path}" for host in url.hosts),
        address=url.address,
        headers=(("Authorization", f"Bearer {token}"),) if token else (),
        tls=(lambda: _context(options)) if secure else None,
        window=options.window,
        frame_max=options.frame_max,
        connect_timeout=options.connect_timeout_ms / 1000,
        ping_interval=options.ping_interval_ms / 1000,
    )


def _check_tls(options: WebsocketOptions, url: TransportUrl, *, secure: bool) -> None:
    """Refuse options that would be ignored."""
    keys = [name for name, value in ((_KEY, options.key), (_KEY_PASSWORD, options.key_password)) if value]
    others = [name for name, value in ((_CA, options.ca), (_CERTIFICATE, options.certificate)) if value]
    if not secure and (keys or others):
        raise ConfigurationError(
            f"{[*others, *keys][0]} is for TLS, and {url.scheme}:// is not encrypted: write wss://{url.address}",
            setting="url",
        )
    if keys and not options.certificate:
        raise ConfigurationError(f"{keys[0]} is of no use without {_CERTIFICATE}: give both", setting=keys[0])


def _context(options: WebsocketOptions) -> ssl.SSLContext:
    """The TLS context of a client. ConfigurationError: a file cannot be used."""
    option = _CA
    try:
        context = ssl.create_default_context(cafile=options.ca and Path(options.ca).expanduser())
        if options.ca:
            # From 3.13 on Python refuses private authorities whose certificates lack identifiers of keys, which a plain
            # `openssl req` makes and Kafka's and gRPC's clients take: one file serves all transports, on every Python.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        option = _CERTIFICATE
        if options.certificate:
            password = options.key_password.get_secret_value() if options.key_password else ""
            context.load_cert_chain(options.certificate, options.key, password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        if isinstance(error, ssl.SSLError):  # OpenSSL's own words say where in its code
            reason = "it holds no PEM of that kind, or its password is another one"
        raise ConfigurationError(f"the file of {option} cannot be used: {reason}", setting=option) from None
    return context
