"""What one producer supplied for a block, in a form that can be compared with what others supplied.

Rules:

1. Two producers agree on a block where their digests are equal: the same Batch (number, weight, parent, entries) and
   the same content as a consumer gets it, whatever the order of maps on the wire and however sub batches were cut.
   Values at volatile paths are left out, the paths are not.
2. Where records carry digests instead of values (:mod:`.digests`), parts of sub batches are content: producers that
   cut them differently do not agree.
3. A block that is larger than what may be kept of finished blocks is agreed on by its header and content alone; where
   records carry digests there is nothing to compare, and nobody agrees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from struct import pack
from typing import Final

from cardinal.protocols.streams.assembly.finished import FinishedBlock
from cardinal.protocols.streams.events import Completed
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import path_bytes
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_MSG

from .standings import Standing

_ALTERNATIVES: Final = re.compile(r"\||\(\?")
"""What lets an expression that begins with an anchor be found elsewhere."""


class Volatile:
    """The paths whose values may differ between producers: one of these expressions is found in them."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._tests = [_test(source) for source in expressions]

    def among(self, paths: Sequence[bytes]) -> set[bytes]:
        """Those of these paths; many are asked for at once, since every path of every block is."""
        if not self._tests:
            return set()
        texts = [path.decode("utf-8", "surrogateescape") for path in paths]
        return {path for test in self._tests for path, text in zip(paths, texts, strict=True) if test(text)}


def _test(source: str) -> Callable[[str], object]:
    pattern = re.compile(source)
    if source.startswith("^") and not _ALTERNATIVES.search(source):
        return pattern.match  # the same answer, without a look at every place of the path
    return pattern.search


def standing(event: Completed, finished: FinishedBlock, volatile: Volatile, *, past: int) -> Standing:
    """What a producer's complete copy says.

    Arguments:
        event: its completion.
        finished: what is kept of it.
        volatile: whether the value at a path may differ.
        past: the chain is past blocks with a lower number.

    """
    block = event.payload
    return Standing(
        _digest(event, finished, volatile),
        block.number,
        block.parent,
        block.weight,
        event.positions,
        event.ends,
        event.published_ms,
        event.sealed,
        block.number < past,
    )


def _digest(event: Completed, finished: FinishedBlock, volatile: Volatile) -> bytes | None:
    block = event.payload
    found = blake2b(repr((block.number, block.parent, block.weight)).encode(), digest_size=32)
    if finished.candidate is not None:
        entries = sorted(finished.candidate.fields.entries.items())
        marks = volatile.among([path for path, _ in entries])
        for path, entry in entries:
            value = b"" if path in marks else entry.value
            _add(found, [path, value, b"%d %d" % (entry.count, entry.delete), entry.sub_batch])
    content = _content(event, finished)
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


def _content(event: Completed, finished: FinishedBlock) -> tuple[Iterable[bytes], Mapping[bytes, bytes]] | None:
    """Deletes and values; for a block without its content what stands for them."""
    block = event.payload
    if isinstance(block, Payload) and isinstance(block.updates, PathMap):
        return map(path_bytes, block.deletes), block.updates.raw
    held, candidate = finished.held, finished.candidate
    if held is None or candidate is None:
        return None
    counted = [record for key, record in held.messages.items() if key not in candidate.surplus]
    values = {key[HASH_END:]: value for _, _, _, key, value, *_ in counted if key[0] == BATCH_MSG}
    return [key + value for _, _, _, key, value, *_ in counted if key[0] != BATCH_MSG], values


def _add(found: blake2b, pieces: Sequence[bytes]) -> None:
    """Take pieces of any length so that no two lists of pieces are taken alike."""
    found.update(pack(f"<{len(pieces) + 1}Q", len(pieces), *map(len, pieces)))
    found.update(b"".join(pieces))
