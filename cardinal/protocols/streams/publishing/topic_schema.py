"""Topic schema, compiled: the topic that a path travels on, and the prefix that it is counted under.

An expression is anchored as a whole at the start of a path; no text, no match. Two that match one path are refused.

Most paths of a block share a few directories, and for most directories (all up to a "/") the route is the same for
every path below. :meth:`Router.runs` groups paths by directory, :meth:`Router.directory` finds the route once. That
holds for an expression every part of which is a plain character or a class that does not match "/", none of them a "/"
that is repeated or optional: each of its matches has as many "/" as the expression, so that all of it is

- inside the directory, where the directory has more "/" than the expression, or as many and the expression ends in one:
  the rest of the path cannot change it;
- nowhere, where the directory has fewer: a path that is directly in it has no more.

Only where they are as many and the expression continues after its last "/" is the complete path needed. Schemas with
other expressions are matched path by path.
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
"""The character right after "/": in the slash's place it sorts after all paths that begin with the directory."""


class Route(NamedTuple):
    """Destination of a path."""

    topic: str
    prefix: str


_route = partial(tuple.__new__, Route)
"""A route of two values in one step of the interpreter."""


class Unsure(Enum):
    """Result for a directory whose paths may have different routes."""

    NEEDS_PATH = "the complete path has to be matched"


class Router:
    """A compiled schema. ConfigurationError where an expression does not compile, or matches everything."""

    def __init__(self, schema: tuple[tuple[str, str], ...]) -> None:
        try:
            self._expressions = [(path_expression(f"(?:{source})"), topic) for source, topic in schema]
        except re.error as error:
            raise ConfigurationError(
                f"the expression {error.pattern!r} of the topic schema does not compile: {error.msg}",
                setting="topics",
            ) from None
        if len(schema) > 1 and any(not source for source, _ in schema):
            raise ConfigurationError(
                "an empty expression of the topic schema matches every path: remove it, or all others", setting="topics"
            )
        self._sources = tuple([source for source, _ in schema])
        self._plain = all(map(_PLAIN.fullmatch, self._sources))
        self._from: dict[int, re.Pattern[str]] = {}
        # As many "/" in a directory as one of these has, and the whole path decides.
        self._open_ended = {source.count("/") for source, _ in schema if not source.endswith("/")}
        self._depth = max((source.count("/") + (not source.endswith("/")) for source, _ in schema), default=0)

    def runs(self, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Sorted paths in runs that have a directory in common, the argument for :meth:`directory`.

        It is as deep as any expression; so its route holds for all below it, and one look-up is enough for them. In
        a directory that is not as deep the route holds for the paths directly in it. A directory may come twice.
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

        SplitError where several expressions match.
        """
        found = self._matching(path)
        if len(found) > 1:
            names = ", ".join(sorted(route.topic for route in found))
            raise SplitError(f"{path!r} matches {len(found)} expressions of the topic schema ({names})", path=path)
        return found[0] if found else None

    def directory(self, directory: str) -> Route | Unsure | None:
        """The result of :meth:`route` for every path in a directory (empty, or up to and with a path's last "/").

        Where several expressions match, each path is to be refused by its own name.
        """
        if not self._plain or directory.count("/") in self._open_ended:
            return Unsure.NEEDS_PATH
        found = self._matching(directory)
        if len(found) > 1:
            return Unsure.NEEDS_PATH
        return found[0] if found else None

    def _matching(self, path: str) -> list[Route]:
        """The routes of all expressions that match some text of a path."""
        found: list[Route] = []
        if not self._plain:
            matches = ((expression.match(path), topic) for expression, topic in self._expressions)
            return [Route(topic, match.group()) for match, topic in matches if match is not None and match.group()]
        tried = 0
        # One match for all of them, and mostly one for those after the one that matches.
        while tried < len(self._expressions) and (match := self._any_from(tried).match(path)) is not None:
            tried += match.lastindex or 0
            if text := match.group():
                found.append(_route((self._expressions[tried - 1][1], text)))
        return found

    def _any_from(self, first: int) -> re.Pattern[str]:
        """One expression for this expression and all after it; the group that matches names the first of them.

        Plain expressions have no groups of their own. The directory that neighbours share is matched once: a block's
        hash, which most directories contain, takes longer to match than the rest.
        """
        if (pattern := self._from.get(first)) is None:
            alike = groupby(self._sources[first:], _above)
            parts = [(above, "|".join([f"({source[len(above) :]})" for source in sources])) for above, sources in alike]
            pattern = self._from[first] = path_expression("|".join([f"{above}(?:{rest})" for above, rest in parts]))
        return pattern


def _above(source: str) -> str:
    """The directory that holds the last part of a plain expression."""
    return source[: source.rfind("/", 0, -1) + 1]
