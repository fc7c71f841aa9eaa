"""Blocks of a reorg channel: they are on no other topic, and the main topics continue above them.

A channel is read where its announcement was read, of more than 16 the newest. What counts is the last attempt of a
producer that has ended with ReorgComplete: before that no consumer switches. Of its blocks those count that are sealed,
or of which all messages are in the channel.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from cardinal.errors import TopicError
from cardinal.producing.survey.batch_index import BatchCopy, batch_of
from cardinal.producing.survey.completeness import complete_among
from cardinal.protocols.streams.cursor import CHANNELS_MAX
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.types import is_sealed, producer_of
from cardinal.protocols.streams.wire.messages import BATCH, REORG, REORG_COMPLETE
from cardinal.transports.read_range import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.producing.layout import Stream
    from cardinal.producing.survey.batch_index import BatchIndex
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.base import Source

_BATCH: Final = bytes((BATCH,))
_REORG: Final = bytes((REORG,))
_COMPLETE: Final = bytes((REORG_COMPLETE,))


def read_channels(
    open_channel: Callable[[str], Source], app: Stream, index: BatchIndex, *, sealed: bool = True
) -> None:
    """Add the complete blocks of the channels whose announcements are in the index. UnreachableError as of a source.

    ``sealed``: a seal says that a block is complete; False: its messages are counted all the same.
    """
    for ancestor in list(index.reorgs)[-CHANNELS_MAX:]:
        try:
            source = open_channel(reorg_topic(app.default_topic, ancestor))
        except TopicError:
            continue
        try:
            blocks = [(record, batch) for record in _ended_attempts(source) if (batch := batch_of(record)) is not None]
            trusted = {batch.hash for record, batch in blocks if sealed and is_sealed(record.headers)}
            copies = [BatchCopy(batch, record.timestamp_ms) for record, batch in blocks if batch.hash not in trusted]
            complete = trusted | complete_among(source, app, copies)
            for record, batch in blocks:
                if batch.hash in complete:
                    index.add_branch(record, batch)
        finally:
            source.close()


def _ended_attempts(source: Source) -> list[Record]:
    """The Batches of every producer's last attempt that has ended."""
    begun: dict[bytes, list[Record]] = defaultdict(list)
    ended: dict[bytes, list[Record]] = {}

    def take(record: Record) -> None:
        producer = producer_of(record.headers)
        kind = record.key[:1]
        if kind == _REORG:
            begun[producer] = []
        elif kind == _COMPLETE:
            ended[producer] = begun.pop(producer, [])
        elif kind == _BATCH:
            begun[producer].append(record)

    read_all(source, source.watermarks(), take)
    return [record for records in ended.values() for record in records]
