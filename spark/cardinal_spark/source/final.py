"""The batch read: the chain as it stands now, lowest first, without its history.

Rules:

1. Rows are +1 only. ``_seq`` is dense in the order of the chain, and every block is an update of its own.
2. A block above the start that is not whole yet is an error that names it.
3. Of blocks that no usual reorg reaches any more only a packed form is held, some 100 bytes each: a chain has millions.
   A deeper reorg unpacks some of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from cardinal.errors import MissingPayloadError

from .offsets import packed, unpacked
from .options import LATEST, start_of
from .planner import planned_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .offsets import PlannedBlock
    from .options import Start, Stream

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


def final_chain(stream: Stream, start: str, end: str = LATEST) -> Iterator[Sequence[PlannedBlock]]:
    """The rows, some thousand at a time.

    Arguments:
        stream: what is read.
        start: where to begin, as ``startingOffsets``.
        end: where to end, as ``endingOffsets``.

    Raises:
        MissingPayloadError: a block above the start is not whole; it is named.

    """
    if start == LATEST:
        return
    last = start_of(end)
    chain = Chain()
    with stream.consumer(start_of(start), None, until_end=True, max_update=_UPDATE_BLOCKS) as consumer:
        for update in consumer:
            removed = len(update.removed)
            chain.change(removed, planned_rows([update], update.cursor)[removed:])
        waits = consumer.awaited
    if waits and not _is_beyond(waits[0].number, last):
        number = waits[0].number
        raise MissingPayloadError(
            f"block {number} (0x{waits[0].block.hex()}) is not whole yet: read again when its producer has published "
            "the rest, or stream, which waits for it",
            number=-1 if number is None else number,
            block_hash=waits[0].block,
        )
    for rows in chain.runs():
        kept = _until(rows, last)
        yield kept
        if len(kept) < len(rows):
            return


def _is_beyond(number: int | None, last: Start) -> bool:
    return number is not None and isinstance(last, int) and number > last


def _until(rows: Sequence[PlannedBlock], last: Start) -> Sequence[PlannedBlock]:
    """The rows up to a block's number, or to the first block that was published later than a time."""
    if isinstance(last, int):
        return [planned for planned in rows if planned.row.number <= last]
    if isinstance(last, datetime):
        late = int(last.timestamp() * 1000)
        for at, planned in enumerate(rows):
            if planned.row.published_ms > late:
                return rows[:at]
    return rows
