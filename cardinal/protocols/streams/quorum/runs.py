"""Records of several producers, mixed, cut into runs that one producer's reassembler can take at once.

A run is one record, or several new values of one open block from one producer, as long as they cannot complete the
block: whoever takes a run must find everything as it is at its last record, however records are cut into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.types import Headers, Row
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG, BATCH_MSG

from .attribution import Attribution

NOBODY: Final = -1
"""The producer of what belongs to no block: pings, announcements of reorg channels, and what is no message."""


def runs(
    records: Iterable[Row],
    attribution: Attribution,
    room: Callable[[int, bytes], int],
    events: list[ReassemblyEvent],
) -> Iterator[tuple[int, list[Row]]]:
    """Producer and records of every run; each is to be dealt with before the next is asked for.

    Arguments:
        records: in the order read.
        attribution: whose they are; records of producers that do not count are left out.
        room: how many values of a block can go together, of this producer; 0: one by one, below 0: any number.
        events: where producers are reported that do not count.

    """
    run: list[Row] = []
    last: bytes | None = None
    headers: Headers = ()
    index = left = 0
    for record in records:
        head = record[3][:HASH_END]
        if head != last or record[6] != headers:
            if run:
                yield index, run
                run, last = [], None
            if len(head) < HASH_END or head[0] > BATCH_DELETE_MSG:
                yield NOBODY, [record]
                continue
            found = attribution.by_headers(record[6])
            if found is None and (found := attribution.producer_of(record, events)) is None:
                continue
            index = found
            if head[0] != BATCH_MSG or (left := room(index, head[1:])) == 0:
                yield index, [record]
                continue
            last, headers = head, record[6]
        run.append(record)
        left -= 1
        if left == 0:
            yield index, run
            run, last = [], None
    if run:
        yield index, run
