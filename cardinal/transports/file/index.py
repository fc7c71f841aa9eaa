"""Index of a segment, for seeking: ``000000000001.index``.

A text file: the segment's marker in hex, then one line per mark, about one per megabyte: checksum, position of a block,
highest time before it, and the next offset of every partition there, in the order of the segment's header. For the
partitions in the block, that is the offset of the block's first record: after a gap it is not the last offset plus one.

The index is a hint, checked against the data (:class:`.segments.Segments`). A missing, foreign or torn one costs speed
only, and a writer that opens the segment rewrites it.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal.protocols.streams.types import Partition, Record

    from .container import Header

STEP: Final = 1 << 20
"""Bytes between two marks."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark in a segment: the position of a block, the highest time before it, and the next offsets there."""

    at: int
    latest: int
    offsets: Mapping[Partition, int]


def mark_of(at: int, latest: int, offsets: Mapping[Partition, int], block: Sequence[Record]) -> Mark:
    """The mark for this block at position ``at``, after records up to these next offsets."""
    return Mark(at, latest, {**offsets, **first_offsets(block)})


def first_offsets(block: Iterable[Record]) -> dict[Partition, int]:
    """The lowest offset of every partition in a block."""
    first: dict[Partition, int] = {}
    for record in block:
        first.setdefault((record.topic, record.partition), record.offset)
    return first


def path_of(segment: Path) -> Path:
    """The index file of a segment file."""
    return segment.with_suffix(".index")


def read(segment: Path, header: Header) -> list[Mark]:
    """The marks of a segment as far as its index can be read; none where there is none for this segment."""
    try:
        lines = path_of(segment).read_bytes().split(b"\n")
    except OSError:
        return []
    if lines[0] != header.sync.hex().encode():
        return []
    partitions = sorted(header.offsets)
    marks: list[Mark] = []
    for line in lines[1:]:
        check, _, text = line.partition(b" ")
        numbers = text.split()
        if check != _check(text) or len(numbers) != len(partitions) + 2:
            break  # the line that a crash cut, or an empty one: the end
        at, latest, *offsets = map(int, numbers)
        marks.append(Mark(at, latest, dict(zip(partitions, offsets, strict=True))))
    return marks


class IndexWriter:
    """Writer of the newest segment's index. A full disk costs the index, nothing else.

    Arguments:
        segment: the segment's file.
        header: its header.
        marks: the existing marks; the file is rewritten with these.

    """

    def __init__(self, segment: Path, header: Header, marks: Sequence[Mark]) -> None:
        self._partitions = sorted(header.offsets)
        self._last = marks[-1].at if marks else header.size
        lines = [header.sync.hex().encode(), *(self._line(mark) for mark in marks)]
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(path_of(segment), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            os.write(self._fd, b"\n".join(lines) + b"\n")

    def due(self, at: int) -> bool:
        """True if a position is far enough from the last mark."""
        return at - self._last >= STEP

    def note(self, mark: Mark) -> None:
        """Append a mark."""
        self._last = mark.at
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.write(self._fd, self._line(mark) + b"\n")

    def close(self) -> None:
        """Release the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _line(self, mark: Mark) -> bytes:
        text = b" ".join(
            str(number).encode() for number in (mark.at, mark.latest, *(mark.offsets[p] for p in self._partitions))
        )
        return _check(text) + b" " + text


def _check(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()
