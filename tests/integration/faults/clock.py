"""Copy of a stream with wrong times: the same records in the same places, stamped by a clock that jumps back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.errors import TransportError
from cardinal.transports import open_source, parse_url
from cardinal.transports.read_range import read_all

if TYPE_CHECKING:
    from cardinal.protocols.streams.types import Partition, Record

    from .work import Task

DAY_MS: Final = 24 * 3_600_000
_ORDER_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 0.1
_UNDER_WAY: Final = 10_000
"""Messages of the copy: the client refuses more than ten times as many."""


def copy(task: Task, *, jumps: int) -> Task:
    """Copy a finished stream to topics of another name, with times that jump back by a day ``jumps`` times.

    The jumps come at other places in every partition: brokers that lead different ones have clocks of their own.

    Returns:
        The same task on the copy, with a database of its own.

    Raises:
        TransportError: the copy is not acknowledged.

    """
    copied = replace(task, stem=f"{task.stem}-back", resume=False)
    names = dict(zip(task.application.all_topics, copied.application.all_topics, strict=True))
    source = open_source(task.url, task.application)
    records: list[Record] = []
    try:
        marks = source.watermarks()
        read_all(source, marks, records.append)
    finally:
        source.close()
    bootstrap = parse_url(task.url).address
    _create(bootstrap, {names[topic]: _count(topic, marks) for topic in names})
    _write(bootstrap, records, names, jumps)
    return copied


def _count(topic: str, marks: dict[Partition, tuple[int, int]]) -> int:
    return sum(1 for where in marks if where[0] == topic)


def _create(bootstrap: str, counts: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    topics = [NewTopic(name, count, 1, config=config) for name, count in counts.items()]
    for answer in admin.create_topics(topics).values():
        answer.result(_ORDER_SECONDS)


def _write(bootstrap: str, records: list[Record], names: dict[str, str], jumps: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": "true", "log_level": 0})
    ends: dict[Partition, int] = {}
    for record in records:
        ends[record.topic, record.partition] = record.offset + 1
    failed: list[KafkaException] = []
    for record in records:
        # every partition's own length sets where its jumps are
        passed = (record.offset + record.partition) * (jumps + 1) // (ends[record.topic, record.partition] + 4)
        producer.produce(
            names[record.topic],
            record.value,
            record.key,
            record.partition,
            on_delivery=lambda error, _: failed.append(KafkaException(error)) if error is not None else None,
            timestamp=record.timestamp_ms - passed * DAY_MS,
            headers=list(record.headers),
        )
        producer.poll(0)
        while len(producer) >= _UNDER_WAY:
            producer.poll(_WAIT_SECONDS)
    if producer.flush(_ORDER_SECONDS) or failed:
        raise TransportError("the copy of the stream was not acknowledged")
