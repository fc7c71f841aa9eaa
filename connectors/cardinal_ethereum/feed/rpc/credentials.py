"""Credentials of a node: a token from its URL's options, or from the file that they name.

    https://node.example#token_file=/run/secrets/node                       Authorization: Bearer …
    https://node.example#token_file=/run/secrets/node&header=X-Api-Key      X-Api-Key: …

Rules:

1. Without ``header`` the token is sent as a Bearer token; with it, unchanged in that header. User and password before
   the host (``https://user:password@host``) are basic authentication.
2. The file is read when the feed is opened, and re-read when the node refuses the token, because gateways rotate tokens
   while feeds run. If that fails, the old token remains.
3. A request is retried only with another token than the refused one. A wrong token costs one request.
4. A token is in no error, no log and no ``repr``. It is not sent to the target of a redirection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cardinal.config.secrets import read_secret
from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError

REFUSED: Final = frozenset({401, 403})
"""Statuses of HTTP for refused credentials."""

_BEARER: Final = "Authorization"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_SCHEMES: Final = frozenset({"http", "https", "ws", "wss"})
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Credentials:
    """The credentials of one node.

    Arguments:
        token: the token; None where a file holds it, or none is sent.
        file: the file that holds it.
        header: the header that carries it unchanged; None: ``Authorization``, as a Bearer token.

    Attributes:
        headers: sent with each request; holds the token.
        renewals: number of tokens that were re-read from the file. Another token may lead to another node.

    Raises:
        ConfigurationError: there are two tokens, or a header without one; the file cannot be read, or its content does
            not fit in a header.

    """

    __slots__ = ("_before", "_file", "_header", "_token", "headers", "renewals")

    def __init__(self, token: str | None = None, file: Path | None = None, header: str | None = None) -> None:
        if token is not None and file is not None:
            raise ConfigurationError(
                "the token of a node is given twice: leave token or token_file out", setting="token_file"
            )
        if header is not None and token is None and file is None:
            raise ConfigurationError("header carries a token: give token_file=PATH, too", setting="header")
        if header is not None and not _NAME.fullmatch(header):
            raise ConfigurationError("header is the name of a header, as in header=X-Api-Key", setting="header")
        self._file = file
        self._header = header
        self._before: str | None = None
        self._token = read_secret(file, "token_file") if file is not None else token
        self.headers = self._headers_of(self._token)
        self.renewals = 0

    @classmethod
    def of(cls, endpoint: Endpoint) -> Credentials:
        """The credentials of an endpoint; raises as the class."""
        given, parts = endpoint.credentials, endpoint.parts
        file = given.get("token_file")
        credentials = cls(given.get("token"), None if file is None else Path(file), given.get("header"))
        if credentials.headers and parts.scheme not in _SCHEMES:
            raise ConfigurationError("a local socket has no use for a token: leave it out", setting="token_file")
        if credentials.bears and parts.username is not None:
            raise ConfigurationError(
                "the node's URL has a user, and its token is sent in the same header: leave one of them out",
                setting="token_file",
            )
        return credentials

    @property
    def bears(self) -> bool:
        """True if the token uses the header of basic authentication."""
        return any(name.lower() == _BEARER.lower() for name in self.headers)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Secrets that a node may repeat: the token, and the one before it."""
        return tuple(one for one in (self._token, self._before) if one)

    @property
    def advice(self) -> str:
        """The remedy where the node refuses them."""
        if self._file is not None:
            return f"check the token in {self._file}"
        if self._token is not None:
            return "check the token behind # of its URL"
        return "check those in the URL, or give a token by token_file=PATH behind #"

    def renewed(self, refused: Mapping[str, str]) -> bool:
        """True if there is another token than in these refused headers, also after re-reading the file."""
        if self.headers == refused:
            self._read_again()
        return self.headers != refused

    def _read_again(self) -> None:
        if self._file is None:
            return
        try:
            token = read_secret(self._file, "token_file")
            headers = self._headers_of(token)
        except ConfigurationError:
            return  # it is being replaced, and may be missing or empty
        if headers != self.headers:
            self._before, self._token, self.headers = self._token, token, headers
            self.renewals += 1

    def _headers_of(self, token: str | None) -> Mapping[str, str]:
        if token is None:
            return _NOTHING
        if not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise ConfigurationError("the token has characters that no header can carry", setting="token")
        value = f"Bearer {token}" if self._header is None else token
        return MappingProxyType({self._header or _BEARER: value})
