"""Kafka through confluent-kafka: see :mod:`.settings` for the options of a URL."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from cardinal._concurrency import run_in_thread
from cardinal.transports.read_range import read_recent

from .admin import Cluster, TopicAdmin, TopicInfo
from .settings import KafkaSettings, kafka_settings
from .sink import KafkaSink
from .source import KafkaSource
from .transactions import TransactionalKafkaSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.registry import Topics

__all__ = [
    "KafkaSettings",
    "KafkaSink",
    "KafkaSource",
    "TransactionalKafkaSink",
    "list_topics",
    "open_fenced_sink",
    "open_sink",
    "open_source",
]


TRANSACTIONS: Final = frozenset({"transactional.id", "transaction.timeout.ms"})
"""Properties that a producer without transactions must not have."""


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> KafkaSink:
    """A sink for the application's topics: creates and checks them, and puts a heartbeat into empty partitions.

    Readers of the Go implementation deliver nothing until every partition has delivered a record. An empty partition of
    an existing topic gets a heartbeat too: its creator may have been killed in between.
    """
    return _open(kafka_settings(url), app, producer_id)


def open_fenced_sink(
    settings: KafkaSettings, app: Topics, *, producer_id: str, log: TopicInfo
) -> TransactionalKafkaSink:
    """A sink for the application's topics and one more in the same transactions, whose name is the transactional id.

    Opening it ends what the last owner of the id left open: its transaction is aborted, or its commit completed.

    Arguments:
        settings: with transactions, and no transactional id of their own.
        app: the application whose topics are written; missing topics are created.
        producer_id: put on every record.
        log: the one more topic.

    Raises:
        TopicError, UnreachableError, RefusedError, FencedError: as :func:`open_sink`.

    """
    return cast("TransactionalKafkaSink", _open(settings, app, producer_id, log))


def _open(settings: KafkaSettings, app: Topics, producer_id: str, log: TopicInfo | None = None) -> KafkaSink:
    # Streams of one cluster may have producers of one name.
    transactional_id = f"{app.default_topic}.{producer_id}" if log is None else log.name
    settings.producer(settings.max_message_bytes, transactional_id)  # refuses settings before anything is created
    cluster = Cluster(settings)
    admin = TopicAdmin(settings, cluster)
    topics = admin.ensure(tuple(app.all_topics))
    if log is not None:
        topics[log.name] = log
    limits = [topic.max_message_bytes for topic in topics.values()]
    limits.append(settings.max_message_bytes)  # as the topics of reorg channels are created

    def recent(limit: int) -> list[Record]:
        with closing(KafkaSource(settings, [app.default_topic])) as source:
            return read_recent(source, limit)

    make = partial(
        KafkaSink,
        topics=topics,
        producer_id=producer_id,
        reasons=cluster.reasons,
        recent=recent,
        channel=admin.ensure_channel,
        cluster=cluster.name,
    )
    config = settings.producer(max(limits), transactional_id, smallest=min(limits))
    if settings.transaction_timeout is None:
        sink = make(config)
    else:
        default = [(app.default_topic, number) for number in range(topics[app.default_topic].partitions)]
        plain = make({name: value for name, value in config.items() if name not in TRANSACTIONS})
        try:
            sink = TransactionalKafkaSink(
                config,
                timeout=settings.transaction_timeout,
                connect_timeout=settings.connect_timeout,
                ends=lambda: cluster.ends(default, committed=False),
                plain=plain,
                **make.keywords,
            )
        except BaseException:
            run_in_thread(plain.close, "cardinal-kafka-closing")
            raise
    partitions = [(topic.name, number) for topic in topics.values() for number in range(topic.partitions)]
    try:
        ends = cluster.ends(partitions, committed=False)
        sink.heartbeat([partition for partition in partitions if ends[partition] == 0], settings.connect_timeout)
    except BaseException:
        run_in_thread(sink.close, "cardinal-kafka-closing")  # it may wait for an unreachable broker
        raise
    return sink


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> KafkaSource:
    """A source of these topics."""
    del app
    return KafkaSource(kafka_settings(url), topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The names of all topics of the cluster, Kafka's own left out."""
    return Cluster(kafka_settings(url)).names()


def retention_ms(url: TransportUrl, names: Sequence[str]) -> dict[str, int]:
    """Retention of these topics in milliseconds, -1 for ever, without those whose settings may not be read."""
    settings = kafka_settings(url)
    return TopicAdmin(settings, Cluster(settings)).retention_ms(names)


def delete_topics(url: TransportUrl, names: Sequence[str]) -> None:
    """Delete these topics; raises as :meth:`TopicAdmin.delete`."""
    settings = kafka_settings(url)
    TopicAdmin(settings, Cluster(settings)).delete(names)
