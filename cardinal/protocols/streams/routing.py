"""Which topic a path travels on and under which prefix it is counted: the producer's schema, compiled.

Rules:

1. An expression is anchored as a whole at the start of a path. The text that it matched is the counted prefix; no text,
   no match. Two expressions that match one path are refused.
2. Most paths of a block share a few directories, and for most directories (all up to the last "/") the answer is the
   same whatever follows. :meth:`Router.directory` finds that out once. It holds for an expression every part of which
   is a plain character or a class that does not match "/", none of them a "/" that is repeated or optional: each of its
   matches has as many "/" as the expression, so that all of it lies

   - inside the directory, where the directory has more "/" than the expression, or as many and the expression ends in
     one: what follows cannot change it;
   - nowhere, where the directory has fewer: a path in it has no more.

   Only where they are as many and the expression goes on after its last "/" does it take the whole path to know.
   Schemas with other expressions are asked path by path.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

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


class Route(NamedTuple):
    """Where a path goes."""

    topic: str
    prefix: str


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
        # Plain expressions have no groups of their own: which group matched says which expression was the first to.
        self._any = re.compile("|".join(f"({source})" for source, _ in schema)) if schema and self._plain else None
        # As many "/" in a directory as one of these has, and the whole path decides.
        self._open_ended = {source.count("/") for source, _ in schema if not source.endswith("/")}

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
        asked = 0
        if self._any is not None:
            # One question instead of one for each: none before the first that matches does.
            first = self._any.match(path)
            if first is None:
                return found
            asked = first.lastindex or 0
            if text := first.group():
                found.append(Route(self._expressions[asked - 1][1], text))
        for expression, topic in self._expressions[asked:]:
            match = expression.match(path)
            if match is not None and match.group():
                found.append(Route(topic, match.group()))
        return found
