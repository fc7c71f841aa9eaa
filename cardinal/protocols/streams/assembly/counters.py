"""Counters of a block's messages, and the entries that a consumer follows.

Two look-ups for every message: to which counted prefix of its block does a path belong (:class:`Counters`), and can it
belong to an entry that this consumer follows (:class:`Tracked`)? Both answer the common case in one step.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.types import path_expression, path_text
from cardinal.protocols.streams.wire.avro import Entry
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_MSG

# An expression that looks at what follows its match can match an entry but not a longer path below it.
_LOOKS_AHEAD = re.compile(r"\$|\\Z|\\b|\\B|\(\?[=!<]")


class CountResult(Enum):
    """The relation of a message to the block whose Batch counts it."""

    COUNTED = "counted"
    BEYOND = "beyond what the Batch counts"
    IGNORED = "of an entry that is not followed"


Run: TypeAlias = tuple[bytes, bytes, int]
"""BatchMsgs of one block that count, or may belong, alike: the beginning of their keys (type, hash, part of a path),
the prefix that they count under (empty where nothing is counted yet), and how many of them may come."""

NO_RUN: Final[Run] = b"", b"", 0
RUN_MAX: Final = 1 << 29
_NO_PREFIXES: Final[frozenset[bytes]] = frozenset()


class Counters:
    """The counted prefixes of one block and how many messages each still expects.

    A path counts under the longest prefix that it starts with; where that is an ``ignored`` one, it is not followed.
    ``_left`` holds the prefixes that one look-up of a path's directory finds: they end in "/", and no longer prefix
    that begins with them ends otherwise. All others are searched by length.
    """

    __slots__ = ("_ignored", "_left", "_lengths", "_nested", "_others", "outstanding")

    def __init__(self, counts: dict[bytes, int], ignored: Sequence[bytes] = ()) -> None:
        self._ignored = frozenset(ignored) if ignored else _NO_PREFIXES
        self._left = counts
        self._others: dict[bytes, int] = {}
        self.outstanding = sum(counts.values())
        self._lengths: list[int] | None = None
        self._nested: frozenset[bytes] | None = None
        odd = [prefix for prefix in (*counts, *ignored) if not prefix.endswith(b"/")]
        if odd:
            odd.sort()
            plain = [prefix for prefix in counts if prefix.endswith(b"/") and not _begins_one(prefix, odd)]
            self._left = {prefix: counts[prefix] for prefix in plain}
            self._others = {prefix: count for prefix, count in counts.items() if prefix not in self._left}

    def _is_nested(self, prefix: bytes) -> bool:
        """True when a longer prefix begins with this one."""
        if self._nested is None:
            prefixes = sorted((*self._left, *self._others, *self._ignored))
            # In order of bytes what begins with a prefix follows it.
            self._nested = frozenset(one for one, after in pairwise(prefixes) if after.startswith(one))
        return prefix in self._nested

    def prefix(self, path: bytes) -> bytes | None:
        """The longest counted prefix of ``path``, followed or not; None where it has none."""
        size = len(path)
        if self._lengths is None:
            self._lengths = sorted(
                {len(prefix) for prefix in (*self._left, *self._others, *self._ignored)}, reverse=True
            )
        for length in self._lengths:
            if length <= size:
                found = path[:length]
                if found in self._left or found in self._others or found in self._ignored:
                    return found
        return None

    def run(self, key: bytes) -> Run:
        """The BatchMsgs that count under the same prefix as this one; none where some count under a longer one."""
        path = key[HASH_END:]
        counted = path[: path.rfind(b"/") + 1]
        left = self._left.get(counted)
        if left is None:
            found = self.prefix(path)
            if found is None or found in self._ignored:
                return NO_RUN
            counted = found
            left = self._left[found] if found in self._left else self._others[found]
        return NO_RUN if self._is_nested(counted) else (key[:HASH_END] + counted, counted, left)

    def take_run(self, prefix: bytes, count: int) -> None:
        """Count ``count`` messages under a followed prefix that expects as many."""
        (self._left if prefix in self._left else self._others)[prefix] -= count
        self.outstanding -= count

    def take(self, path: bytes) -> CountResult:
        """Count one message."""
        found: bytes | None = path[: path.rfind(b"/") + 1]
        left = self._left
        if found not in left:
            found = self.prefix(path)
            if found is None:
                return CountResult.BEYOND
            if found in self._ignored:
                return CountResult.IGNORED
            if found not in left:
                left = self._others
        if left[found] <= 0:
            return CountResult.BEYOND
        left[found] -= 1
        self.outstanding -= 1
        return CountResult.COUNTED

    def take_all(self, keys: Iterable[bytes]) -> bool:
        """Count these messages by their keys, all or none; returns True when they were counted.

        The fast path for the messages before a Batch that comes last: values only, in directories that are counted,
        none too many. Messages of one directory mostly follow each other.
        """
        found: dict[bytes, int] = {}
        last, run = b"", 0
        for key in keys:
            directory = key.rpartition(b"/")[0]
            if directory != last:
                found[last] = found.get(last, 0) + run
                last, run = directory, 0
            run += 1
        found[last] = found.get(last, 0) + run
        if found.pop(b"", 0):
            return False  # a key without any slash
        for directory, count in found.items():
            if directory[0] != BATCH_MSG or len(directory) < HASH_END:
                return False
            if self._left.get(directory[HASH_END:] + b"/", 0) < count:
                return False
        for directory, count in found.items():
            self._left[directory[HASH_END:] + b"/"] -= count
            self.outstanding -= count
        return True

    def missing(self) -> dict[bytes, int]:
        """The prefixes that still expect messages, and how many."""
        return {prefix: count for prefix, count in {**self._left, **self._others}.items() if count > 0}


def _begins_one(prefix: bytes, others: list[bytes]) -> bool:
    """True when one of these sorted prefixes begins with ``prefix``."""
    at = bisect_left(others, prefix)
    return at < len(others) and others[at].startswith(prefix)


class Tracked:
    """The entries of a Batch that a consumer follows: expressions searched, not anchored, in the entry's path.

    ``inline``: entries that a Batch does not count (values, deletes, sub batches) are followed for every path.
    ConfigurationError where an expression does not compile.
    """

    def __init__(self, expressions: Sequence[str], *, inline: bool = False) -> None:
        # Not one expression with alternatives: groups and flags of an expression hold for it alone.
        self._searches = [pattern.search for pattern in compiled(expressions, "tracked", re.DOTALL)]
        self._inlined = inline
        self._keep_all = any(_LOOKS_AHEAD.search(source) for source in expressions)
        self.directories: set[bytes] = set()
        """Directories every path of which may belong."""

    def _search(self, path: bytes) -> bool:
        text = path_text(path)
        return any(search(text) for search in self._searches)

    def entry(self, entry: Entry) -> bool:
        """True when this entry of a Batch is followed."""
        if self._inlined and not entry.count:
            return True
        return self._search(entry.path)

    def run(self, key: bytes) -> Run:
        """The BatchMsgs that may belong because this one's directory matches an expression; none if it does not."""
        if self._keep_all:
            return key[:HASH_END], b"", RUN_MAX
        directory = key[HASH_END : key.rfind(b"/") + 1]
        if directory in self.directories or (self.may_belong(key[HASH_END:]) and directory in self.directories):
            return key[:HASH_END] + directory, b"", RUN_MAX
        return NO_RUN

    def may_belong(self, path: bytes) -> bool:
        """True when a message that came before its Batch can belong to a followed entry.

        A counted prefix is the beginning of the path; where an expression matches the prefix it is found in the
        path too, unless it looks at what follows. Only "this directory matches" is remembered: entries of one
        directory may differ.
        """
        if self._keep_all:
            return True
        directory = path[: path.rfind(b"/") + 1]
        if directory in self.directories:
            return True
        if self._search(directory):
            if len(self.directories) >= _DIRECTORIES_MAX:
                self.directories.clear()
            self.directories.add(directory)
            return True
        return self._search(path)


_DIRECTORIES_MAX = 4096


def compiled(expressions: Iterable[str], setting: str, flags: int = 0) -> list[re.Pattern[str]]:
    """Compiled expressions over paths. ConfigurationError names ``setting`` if one does not compile."""
    try:
        return [path_expression(expression, flags) for expression in expressions]
    except re.error as error:
        raise ConfigurationError(
            f"the expression {error.pattern!r} of {setting} does not compile: {error.msg}", setting=setting
        ) from None
