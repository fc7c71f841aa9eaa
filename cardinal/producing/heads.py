"""How deep a branch goes: where it leaves the chain, below the highest block that consumers may have.

Rules:

1. The highest block is what was added here, or what stands on the topics, whichever is higher. The topics are asked
   when a branch first needs it, and not before. Where they cannot be read then, what was added here has to do, and the
   next branch asks again.
2. The newest Batch of every partition is looked for. Pings may stand in front of it, as many as came while the chain
   stood still; where there are more than so many, every branch is taken for deep: a channel too many does no harm,
   and consumers drop what comes too deep without one.
3. A branch within the threshold that failed goes again as it went, while nothing was added above it: its own blocks do
   not make it deeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import DecodeError, TransportError
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import BATCH, Batch

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import BlockRef, Record
    from cardinal.transports.base import Sink

_RECENT: Final = 256
_FARTHER: Final = 4
_MOST: Final = _RECENT * _FARTHER**5
"""Records of a partition: a day of three standby producers' pings, each once a second."""

_GOING: Final = 64
"""Branches that are remembered by rule 3."""

_BATCH: Final = bytes((BATCH,))
_UNKNOWN: Final = 1 << 256


class Heads:
    """See the module.

    Arguments:
        sink: what is asked for the newest records.
        threshold: blocks below the head from which on a branch is deep.

    """

    def __init__(self, sink: Sink, threshold: int) -> None:
        self._sink = sink
        self._threshold = threshold
        self._added = 0
        self._found: int | None = None
        self._shallow: dict[bytes, int] = {}
        """By the hash of a branch's last block, the highest number when it went, its own included."""

    def added(self, number: int) -> None:
        """A block of this number, or a branch up to it, is on its way."""
        self._added = max(number, self._added)

    def deep(self, ancestor: BlockRef, tip: bytes) -> bool:
        """Whether the branch above this ancestor, up to the block of this hash, leaves the chain too deep to go alone.

        Raises:
            TransportError: the topics do not say, and nothing was added here.

        """
        if self._added <= self._shallow.get(tip, -1):
            return False
        if self._found is None:
            try:
                self._found = head_of(self._sink)
            except TransportError:
                if not self._added:
                    raise
        return max(self._added, self._found or 0) - ancestor.number > self._threshold

    def goes(self, tip: bytes, number: int) -> None:
        """A branch within the threshold, up to the block of this hash and number, is on its way."""
        self._shallow[tip] = max(number, self._added)
        if len(self._shallow) > _GOING:
            del self._shallow[next(iter(self._shallow))]

    def ended(self, tip: bytes, whole: Future[None]) -> None:
        """The future of that branch has ended."""
        if whole.exception() is None:
            self._shallow.pop(tip, None)


def head_of(sink: Sink) -> int:
    """The highest block number among the newest Batches; 0 where there is none, and beyond all where they lie too far.

    Raises:
        TransportError: the records do not arrive.

    """
    limit, before = _RECENT, dict[int, int]()
    while True:
        oldest: dict[int, int] = {}
        highest: dict[int, int] = {}
        for record in sink.recent(limit):
            oldest.setdefault(record.partition, record.offset)
            if (number := _number(record)) is not None:
                highest[record.partition] = max(number, highest.get(record.partition, 0))
        # A partition whose oldest record did not change is read from its start.
        if all(where in highest or first == before.get(where) for where, first in oldest.items()):
            return max(highest.values(), default=0)
        if limit >= _MOST:
            return _UNKNOWN
        limit, before = limit * _FARTHER, oldest


def _number(record: Record) -> int | None:
    if record.key[:1] != _BATCH:
        return None
    try:
        message = decode(record.key, record.value)
    except DecodeError:
        return None  # no consumer can use it either
    return message.number if isinstance(message, Batch) else None
