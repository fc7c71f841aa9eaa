"""Vote: a producer's complete copy of a block, as a digest that can be compared with other producers' copies.

Rules:

1. Two producers agree on a block where their digests are equal: the same Batch (number, weight, parent, entries) and
   the same content as a consumer gets it, whatever the order of maps on the wire and however sub batches were cut.
   Values at volatile paths are left out, the paths are not.
2. Where records carry digests instead of values, parts of sub batches are content: producers that cut them
   differently do not agree.
3. A block that is larger than what may be kept of completed blocks is agreed on by its header and content alone; where
   records carry digests there is nothing to compare, and nobody agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack
from typing import Final

from cardinal.protocols.streams.assembly.window import RecentBlock
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import Partition, path_bytes, path_expression
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_MSG

_ALTERNATIVES: Final = re.compile(r"\||\(\?")
"""What lets an expression that begins with an anchor be found elsewhere."""


class Volatile:
    """The paths whose values may differ between producers: one of these expressions is found in them."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._tests = [_test(source) for source in expressions]

    def among(self, paths: Sequence[bytes]) -> set[bytes]:
        """Those of these paths that are volatile; every path of every block is looked at, so many at once."""
        if not self._tests:
            return set()
        texts = [path.decode("utf-8", "surrogateescape") for path in paths]
        return {path for test in self._tests for path, text in zip(paths, texts, strict=True) if test(text)}


def _test(source: str) -> Callable[[str], object]:
    pattern = path_expression(source)
    if source.startswith("^") and not _ALTERNATIVES.search(source):
        return pattern.match  # the same answer, without a look at every place of the path
    return pattern.search


@dataclass(frozen=True, slots=True)
class Vote:
    """A producer's complete copy of a block.

    Attributes:
        digest: of its content; None where it cannot be compared.
        number, parent, weight: of its Batch.
        positions, published_ms, sealed: see :class:`~.events.Completed`.

    """

    digest: bytes | None
    number: int
    parent: bytes
    weight: int
    positions: Mapping[Partition, int]
    published_ms: int
    sealed: bool


def vote_of(event: Completed, recent: RecentBlock, volatile: Volatile) -> Vote:
    """The vote that a producer's complete copy is.

    Arguments:
        event: its completion.
        recent: the messages that are kept of it.
        volatile: the paths whose values may differ.

    """
    block = event.payload
    return Vote(
        _digest(event, recent, volatile),
        block.number,
        block.parent,
        block.weight,
        event.positions,
        event.published_ms,
        event.sealed,
    )


def _digest(event: Completed, recent: RecentBlock, volatile: Volatile) -> bytes | None:
    block = event.payload
    found = blake2b(repr((block.number, block.parent, block.weight)).encode(), digest_size=32)
    if recent.candidate is not None:
        entries = sorted(recent.candidate.fields.entries.items())
        marks = volatile.among([path for path, _ in entries])
        for path, entry in entries:
            value = b"" if path in marks else entry.value
            _add(found, [path, value, b"%d %d" % (entry.count, entry.delete), entry.sub_batch])
    content = _content(event, recent)
    if content is None:
        return None
    deletes, values = content
    paths = sorted(values)
    _add(found, sorted(deletes))
    _add(found, paths)
    marks = volatile.among(paths)
    _add(
        found, [b"" if path in marks else values[path] for path in paths] if marks else [values[path] for path in paths]
    )
    return found.digest()


def _content(event: Completed, recent: RecentBlock) -> tuple[Iterable[bytes], Mapping[bytes, bytes]] | None:
    """Deletes and values; digests of them for a block without its content."""
    block = event.payload
    if isinstance(block, Payload) and isinstance(block.updates, PathMap):
        return map(path_bytes, block.deletes), block.updates.raw
    held, candidate = recent.held, recent.candidate
    if held is None or candidate is None:
        return None
    counted = [record for key, record in held.messages.items() if key not in candidate.surplus]
    values = {key[HASH_END:]: value for _, _, _, key, value, *_ in counted if key[0] == BATCH_MSG}
    return [key + value for _, _, _, key, value, *_ in counted if key[0] != BATCH_MSG], values


def _add(found: blake2b, pieces: Sequence[bytes]) -> None:
    """Add pieces of any length so that no two lists of pieces give the same bytes."""
    found.update(pack(f"<{len(pieces) + 1}Q", len(pieces), *map(len, pieces)))
    found.update(b"".join(pieces))
