"""A transport URL in parts, and what of it is never printed.

The value only: how a text is taken apart says :mod:`.parsing`, where a secret comes from :mod:`.secrets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET: Final = re.compile(
    r"(?:password|passphrase|secret|token|credential|\.pem|\.key$|oauthbearer\.config)(?!.*_file$)", re.IGNORECASE
)
_MASK: Final = "***"
_GROUP: Final = "group.id"


@dataclass(frozen=True, slots=True, repr=False)
class TransportUrl:
    """A transport URL in parts.

    Attributes:
        scheme: ``kafka``, ``memory``, ``file``, ``null``, ``mux``, ``ws``, ``wss``, ``cardinal``.
        hosts: ``host:port`` of every server; a memory broker's name; a folder's path; nothing.
        user, password: decoded; None where the URL has none.
        options: the query, in order. Names and meanings are the transport's.
        members: of a mux: the first partition number and the URL of each.
        unread: the same URL before the files of its secrets were read; None where it names none.

    """

    scheme: str
    hosts: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None)
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    members: tuple[tuple[int, TransportUrl], ...] = ()
    unread: TransportUrl | None = field(default=None, compare=False)

    def beside(self) -> TransportUrl:
        """The same for a reader beside another one: it is of no group, whose lag says how far the other is."""
        options = {name: value for name, value in self.options.items() if name != _GROUP}
        members = tuple((first, member.beside()) for first, member in self.members)
        unread = None if self.unread is None else self.unread.beside()
        return replace(self, options=MappingProxyType(options), members=members, unread=unread)

    def preferring(self, options: Mapping[str, str]) -> TransportUrl:
        """The same with these options, where it has none of that name; members of a mux keep theirs."""
        unread = None if self.unread is None else self.unread.preferring(options)
        return replace(self, options=MappingProxyType({**options, **self.options}), unread=unread)

    def replacing(self, options: Mapping[str, str]) -> TransportUrl:
        """The same with these options, in place of its own of that name; members of a mux keep theirs."""
        unread = None if self.unread is None else self.unread.replacing(options)
        return replace(self, options=MappingProxyType({**self.options, **options}), unread=unread)

    @property
    def address(self) -> str:
        """The servers or the folder, without credentials: what an error may name."""
        return ",".join(self.hosts) if not self.members else ",".join(one.address for _, one in self.members)

    def __str__(self) -> str:
        """The URL with every secret masked; without any it reads back equal."""
        if self.members:
            return "mux:" + ",".join(f"{first}={member}" for first, member in self.members)
        who = f"{_MASK}@" if self.user is not None or self.password is not None else ""
        # Behind a ? that a password has unescaped stands its rest, up to the @.
        shown = {name: _MASK if is_secret(name) or "@" in value else value for name, value in self.options.items()}
        query = f"?{urlencode(shown, safe='*/:', quote_via=quote)}" if shown else ""
        where = quote(self.address) if self.scheme == "file" else self.address
        return f"{self.scheme}://{who}{where}{query}"

    def __repr__(self) -> str:
        """The masked URL."""
        return f"TransportUrl({str(self)!r})"


def is_secret(option: str) -> bool:
    """Whether the value of an option with this name is never to be shown."""
    return bool(_SECRET.search(option))
