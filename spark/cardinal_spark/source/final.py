"""The batch read: the chain as it stands now, lowest first, without its history.

Rules:

1. Rows are +1 only. ``_seq`` is dense in the order of the chain, and every block is an update of its own.
2. A block above the start that is not whole yet is an error that names it.
3. With ``finality`` it ends with the last block that is final.
4. Of blocks that no usual reorg reaches any more only a packed form is held, some 100 bytes each: a chain has millions.
   A deeper reorg unpacks some of them.
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

    from .offsets import PlannedBlock
    from .options import Stream

_RUN: Final = 4_096
_UPDATE_BLOCKS: Final = 1_000


class Chain:
    """Rows of which the last may leave again.

    Arguments:
        run: how many are packed together; twice as many stay unpacked.

    """

    def __init__(self, run: int = _RUN) -> None:
        self._run = run
        self._packed: list[bytes] = []
        self._loose: list[PlannedBlock] = []

    def change(self, removed: int, added: Sequence[PlannedBlock]) -> None:
        """Take away so many of the last rows, and add others, which are numbered by their place."""
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

    def runs(self) -> Iterator[Sequence[PlannedBlock]]:
        """All rows, some thousand at a time. What was yielded is not held any more."""
        self._packed.reverse()
        while self._packed:
            yield unpacked(self._packed.pop())
        yield self._loose


def final_chain(
    stream: Stream, start: str, end: str = LATEST, finality: str = LATEST
) -> Iterator[Sequence[PlannedBlock]]:
    """The rows, some thousand at a time.

    Arguments:
        stream: what is read.
        start: where to begin, as ``startingOffsets``.
        end: where to end, as ``endingOffsets``.
        finality: what the blocks must have been called.

    Raises:
        MissingPayloadError: a block above the start is not whole; it is named.
        ConfigurationError: no block says which ones are final.

    """
    if start == LATEST:
        return
    last = start_of(end)
    number = last if isinstance(last, int) else None
    late = int(last.timestamp() * 1000) if isinstance(last, datetime) else None
    chain, update = Chain(), None
    with stream.consumer(start_of(start), None, until_end=True, max_update=_UPDATE_BLOCKS) as consumer:
        for update in consumer:
            removed = len(update.removed)
            chain.change(removed, planned_rows([update], update.cursor)[removed:])
        waits = consumer.awaited
    if finality != LATEST and update is not None:
        mark = marked(update.finality, finality)
        if mark is None:
            raise ConfigurationError(
                f"no block of this stream says which ones are {finality}: read with finality=latest, or let a producer "
                "publish what its node calls so",
                setting="finality",
            )
        number = mark if number is None else min(number, mark)
    if waits and not _is_beyond(waits[0].number, number):
        raise MissingPayloadError(
            f"block {waits[0].number} (0x{waits[0].block.hex()}) is not whole yet: read again when its producer has "
            "published the rest, or stream, which waits for it",
            number=-1 if waits[0].number is None else waits[0].number,
            block_hash=waits[0].block,
        )
    for rows in chain.runs():
        kept = _until(rows, number, late)
        yield kept
        if len(kept) < len(rows):
            return


def _is_beyond(number: int | None, last: int | None) -> bool:
    return number is not None and last is not None and number > last


def _until(rows: Sequence[PlannedBlock], last: int | None, late: int | None) -> Sequence[PlannedBlock]:
    """The rows up to a block's number, and before the first block that was published later than a time."""
    if late is not None:
        rows = list(takewhile(lambda planned: planned.row.published_ms <= late, rows))
    return rows if last is None else [planned for planned in rows if planned.row.number <= last]
