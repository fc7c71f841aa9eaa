"""Cursor after the last row of a lake: ``restartFrom=sink``.

It depends on the ledger's rows only, so that any stream with the same chain can be continued. Positions are found by
time: the lowest block's messages are later than its own time less a margin, and every delivered message is earlier
than the head's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import CursorExpiredError, CursorMismatchError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.publishing.sealing import BEFORE_BATCH_MS
from cardinal.protocols.streams.types import short

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition
    from cardinal_spark.lake.query import LastCommitted

    from .options import StreamSpec

    Positions = Mapping[Partition, int]

_MICROSECONDS: Final = 1_000


def cursor_behind(stream: StreamSpec, lake: str, storage: Mapping[str, str]) -> Cursor | None:
    """The cursor; None for a lake without rows.

    Raises:
        CursorMismatchError: the lake belongs to another chain, or was written with other options.
        CursorExpiredError: the stream does not hold the lake's head.

    """
    from cardinal_spark.lake import last_committed  # noqa: PLC0415 - the lake's dependencies

    last = last_committed(lake, depth=stream.app.reorg_threshold + 1, storage=storage)
    if last is None:
        return None
    expected = stream.fingerprint.hex()
    if last.lineage != expected + short(last.first.hash).hex():
        raise CursorMismatchError(
            f"the lake {lake} was written from another chain or with other options (reorgThreshold, tracked, "
            "whitelist): pass the same ones, or start a new lake",
            expected=expected,
            found=last.lineage,
        )
    times = [row.published_at // _MICROSECONDS for row in last.chain if row.published_at]
    source = stream.open()
    try:
        watermarks = source.watermarks()
        floor = source.offsets_for_time(max(0, min(times) - BEFORE_BATCH_MS)) if times else {}
        next_ = source.offsets_for_time(max(times) + 1) if times else {}
    finally:
        source.close()
    if times and all(low >= next_.get(tp, high) for tp, (low, high) in watermarks.items() if high > low):
        raise CursorExpiredError(
            f"block {last.head.number} (0x{last.head.hash.hex()}), the last one of the lake {lake}, is no longer on "
            "the topics: read a stream that still holds it, or start a new lake",
            missing={},
        )
    floor = {tp: max(low, min(floor.get(tp, low), high)) for tp, (low, high) in watermarks.items()}
    next_ = {tp: max(floor[tp], min(next_.get(tp, high), high)) for tp, (_, high) in watermarks.items()}
    return _cursor(stream, last, next_, floor)


def _cursor(stream: StreamSpec, last: LastCommitted, next_: Positions, floor: Positions) -> Cursor:
    chain = last.chain
    lowest = chain[0]
    return Cursor(
        lineage=bytes.fromhex(last.lineage),
        app=stream.app.name,
        chain=stream.app.chain,
        seq=last.seq,
        ring=tuple(row.head for row in reversed(chain)),
        weight=int.from_bytes(chain[-1].weight or b""),
        next=next_,
        floor=floor,
        start=last.first,
        missing=frozenset(row.hash for row in chain if not row.parent),
        root=(lowest.parent or b"") if lowest.number == last.first.number else b"",
    )
