"""Which topic a path travels on and under which prefix it is counted: the producer's schema, compiled.

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
3. For the same reason such an expression matches a path part by part, where both are cut at each "/". So it is
   remembered which expressions are still in question below a directory, and what they say to the rest of a path: the
   one comes again in a block, the other in every block.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeAlias

from cardinal.errors import ConfigurationError, SplitError

_PLAIN: Final = re.compile(
    r"""(?:
        (?: [A-Za-z0-9_:;,=@%&~<>'"!#\ \-] | \\[wd.\-] | \[ (?: [A-Za-z0-9_] (?: - [A-Za-z0-9_] )? )+ \] )
        (?: [+*?] | \{ [0-9]+ (?: , [0-9]* )? \} )?
      | /
    )*""",
    re.VERBOSE,
)
"""Expressions of which rule 2 holds: what stands before a quantifier never matches a "/"."""

_LONG: Final = 256
"""Characters of a directory, or of what follows, up to which the answer is remembered."""

_REMEMBERED: Final = 256

_Open: TypeAlias = tuple[tuple[tuple[str, ...], str], ...]

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
            self._expressions = [(re.compile(f"(?:{source})"), topic) for source, topic in schema]
        except re.error as error:
            raise ConfigurationError(
                f"the topic schema holds an expression that does not compile: {error.pattern!r} ({error.msg})",
                setting="topics",
            ) from None
        if len(schema) > 1 and any(not source for source, _ in schema):
            raise ConfigurationError("an empty expression beside others matches every path", setting="topics")
        self._plain = all(_PLAIN.fullmatch(source) for source, _ in schema)
        cut = tuple([(tuple(source.split("/")), topic) for source, topic in schema])
        self._first = _Place(cut if self._plain else (), {})
        self._below = lru_cache(maxsize=_REMEMBERED)(self._walked)
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
        if not self._plain:
            matches = ((expression.match(path), topic) for expression, topic in self._expressions)
            return [Route(topic, match.group()) for match, topic in matches if match is not None and match.group()]
        size = path.rfind("/", 0, -1) + 1
        head, rest = path[:size], path[size:]
        place, above = self._below(head) if len(head) <= _LONG else self._walked(head)
        found = above
        for topic, more in place.ends(rest) if len(rest) <= _LONG else place.ended(rest):
            if size + more:
                found = [*found, _route((topic, path[: size + more]))]
        return found

    def _walked(self, directory: str) -> tuple[_Place, list[Route]]:
        """The place below a directory, and the routes of the expressions that end in it."""
        place, at = self._first, 0
        found: list[Route] = []
        for part in directory.split("/")[:-1]:
            found += [Route(topic, directory[: at + size]) for topic, size in place.ended(part) if at + size]
            place = place.after(part)
            if not place.open:
                break
            at += len(part) + 1
        return place, found


class _Place:
    """Somewhere in a path, before a part of it (rule 3): which expressions may still match, by what is left of them.

    Arguments:
        open_: those expressions' parts from here on, and their topics.
        places: all that are known, by that: two ways that leave the same expressions lead to the same place.

    Attributes:
        open: whether there are any.

    """

    __slots__ = ("_last", "_next", "_places", "ends", "open")

    def __init__(self, open_: _Open, places: dict[_Open, _Place]) -> None:
        self.open = bool(open_)
        self._last = [(re.compile(parts[0]), topic) for parts, topic in open_ if len(parts) == 1]
        self._next: dict[str, list[tuple[tuple[str, ...], str]]] = {}
        for parts, topic in open_:
            if len(parts) > 1:
                self._next.setdefault(parts[0], []).append((parts[1:], topic))
        self._places = places
        self.ends = lru_cache(maxsize=_REMEMBERED)(self.ended)

    def after(self, part: str) -> _Place:
        """Where a part of a path leads."""
        open_ = tuple([left for first, after in self._next.items() if re.fullmatch(first, part) for left in after])
        if open_ not in self._places:
            self._places[open_] = _Place(open_, self._places)
        return self._places[open_]

    def ended(self, rest: str) -> list[tuple[str, int]]:
        """The topics of the expressions that end in the rest of a path, with how much of it they match."""
        if not self.open:
            return []
        part, slash, more = rest.partition("/")
        found = [(topic, match.end()) for last, topic in self._last if (match := last.match(part))]
        if slash:
            found += [(topic, len(part) + 1 + size) for topic, size in self.after(part).ended(more)]
        return found
