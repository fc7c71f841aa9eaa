"""What a node is shown before it answers: a token from its URL's options, or from the file that they name.

    https://node.example#token_file=/run/secrets/node                       Authorization: Bearer …
    https://node.example#token_file=/run/secrets/node&header=X-Api-Key      X-Api-Key: …

Rules:

1. Without ``header`` the token is a Bearer's; under the name that ``header`` gives it stands as it is. User and
   password before the host (``https://user:password@host``) are basic authentication, and need nothing of this.
2. The file is read when the feed is opened, and again when the node refuses what was shown, because tokens are changed
   while feeds run. What cannot be read or shown then is as if it had not changed.
3. A request is made again only with another token than it was refused with. A wrong token costs one request.
4. A token is in no error, no log and no ``repr``. It is not sent to where a node sends its callers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from cardinal.errors import ConfigurationError
from cardinal.transports.node_url import own_options
from cardinal.transports.secrets import read_secret

REFUSED: Final = frozenset({401, 403})
"""Statuses of HTTP that say no to credentials."""

_BEARER: Final = "Authorization"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_SCHEMES: Final = frozenset({"http", "https", "ws", "wss"})
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Credentials:
    """What one node is shown.

    Arguments:
        token: the token; None where a file holds it, or nothing is shown.
        file: the file that holds it.
        header: the header that carries it as it is; None: ``Authorization``, as a Bearer.

    Attributes:
        headers: what is sent with each request; holds the token.
        renewals: how often another token was taken from the file. Behind another token there may be another node.

    Raises:
        ConfigurationError: there are two tokens, or a header without one; the file cannot be read; no header can carry
            what it holds.

    """

    __slots__ = ("_before", "_file", "_header", "_token", "headers", "renewals")

    def __init__(self, token: str | None = None, file: Path | None = None, header: str | None = None) -> None:
        if token is not None and file is not None:
            raise ConfigurationError(
                "the token of a node is given in two ways: leave token or token_file out", setting="token_file"
            )
        if header is not None and token is None and file is None:
            raise ConfigurationError("header says where a token is shown: give token_file=PATH, too", setting="header")
        if header is not None and not _NAME.fullmatch(header):
            raise ConfigurationError("header is the name of a header, as in header=X-Api-Key", setting="header")
        self._file = file
        self._header = header
        self._before: str | None = None
        self._token = read_secret(file, "token_file") if file is not None else token
        self.headers = self._shown(self._token)
        self.renewals = 0

    @classmethod
    def of(cls, url: str) -> Credentials:
        """What the node of this URL is shown; ConfigurationError where it cannot be, as for the class."""
        options = own_options(url)
        file = options.get("token_file")
        shown = cls(options.get("token"), None if file is None else Path(file), options.get("header"))
        parts = urlsplit(url)
        if shown.headers and parts.scheme.lower() not in _SCHEMES:
            raise ConfigurationError("a node's socket is shown no token: leave it out", setting="token_file")
        if shown.bears and parts.username is not None:
            raise ConfigurationError(
                "what the node is shown is given in two ways: leave the user out of its URL, or the token",
                setting="token_file",
            )
        return shown

    @property
    def bears(self) -> bool:
        """Whether it takes the header that basic authentication would."""
        return any(name.lower() == _BEARER.lower() for name in self.headers)

    @property
    def hidden(self) -> tuple[str, ...]:
        """What a node may repeat and nobody is to see: the token, and the one before it."""
        return tuple(one for one in (self._token, self._before) if one)

    @property
    def advice(self) -> str:
        """What to look at where the node refuses them."""
        if self._file is not None:
            return f"check the token in {self._file}"
        if self._token is not None:
            return "check the token behind # of its URL"
        return "check those in the URL, or give a token by token_file=PATH behind #"

    def renewed(self, shown: Mapping[str, str]) -> bool:
        """Whether there is anything else to show than this, which was refused. Reads the file where there is not."""
        if self.headers == shown:
            self._read_again()
        return self.headers != shown

    def _read_again(self) -> None:
        if self._file is None:
            return
        try:
            token = read_secret(self._file, "token_file")
            headers = self._shown(token)
        except ConfigurationError:
            return  # it is being replaced, and may be away or empty for a moment
        if headers != self.headers:
            self._before, self._token, self.headers = self._token, token, headers
            self.renewals += 1

    def _shown(self, token: str | None) -> Mapping[str, str]:
        if token is None:
            return _NOTHING
        if not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise ConfigurationError("the token has characters that no header can carry", setting="token")
        value = f"Bearer {token}" if self._header is None else token
        return MappingProxyType({self._header or _BEARER: value})
