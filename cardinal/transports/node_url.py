"""A node's URL as text: one node or several of one chain, and options behind ``#``, which no node ever sees.

    https://one#token_file=/run/secrets/one,ws://two:8546#lag=2&rate=50

Rules:

1. Nodes are divided by commas, the preferred one first. A comma divides only where a scheme follows.
2. What a node is shown (:data:`OWN`) belongs to the one node that it stands behind: no node is shown what is another
   one's. The other options stand behind the last node and belong to all.
3. Of an option that stands there twice the last counts.
4. A ``+`` is one: tokens and names of files have them.

What the options mean is the feed's business. Nothing here is an error: a feed says what it cannot read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN: Final = ("token", "token_file", "header")
"""Options of one node: what it is shown, the file that holds it, and the header that carries it."""

_DIVIDES: Final = re.compile(r",(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")


class NodeUrl(NamedTuple):
    """One node: its URL, and the options behind it as they were written. Both may hold secrets."""

    url: str
    options: str = ""

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.url}#{self.options}" if self.options else self.url

    @property
    def own(self) -> str:
        """Of the options those that belong to this node alone."""
        return "&".join(one for one in _each(self.options) if _name(one) in OWN)

    @property
    def others(self) -> str:
        """The options that belong to all nodes."""
        return "&".join(one for one in _each(self.options) if _name(one) not in OWN)

    def with_options(self, *options: str) -> NodeUrl:
        """The same with these options, each perhaps several or none, behind those that are there."""
        return NodeUrl(self.url, "&".join(filter(None, (self.options, *options))))


def split_nodes(text: str) -> list[NodeUrl]:
    """The nodes of a URL, at least one."""
    return [NodeUrl(url, options) for url, _, options in (one.partition("#") for one in _DIVIDES.split(text))]


def join_nodes(nodes: Iterable[NodeUrl]) -> str:
    """Nodes as one URL."""
    return ",".join(map(str, nodes))


def options_of_all(text: str) -> list[tuple[str, str]]:
    """Names and values of the options behind the last node that are not its own alone."""
    return [(_name(one), _value(one)) for one in _each(split_nodes(text)[-1].others)]


def own_options(node: str) -> dict[str, str]:
    """What one node is shown, from its URL."""
    return {_name(one): _value(one) for one in _each(split_nodes(node)[-1].own)}


def written(options: Mapping[str, str]) -> str:
    """Options as they stand behind a ``#``."""
    return "&".join(f"{name}={quote(value)}" for name, value in options.items())


def without(options: str, names: Sequence[str]) -> str:
    """Options but these."""
    return "&".join(one for one in _each(options) if _name(one) not in names)


def _each(options: str) -> list[str]:
    return [one for one in options.split("&") if one]


def _name(option: str) -> str:
    return unquote(option.partition("=")[0])


def _value(option: str) -> str:
    return unquote(option.partition("=")[2])
