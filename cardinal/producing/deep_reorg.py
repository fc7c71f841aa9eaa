"""Reorgs: the depth of a branch, and the channel that a deep one goes through (``schemas/SPEC.md``, section 2.6).

The depth is counted from the highest block that consumers may have: what was added here, or what stands on the topics.
These are read when a branch first needs it; where they cannot be read then, what was added here decides, and the next
branch reads them. The newest Batch of every partition is searched behind the pings of a chain that stood still; where
there are too many of these, every branch counts as deep: a channel too many does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError, LocalProtocolError, TransportError
from cardinal.producing.inflight import Part, Publication
from cardinal.producing.survey.batch_index import batch_of
from cardinal.protocols.streams.publishing.splitter import split_reorg
from cardinal.protocols.streams.wire.messages import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import BlockRef, Routed
    from cardinal.transports.base import Sink

_RECENT: Final = 256
_FARTHER: Final = 4
_MOST: Final = _RECENT * _FARTHER**5
"""Records of a partition: a day of three standby producers' pings, each once a second."""

_BATCH: Final = bytes((BATCH,))
_UNKNOWN: Final = 1 << 256


def linked(ancestor: BlockRef, payloads: Iterable[Payload]) -> list[Payload]:
    """The blocks of a branch.

    LocalProtocolError where it is empty, no chain above the ancestor, or lacks a sub batch's content.
    """
    branch = list(payloads)
    if not branch:
        raise LocalProtocolError(f"a reorg above block {ancestor.number} needs at least one block")
    below = ancestor
    for payload in branch:
        if (payload.number, payload.parent) != (below.number + 1, below.hash):
            raise LocalProtocolError(
                f"block {payload.number} (0x{payload.hash.hex()}) is no child of block {below.number} "
                f"(0x{below.hash.hex()}): give a reorg's blocks oldest first, each the parent of the next"
            )
        if None in payload.sub_batches.values():
            raise LocalProtocolError(f"block {payload.number} of a reorg announces a sub batch without its content")
        below = payload.ref
    return branch


def channel(sink: Sink, app: Stream, ancestor: BlockRef, branch: Sequence[Payload]) -> Publication:
    """One attempt at a reorg through a channel, whose topic is created. ConfigurationError where the sink carries none.

    Otherwise raises as the sink and :func:`split_reorg`; nothing was sent.
    """
    if not sink.capabilities.channels:
        raise ConfigurationError(
            f"this transport has no reorg channels, and a reorg down to block {ancestor.number} needs one"
        )
    announcement, (began, *blocks, complete) = split_reorg(ancestor, branch, app.topics, app.default_topic)
    sink.open_channel(began.topic)
    everything = (announcement, began, *blocks, complete)
    size = sink.check(everything)
    parts: list[Part] = []
    content: list[Routed] = []
    for message in blocks:
        if message.key[:1] == _BATCH:
            parts.append(Part(content, message))
            content = []
        else:
            content.append(message)
    return Publication(
        branch[-1].hash,
        ancestor.hash,
        parts,
        len(everything),
        size,
        opening=(announcement, began),
        closing=complete,
    )


class BranchDepth:
    """Decides on the depth of branches: one more than ``threshold`` blocks below the head is deep."""

    def __init__(self, sink: Sink, threshold: int) -> None:
        self._sink = sink
        self._threshold = threshold
        self._added = 0
        self._read: int | None = None

    def added(self, number: int) -> None:
        """A block of this number, or a branch up to it, is in flight."""
        self._added = max(number, self._added)

    def is_deep(self, ancestor: BlockRef) -> bool:
        """True where a branch above this ancestor is deeper than the threshold.

        TransportError where the topics cannot be read, and nothing was added here.
        """
        if self._read is None:
            try:
                self._read = highest_block(self._sink)
            except TransportError:
                if not self._added:
                    raise
        return max(self._added, self._read or 0) - ancestor.number > self._threshold


def highest_block(sink: Sink) -> int:
    """The highest block number among the newest Batches.

    0 where there is none, and beyond all where they are too far back.
    """
    limit, before = _RECENT, dict[int, int]()
    while True:
        oldest: dict[int, int] = {}
        highest: dict[int, int] = {}
        for record in sink.recent(limit):
            oldest.setdefault(record.partition, record.offset)
            if (batch := batch_of(record)) is not None:
                highest[record.partition] = max(batch.number, highest.get(record.partition, 0))
        # A partition whose oldest record did not change is read from its start.
        if all(number in highest or first == before.get(number) for number, first in oldest.items()):
            return max(highest.values(), default=0)
        if limit >= _MOST:
            return _UNKNOWN
        limit, before = limit * _FARTHER, oldest
