"""`group.id` in the URL: how far a consumer is can be seen while it reads, not only when it ends."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition

from blocks import DEADLINE, Blocks, line, publish, until
from cardinal.consumer import Consumer
from cardinal.transports.kafka import source

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka
    from cardinal.protocols.streams.types import Partition

pytestmark = pytest.mark.broker


def test_the_lag_of_a_consumer_can_be_seen_while_it_reads(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_COMMIT_SECONDS", 0.1)
    stem, group = uuid.uuid4().hex[:12], uuid.uuid4().hex
    app = Blocks(default_topic=f"{stem}-block", topics={"a/": f"{stem}-a", "b/": f"{stem}-b"})
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    client = Client({"bootstrap.servers": cardinal_broker.bootstrap, "group.id": group})
    try:
        with Consumer(f"{url}&group.id={group}", app, idle_timeout=0.2) as consumer:
            until(consumer, "20a")
            deadline = time.monotonic() + DEADLINE
            while (committed := _committed(client, consumer.positions)) != consumer.positions:
                assert time.monotonic() < deadline, f"{committed} of {consumer.positions}"
                assert not list(consumer), "it goes on reading, and there is nothing to read"
    finally:
        client.close()


def _committed(client: Client, positions: dict[Partition, int]) -> dict[Partition, int]:
    asked = [TopicPartition(topic, number) for topic, number in positions]
    return {(found.topic, found.partition): found.offset for found in client.committed(asked, DEADLINE)}
