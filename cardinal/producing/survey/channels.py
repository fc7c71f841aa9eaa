"""Blocks that came through a reorg's channel: they stand there alone, and the main topics go on above them.

Rules:

1. A channel is read where its announcement was found. One that is gone, or not there yet, adds nothing.
2. What counts is the last attempt of a producer that has ended with ReorgComplete: before that no consumer switches.
   Of more than 16 announcements the newest count, as for consumers.
3. Of its blocks those count that are sealed, or of which all messages are in the channel.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from cardinal.errors import TopicError
from cardinal.producing.survey.batch_index import Unsealed, batch_of, is_sealed
from cardinal.producing.survey.completeness import whole_among
from cardinal.producing.survey.read_range import read_range
from cardinal.protocols.streams.cursor import CHANNELS_MAX
from cardinal.protocols.streams.following.reorg_channels import ANONYMOUS
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal.protocols.streams.wire.messages import BATCH, REORG, REORG_COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.batch_index import Found
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.base import Source

_BATCH: Final = bytes((BATCH,))
_REORG: Final = bytes((REORG,))
_COMPLETE: Final = bytes((REORG_COMPLETE,))


def read_channels(open_channel: Callable[[str], Source], app: Stream, found: Found) -> None:
    """Add the complete blocks of the channels whose announcements were found.

    Arguments:
        open_channel: opens a topic; raises as :func:`cardinal.transports.open_source`.
        app: the application.
        found: what was found so far.

    Raises:
        UnreachableError: the records do not arrive.

    """
    for ancestor in list(found.reorgs)[-CHANNELS_MAX:]:
        try:
            source = open_channel(reorg_topic(app.default_topic, ancestor))
        except TopicError:
            continue
        try:
            records = _ended_attempts(source)
            whole = whole_among(source, app, _unsealed(records))
            for record in records:
                found.add_branch(record, whole)
        finally:
            source.close()


def _unsealed(records: list[Record]) -> Iterator[Unsealed]:
    for record in records:
        batch = None if is_sealed(record) else batch_of(record)
        if batch is not None:
            yield Unsealed(batch, record.timestamp_ms, record.timestamp_ms)


def _ended_attempts(source: Source) -> list[Record]:
    """The Batches of every producer's last attempt that has ended."""
    begun: dict[bytes, list[Record]] = defaultdict(list)
    ended: dict[bytes, list[Record]] = {}

    def take(record: Record) -> None:
        producer = dict(record.headers).get(PRODUCER_HEADER, ANONYMOUS)
        kind = record.key[:1]
        if kind == _REORG:
            begun[producer] = []
        elif kind == _COMPLETE:
            ended[producer] = begun.pop(producer, [])
        elif kind == _BATCH:
            begun[producer].append(record)

    marks = source.watermarks().items()
    read_range(source, {where: low for where, (low, _) in marks}, {where: high for where, (_, high) in marks}, take)
    return [record for records in ended.values() for record in records]
