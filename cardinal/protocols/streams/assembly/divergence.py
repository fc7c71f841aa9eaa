"""Divergence: copies of one message that differ.

Equal bytes are equal messages. Maps have no order on the wire and implementations write them differently, so Batches
and SubBatchMsgs are compared decoded. Values at volatile paths (such as the finality marks, which every producer's node
sees at another moment) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cardinal.errors import DecodeError
from cardinal.protocols.streams.events import Divergence, ReassemblyEvent, Rejected, Surplus
from cardinal.protocols.streams.types import Record, Row, path_text
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG

from .block import Content, OpenBlock, sub_batch_id
from .counters import CountResult, Tracked, compiled
from .window import RecentBlock

_ALTERNATIVES: Final = re.compile(r"\||\(\?")
"""Syntax that lets an expression that begins with an anchor match elsewhere."""


class Volatile:
    """The paths whose values may differ between producers: one of these expressions is found in them.

    ConfigurationError where an expression does not compile.
    """

    def __init__(self, expressions: Iterable[str]) -> None:
        self._tests = [_test(pattern) for pattern in compiled(expressions, "volatile")]

    def __contains__(self, path: bytes) -> bool:
        """True for a volatile path."""
        text = path_text(path)
        return any(test(text) for test in self._tests)

    def among(self, paths: Sequence[bytes]) -> set[bytes]:
        """The volatile ones of these paths; every path of every block is tested, so many are tested at once."""
        if not self._tests:
            return set()
        texts = list(map(path_text, paths))
        return {path for test in self._tests for path, text in zip(paths, texts, strict=True) if test(text)}


def _test(pattern: re.Pattern[str]) -> Callable[[str], object]:
    if pattern.pattern.startswith("^") and not _ALTERNATIVES.search(pattern.pattern):
        return pattern.match  # the same result, without a search at every position of the path
    return pattern.search


class Copies:
    """Comparison of copies.

    ``volatile`` paths may differ, others than ``tracked`` ones do not count. ``decoded``: SubBatchMsgs can be decoded;
    digests cannot.
    """

    def __init__(self, volatile: Volatile, tracked: Tracked | None, *, decoded: bool) -> None:
        self._volatile = volatile
        self._tracked = tracked
        self._decoded = decoded

    def same(self, kept: Record, seen: Record, held: Content) -> bool:
        """True when two messages with one key, not Batches, have the same meaning.

        DecodeError where ``seen`` is malformed. ``held``: the content of ``kept`` where it is a SubBatchMsg; it is not
        decoded again.
        """
        if kept.key[0] >= BATCH_MSG:
            return kept.value == seen.value or kept.key[HASH_END:] in self._volatile
        if kept.key[0] == SUB_BATCH_HEADER:
            return avro.read_int(kept.value) == avro.read_int(seen.value)
        if not self._decoded:
            return kept.value == seen.value
        deletes, updates = avro.read_content(seen.value)
        if len(deletes) != len(held[0]) or updates.keys() != held[1].keys():
            return False
        return sorted(deletes) == sorted(held[0]) and all(
            value == held[1][path] or path in self._volatile for path, value in updates.items()
        )

    def same_batch(self, kept: avro.BatchFields, seen: avro.BatchFields) -> bool:
        """True when two Batches describe the same block."""
        if kept[:3] != seen[:3] or kept.entries.keys() != seen.entries.keys():
            return False
        return all(
            entry == (other := kept.entries[path]) or (entry[2:] == other[2:] and path in self._volatile)
            for path, entry in seen.entries.items()
        )

    def late(self, block: RecentBlock, row: Row, events: list[ReassemblyEvent]) -> None:
        """Report a copy that came after completion and differs, while the block's messages are held."""
        if block.held is None or block.candidate is None:
            return
        key = row[3]
        kept = block.candidate.batch if key[0] == BATCH else block.held.messages.get(key)
        if kept is None:
            followed = key[0] < BATCH_MSG or self._tracked is None or self._tracked.may_belong(key[HASH_END:])
            if followed and block.candidate.take(key) is CountResult.BEYOND:
                events.append(Surplus(block.held.hash, key, row[:3]))
            return
        if kept[4] == row[4]:
            return
        kept, record = Record._make(kept), Record._make(row)
        try:
            if key[0] == BATCH:
                same = self.same_batch(block.candidate.fields, avro.read_batch(record.value))
            else:
                same = self.same(kept, record, held_content(block.held, key))
        except DecodeError as error:
            events.append(Rejected(record[:3], key, error.reason))
            return
        if not same:
            events.append(divergence(kept, record))


def divergence(kept: Record, seen: Record) -> Divergence:
    """The report of two copies that differ."""
    return Divergence(kept.key[1:HASH_END], kept.key, kept.value, seen.value, (kept[:3], seen[:3]))


def held_content(block: OpenBlock, key: bytes) -> Content:
    """The decoded content of a held SubBatchMsg; nothing for other messages."""
    if key[0] != SUB_BATCH_MSG:
        return [], {}
    return block.subs[sub_batch_id(key)].parts[sub_batch_index(key)]
