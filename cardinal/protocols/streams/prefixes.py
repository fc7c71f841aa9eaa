"""Which messages of a block count where, and which a consumer wants at all.

Two questions, both asked for every message, so both are built to answer the common case in one look-up:

- :class:`Counters`: to which counted prefix of its block does a path belong? The longest one, in bytes, that the
  path starts with, whatever it ends in (EVM counts under whole paths too).
- :class:`Tracked`: can a message belong to an entry that this consumer follows?
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cardinal.errors import ConfigurationError

from .types import path_text

# An expression that looks at what follows its match can match an entry but not a longer path below it.
_LOOKS_AHEAD = re.compile(r"\$|\\Z|\\b|\\B|\(\?[=!<]")


class Counters:
    """The counted prefixes of one block and how many messages each still expects."""

    __slots__ = ("_odd", "left", "outstanding")

    def __init__(self, counts: Iterable[tuple[bytes, int]]) -> None:
        self.left: dict[bytes, int] = dict(counts)
        self.outstanding = sum(self.left.values())
        # Prefixes that do not end in "/" cannot be found by cutting a path at its slashes.
        self._odd = sorted((prefix for prefix in self.left if not prefix.endswith(b"/")), key=len, reverse=True)

    def prefix(self, path: bytes) -> bytes | None:
        """The longest counted prefix of ``path``, None where it has none."""
        left = self.left
        found = path[: path.rfind(b"/") + 1]
        while found and found not in left:
            found = found[: found.rfind(b"/", 0, len(found) - 1) + 1]
        best = found if found in left else None
        for odd in self._odd:
            if best is not None and len(odd) <= len(best):
                break
            if path.startswith(odd):
                return odd
        return best

    def take(self, path: bytes) -> bool:
        """Count one message; False where it has no prefix or is beyond its prefix's count."""
        prefix = self.prefix(path)
        if prefix is None or self.left[prefix] <= 0:
            return False
        self.left[prefix] -= 1
        self.outstanding -= 1
        return True

    def missing(self) -> dict[bytes, int]:
        """The prefixes that still expect messages, and how many."""
        return {prefix: count for prefix, count in self.left.items() if count > 0}


class Tracked:
    """The entries of a Batch that a consumer follows: expressions searched, not anchored, in the entry's path."""

    def __init__(self, expressions: Sequence[str]) -> None:
        try:
            self._search = re.compile("|".join(f"(?:{source})" for source in expressions) or "(?!)", re.DOTALL).search
            for source in expressions:
                re.compile(source)
        except re.error as error:
            raise ConfigurationError(
                f"a tracked expression does not compile: {error.pattern!r} ({error.msg})", setting="tracked"
            ) from None
        self._keep_all = any(_LOOKS_AHEAD.search(source) for source in expressions)
        self._directories: set[bytes] = set()

    def entry(self, path: bytes) -> bool:
        """Whether this entry of a Batch is followed."""
        return self._search(path_text(path)) is not None

    def may_belong(self, path: bytes) -> bool:
        """Whether a message that came before its Batch can belong to a followed entry.

        A counted prefix is the beginning of the path; where an expression matches the prefix it is found in the
        path too, unless it looks at what follows. Only "this directory matches" is remembered: entries of one
        directory may differ.
        """
        if self._keep_all:
            return True
        directory = path[: path.rfind(b"/") + 1]
        if directory in self._directories:
            return True
        if self._search(path_text(directory)) is not None:
            if len(self._directories) >= _DIRECTORIES_MAX:
                self._directories.clear()
            self._directories.add(directory)
            return True
        return self._search(path_text(path)) is not None


_DIRECTORIES_MAX = 4096
