"""Topic schema, compiled: the topic that a path travels on, and the prefix that it is counted under.

Rules:

1. An expression is anchored as a whole at the start of a path. The text that it matched is the counted prefix; no text,
   no match. Two expressions that match one path are refused.
2. Most paths of a block share a few directories, and for most directories (all up to a "/") the answer is the same
   whatever follows. :meth:`Router.runs` says which these are, :meth:`Router.directory` finds the answer once. It holds
   for an expression every part of which is a plain character or a class that does not match "/", none of them a "/"
   that is repeated or optional: each of its matches has as many "/" as the expression, so that all of it lies

   - inside the directory, where the directory has more "/" than the expression, or as many and the expression ends in
     one: what follows cannot change it;
   - nowhere, where the directory has fewer: a path that lies directly in it has no more.

   Only where they are as many and the expression goes on after its last "/" does it take the whole path to know.
   Schemas with other expressions are asked path by path.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from cardinal.errors import ConfigurationError, SplitError
from cardinal.protocols.streams.types import path_expression

_PLAIN: Final = re.compile(
    r"""(?:
        (?: [A-Za-z0-9_:;,=@%&~<>'"!#\ \-] | \\[wd.\-] | \[ (?: [A-Za-z0-9_] (?: - [A-Za-z0-9_] )? )+ \] )
        (?: [+*?] | \{ [0-9]+ (?: , [0-9]* )? \} )?
      | /
    )*""",
    re.VERBOSE,
)
"""Expressions of which rule 2 holds: what stands before a quantifier never matches a "/"."""

_BEHIND_SLASH: Final = chr(ord("/") + 1)
"""What sorts right behind a "/", and so behind all that begins with a directory when it stands in the slash's place."""


class Route(NamedTuple):
    """Where a path goes."""

    topic: str
    prefix: str


_route = partial(tuple.__new__, Route)
"""A route of two values in one step of the interpreter."""


class Unsure(Enum):
    """The answer to a question about a directory whose paths may go different ways."""

    ASK_PATH = "the whole path has to be looked at"


class Router:
    """A compiled schema.

    Arguments:
        schema: expression and topic.

    Raises:
        ConfigurationError: an expression does not compile, or matches everything.

    """

    def __init__(self, schema: tuple[tuple[str, str], ...]) -> None:
        try:
            self._expressions = [(path_expression(f"(?:{source})"), topic) for source, topic in schema]
        except re.error as error:
            raise ConfigurationError(
                f"the topic schema holds an expression that does not compile: {error.pattern!r} ({error.msg})",
                setting="topics",
            ) from None
        if len(schema) > 1 and any(not source for source, _ in schema):
            raise ConfigurationError("an empty expression beside others matches every path", setting="topics")
        self._sources = tuple([source for source, _ in schema])
        self._plain = all(map(_PLAIN.fullmatch, self._sources))
        self._from: dict[int, re.Pattern[str]] = {}
        # As many "/" in a directory as one of these has, and the whole path decides.
        self._open_ended = {source.count("/") for source, _ in schema if not source.endswith("/")}
        self._depth = max((source.count("/") + (not source.endswith("/")) for source, _ in schema), default=0)

    def runs(self, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Sorted paths in runs that have a directory in common, the one that :meth:`directory` is to be asked for.

        It is as deep as any expression asks for; so it holds for all below it, and one question is enough for them. In
        a directory that is not as deep it holds for what lies directly in it. A directory may come twice.
        """
        at, count = 0, len(paths)
        while at < count:
            path = paths[at]
            parts = path.split("/", self._depth)
            stem = path[: len(path) - len(parts[-1])]
            if len(parts) > self._depth:
                end = bisect_left(paths, stem[:-1] + _BEHIND_SLASH, at) if stem else count
            else:
                end = at + 1
                while end < count and paths[end].startswith(stem) and paths[end].rfind("/") == len(stem) - 1:
                    end += 1
            yield stem, paths[at:end]
            at = end

    def route(self, path: str) -> Route | None:
        """The topic and counted prefix of a path, None where it travels in the Batch.

        Raises:
            SplitError: several expressions match it.

        """
        found = self._matching(path)
        if len(found) > 1:
            names = ", ".join(sorted(route.topic for route in found))
            raise SplitError(f"{path!r} matches {len(found)} expressions of the topic schema ({names})", path=path)
        return found[0] if found else None

    def directory(self, directory: str) -> Route | Unsure | None:
        """What :meth:`route` says of every path in a directory (empty, or up to and with a path's last "/").

        Raises:
            SplitError: several expressions match whatever lies there.

        """
        if not self._plain or directory.count("/") in self._open_ended:
            return Unsure.ASK_PATH
        return self.route(directory)

    def _matching(self, path: str) -> list[Route]:
        """The routes of all expressions that match some text of a path."""
        found: list[Route] = []
        if not self._plain:
            matches = ((expression.match(path), topic) for expression, topic in self._expressions)
            return [Route(topic, match.group()) for match, topic in matches if match is not None and match.group()]
        asked = 0
        # One question for all of them, and mostly one for those behind the one that matches.
        while asked < len(self._expressions) and (match := self._any_from(asked).match(path)) is not None:
            asked += match.lastindex or 0
            if text := match.group():
                found.append(_route((self._expressions[asked - 1][1], text)))
        return found

    def _any_from(self, first: int) -> re.Pattern[str]:
        """What matches where any expression from this one on does; its group says which is the first to.

        Plain expressions have no groups of their own. Neighbours in one directory are asked for it once: a block's
        hash, which most have in it, takes longer to match than what follows.
        """
        if (known := self._from.get(first)) is None:
            alike = groupby(self._sources[first:], _above)
            parts = [(above, "|".join([f"({source[len(above) :]})" for source in sources])) for above, sources in alike]
            known = self._from[first] = path_expression("|".join([f"{above}(?:{rest})" for above, rest in parts]))
        return known


def _above(source: str) -> str:
    """The directory that holds the last part of a plain expression."""
    return source[: source.rfind("/", 0, -1) + 1]
