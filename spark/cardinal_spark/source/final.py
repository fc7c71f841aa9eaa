"""Batch read: the current chain, lowest block first, without its history.

Rules:

1. Rows are +1 only. ``_seq`` is dense in the order of the chain, and every block is an update of its own.
2. A block above the start that is not complete yet is an error that names it.
3. With ``finality`` it ends with the last block that is final.
4. Blocks below the depth of a usual reorg are held packed, in some 100 bytes each: a chain has millions. A deeper reorg
   unpacks some of them.
"""

from __future__ import annotations

from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError, MissingPayloadError

from .offsets import packed, unpacked
from .options import start_of
from .planner import planned_rows
from .withheld import LATEST, marked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardinal.protocols.streams.events import Explanation

    from .offsets import PlannedRow
    from .options import StreamSpec

_RUN: Final = 4_096
_UPDATE_BLOCKS: Final = 1_000


class PackedChain:
    """Rows of a chain, whose last ones may be removed.

    Arguments:
        run: the number of rows that are packed together; twice as many stay unpacked.

    """

    def __init__(self, run: int = _RUN) -> None:
        self._run = run
        self._packed: list[bytes] = []
        self._loose: list[PlannedRow] = []

    def change(self, removed: int, added: Sequence[PlannedRow]) -> None:
        """Remove ``removed`` of the last rows, and add others, which are numbered by their position."""
        while removed > len(self._loose) and self._packed:
            self._loose[:0] = unpacked(self._packed.pop())
        if removed:
            del self._loose[-removed:]
        seq = len(self._packed) * self._run + len(self._loose)
        for planned in added:
            seq += 1
            self._loose.append(planned._replace(row=planned.row._replace(seq=seq, update_id=seq)))
        while len(self._loose) >= 3 * self._run:
            self._packed.append(packed(self._loose[: self._run]))
            del self._loose[: self._run]

    def runs(self) -> Iterator[Sequence[PlannedRow]]:
        """All rows, some thousand at a time. Yielded rows are no longer held."""
        self._packed.reverse()
        while self._packed:
            yield unpacked(self._packed.pop())
        yield self._loose


def final_chain(
    stream: StreamSpec, start: str, end: str = LATEST, finality: str = LATEST
) -> Iterator[Sequence[PlannedRow]]:
    """The rows, some thousand at a time.

    Arguments:
        stream: the stream to read.
        start: the first block, as ``startingOffsets``.
        end: the last block, as ``endingOffsets``.
        finality: the finality that blocks need.

    Raises:
        MissingPayloadError: a block above the start is not complete; it is named.
        ConfigurationError: no block carries finality marks, or the end is before the start.

    """
    if start == LATEST:
        return
    begin, last = start_of(start), start_of(end)
    if isinstance(begin, int | datetime) and type(begin) is type(last) and last < begin:  # type: ignore[operator]
        raise ConfigurationError(
            f"no block is between startingOffsets {start} and endingOffsets {end}: the end is before the start",
            setting="endingOffsets",
        )
    number = last if isinstance(last, int) else None
    late = int(last.timestamp() * 1000) if isinstance(last, datetime) else None
    chain, update = PackedChain(), None
    first = begin if isinstance(begin, int) else None
    lowest = first or 0  # a reorg may begin below it
    with stream.consumer(begin, None, until_end=True, max_update=_UPDATE_BLOCKS) as consumer:
        for update in consumer:
            first = update.added[0].number if first is None and update.added else first
            added = planned_rows([update], update.cursor)[len(update.removed) :]
            removed = sum(block.number >= lowest for block in update.removed)
            chain.change(removed, [planned for planned in added if planned.row.number >= lowest])
        waits = [one for one in consumer.awaited if _is_above(one, first)]
    if finality != LATEST and update is not None:
        mark = marked(update.finality, finality)
        if mark is None:
            raise ConfigurationError(
                f"no block of this stream carries the mark {finality}: read with finality=latest, or use a producer "
                "whose node reports finality",
                setting="finality",
            )
        number = mark if number is None else min(number, mark)
    if waits and not _is_beyond(waits[0].number, number):
        raise MissingPayloadError(
            f"block {waits[0].number} (0x{waits[0].block.hex()}) is not complete yet: retry when its producer has "
            "published the rest, or use readStream, which waits for it",
            number=-1 if waits[0].number is None else waits[0].number,
            block_hash=waits[0].block,
        )
    for rows in chain.runs():
        kept = _until(rows, number, late)
        yield kept
        if len(kept) < len(rows):
            return


def _is_above(awaited: Explanation, first: int | None) -> bool:
    """False for what is awaited by forks that begin below the first block: not all of it was read."""
    return first is None or awaited.number is None or awaited.number > first


def _is_beyond(number: int | None, last: int | None) -> bool:
    return number is not None and last is not None and number > last


def _until(rows: Sequence[PlannedRow], last: int | None, late: int | None) -> Sequence[PlannedRow]:
    """The rows up to a block's number, and before the first block that was published later than a time."""
    if late is not None:
        rows = list(takewhile(lambda planned: planned.row.published_ms <= late, rows))
    return rows if last is None else [planned for planned in rows if planned.row.number <= last]
