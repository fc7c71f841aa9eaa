"""librdkafka's messages as records: one loop over all that one call brought.

The loop is the costliest thing between a broker and a block, so it is written for its cost (nanoseconds a message, on
a slow machine): methods are called as functions, a topic's name is one object for all of its records, headers that
repeat are decoded once and shared (which halves what a held message weighs), and a record is built past NamedTuple's
own constructor, which takes as long as all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from cardinal.protocols.streams.types import Partition, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from confluent_kafka import KafkaError

_NONE: Final[tuple[tuple[str, bytes], ...]] = ()


class Messages:
    """Makes records of messages.

    Arguments:
        topics: every topic that messages come from.
        failed: told of what is no message but an error, in its place among the messages.

    """

    def __init__(self, topics: Iterable[str], failed: Callable[[KafkaError, Message], None]) -> None:
        self._names = {topic: topic for topic in topics}
        self._failed = failed

    def records(self, messages: Sequence[Message]) -> tuple[list[Record], dict[Partition, int]]:
        """The records, in their order, and for every partition among them the offset after its last one."""
        error, topic_of, partition_of, offset_of = Message.error, Message.topic, Message.partition, Message.offset
        key_of, value_of, time_of, headers_of = Message.key, Message.value, Message.timestamp, Message.headers
        records: list[Record] = []
        append, new = records.append, tuple.__new__
        next_offsets: dict[Partition, int] = {}
        offset: Any = None
        topic, partition, found, headers = "", -1, None, _NONE
        for message in messages:
            if (failure := error(message)) is not None:
                self._failed(failure, message)
                continue
            number, name = partition_of(message), topic_of(message)
            if number != partition or name != topic:  # messages come in runs of one partition
                if offset is not None:
                    next_offsets[topic, partition] = offset + 1
                topic, partition = self._names[name], number  # type: ignore[index,assignment] # never None without an error
            if (other := headers_of(message)) != found:  # a topic's records are mostly of one producer
                found = other
                headers = _pairs(found) if found else _NONE
            offset = offset_of(message)
            append(
                new(
                    Record,
                    (
                        topic,
                        partition,
                        offset,
                        key_of(message) or b"",
                        value_of(message) or b"",
                        time_of(message)[1],
                        headers,
                    ),
                )
            )
        if offset is not None:
            next_offsets[topic, partition] = offset + 1
        return records, next_offsets


def _pairs(found: Any) -> tuple[tuple[str, bytes], ...]:  # noqa: ANN401 - confluent-kafka's type is wider than its values
    """Headers without nulls, which nothing of ours writes."""
    return tuple([(name, value or b"") for name, value in found])
