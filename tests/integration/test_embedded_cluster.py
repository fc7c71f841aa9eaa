"""Three embedded brokers: what one of them may do without harm, and what a restart keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal_devkit.kafka import EmbeddedCluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DEADLINE = 60.0


def produce(config: dict[str, str], values: range) -> int:
    """Send the numbers to the topic; how many were acknowledged by two brokers at least."""
    acknowledged: list[object] = []
    producer = Producer({**config, "enable.idempotence": "true", "log_level": "0"})
    for value in values:
        producer.produce("numbers", str(value).encode(), on_delivery=lambda error, _: acknowledged.append(error))
    producer.flush(DEADLINE)
    return acknowledged.count(None)


def read(config: dict[str, str], count: int) -> list[bytes | None]:
    consumer = Consumer({**config, "group.id": "reader", "log_level": "0"})
    try:
        consumer.assign([TopicPartition("numbers", 0, OFFSET_BEGINNING)])
        return [message.value() for message in consumer.consume(count, DEADLINE)]
    finally:
        consumer.close()


def test_one_of_three_is_stopped_killed_and_all_are_started_again(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(tmp_path)
    with cluster:
        config = cluster.client_config()
        assert len({node.pid for node in cluster.nodes}) == 3
        admin = AdminClient({**config, "log_level": 0})
        # Else a request is lost with the bootstrap connection, which ends when the brokers are known.
        admin.list_topics(timeout=DEADLINE)
        for made in admin.create_topics([NewTopic("numbers", 1, 3)]).values():
            made.result(DEADLINE)
        assert produce(config, range(100)) == 100
        leader = admin.list_topics("numbers", timeout=DEADLINE).topics["numbers"].partitions[0].leader
        follower = cluster.node(leader % 3 + 1)
        follower.pause()
        assert produce(config, range(100, 200)) == 100, "two of three are enough"
        follower.resume()
        cluster.node(leader).kill()
        assert not cluster.node(leader).running
        assert produce(config, range(200, 300)) == 100, "another one leads"
        cluster.node(leader).start()
        assert all(node.running for node in cluster.nodes)
    assert not any(node.running for node in cluster.nodes)
    with EmbeddedCluster(tmp_path) as again:
        assert again.client_config() == config
        assert read(config, 300) == [str(number).encode() for number in range(300)]
