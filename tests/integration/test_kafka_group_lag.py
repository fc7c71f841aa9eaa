"""`group.id` in the URL: how far a consumer is can be seen while it reads, not only when it ends."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka import Consumer as Client

from blocks import DEADLINE, Blocks, hash_of, line, publish, until
from cardinal.consumer import Consumer
from cardinal.consuming.reader import Reader
from cardinal.embedded import EmbeddedKafka
from cardinal.protocols.streams import BlockRef

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_the_lag_of_a_consumer_can_be_seen_while_it_reads(cardinal_broker: EmbeddedKafka) -> None:
    stem, group = uuid.uuid4().hex[:12], uuid.uuid4().hex
    app = Blocks(default_topic=f"{stem}-block", topics={"a/": f"{stem}-a", "b/": f"{stem}-b"})
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    client = Client({"bootstrap.servers": cardinal_broker.bootstrap, "group.id": group})
    try:
        with Consumer(f"{url}&group.id={group}", app, idle_timeout=DEADLINE) as consumer:
            until(consumer, "20a")
            deadline = time.monotonic() + DEADLINE
            while (committed := _committed(client, consumer.positions)) != consumer.positions:
                assert time.monotonic() < deadline, f"{committed} of {consumer.positions}"
                consumer._step()  # it goes on reading, and there is nothing to read
    finally:
        client.close()


def test_a_consumer_of_a_group_is_closed_while_the_broker_is_away(tmp_path: Path) -> None:
    app, group = Blocks(), uuid.uuid4().hex
    with EmbeddedKafka(tmp_path) as broker:
        url = f"kafka://{broker.bootstrap}?cardinal.partitions=1"
        publish(url, line(1, 20), app=app)
        consumer = Consumer(f"{url}&group.id={group}", app, idle_timeout=DEADLINE)
        until(consumer, "20a")
        broker.pause()
        try:
            begun = time.monotonic()
            consumer.close()
            assert time.monotonic() - begun < DEADLINE
        finally:
            broker.resume()


def test_a_look_up_beside_the_stream_counts_for_no_group(cardinal_broker: EmbeddedKafka) -> None:
    """Older Batches end where the stream was long ago."""
    stem, group = uuid.uuid4().hex[:12], uuid.uuid4().hex
    app = Blocks(default_topic=f"{stem}-block", topics={"a/": f"{stem}-a", "b/": f"{stem}-b"})
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 20), app=app)
    client = Client({"bootstrap.servers": cardinal_broker.bootstrap, "group.id": group})
    reader = Reader(f"{url}&group.id={group}", app, wait=DEADLINE)
    try:
        marks = reader.watermarks.query()
        reader.main.assign({where: high for where, (_, high) in marks.items()})
        deadline = time.monotonic() + DEADLINE
        while (parents := reader.lookup.poll(1, BlockRef(20, hash_of("20a")), 0.1)) is None:
            assert time.monotonic() < deadline
        assert parents == {hash_of(f"{number}a"): hash_of(f"{number - 1}a") for number in range(2, 21)}
        assert set(_committed(client, reader.positions()).values()) == {OFFSET_INVALID}
        reader.close()
        assert _committed(client, reader.positions()) == {where: high for where, (_, high) in marks.items()}
    finally:
        client.close()


def _committed(client: Client, positions: dict[Partition, int]) -> dict[Partition, int]:
    asked = [TopicPartition(topic, number) for topic, number in positions]
    return {(found.topic, found.partition): found.offset for found in client.committed(asked, DEADLINE)}
