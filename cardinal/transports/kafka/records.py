"""Conversion of librdkafka's messages to records.

This loop dominates the cost between a broker and a block, so it is optimized: methods are called as functions, a name
of a topic is one object for all records, repeated headers are decoded once and shared (which halves the memory of a
message). Most messages are BatchMsgs, which are assembled without headers and time: omitting these saves a fifth, and
plain tuples another fifth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from cardinal.protocols.streams.types import Headers, Partition, Row
from cardinal.protocols.streams.wire.messages import BATCH_MSG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from confluent_kafka import KafkaError

_NOTHING: Final = -1
_NONE: Final[Headers] = ()


class Messages:
    """Converts messages to rows.

    Arguments:
        topics: every topic that messages come from.
        failed: called with each error among the messages, in their order.

    """

    def __init__(self, topics: Iterable[str], failed: Callable[[KafkaError, Message], None]) -> None:
        self._names = {topic: topic for topic in topics}
        self._failed = failed

    def rows(self, messages: Sequence[Message], *, whole: bool) -> tuple[list[Row], dict[Partition, int]]:
        """The fields of the records, in their order, and the next offset of every partition among them.

        Arguments:
            messages: the result of one call of the client.
            whole: BatchMsgs come with their headers and their own time; else with the time of a neighbour.

        """
        without = _NOTHING if whole else BATCH_MSG
        error, topic_of, partition_of, offset_of = Message.error, Message.topic, Message.partition, Message.offset
        key_of, value_of, time_of, headers_of = Message.key, Message.value, Message.timestamp, Message.headers
        rows: list[Row] = []
        append = rows.append
        next_offsets: dict[Partition, int] = {}
        offset: Any = None
        topic, partition, time, raw_headers, headers = "", -1, 0, None, _NONE
        for message in messages:
            if (failure := error(message)) is not None:
                self._failed(failure, message)
                continue
            number, name = partition_of(message), topic_of(message)
            if number != partition or name != topic:  # messages come in runs of one partition
                if offset is not None:
                    next_offsets[topic, partition] = offset + 1
                topic, partition = self._names[name], number  # type: ignore[index,assignment] # never None without an error
                time = time_of(message)[1]
            offset, key = offset_of(message), key_of(message) or b""
            if key and key[0] == without:
                append((topic, partition, offset, key, value_of(message) or b"", time, _NONE))
                continue
            if (current := headers_of(message)) != raw_headers:  # a topic's records are mostly of one producer
                raw_headers = current
                headers = _pairs(raw_headers) if raw_headers else _NONE
            time = time_of(message)[1]
            append((topic, partition, offset, key, value_of(message) or b"", time, headers))
        if offset is not None:
            next_offsets[topic, partition] = offset + 1
        return rows, next_offsets


def _pairs(pairs: Any) -> Headers:  # noqa: ANN401 - confluent-kafka's type is wider than its values
    """Headers without nulls, which Cardinal never writes."""
    return tuple([(name, value or b"") for name, value in pairs])
