"""Messages, refusals and failed deliveries of the Kafka sink, on a real broker."""

from __future__ import annotations

from collections import defaultdict

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka_streams import DEADLINE, a_block, a_chain, everything_on, named, small_stream

from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka
from cardinal.errors import ConfigurationError, DeliveryError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams import Reorg, ReorgComplete, decode, reorg_topic
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef, Record
from cardinal.transports import open_sink, open_source

pytestmark = pytest.mark.broker


def _create(broker: EmbeddedKafka, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient(broker.client_config())
    wanted = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=wanted)])[topic].result(30)


@pytest.mark.parametrize("transactional", ["none", "update"])
def test_records_are_replayed_with_their_own_headers_in_their_order(
    cardinal_broker: EmbeddedKafka, transactional: str
) -> None:
    app = small_stream()
    url = f"kafka://{cardinal_broker.bootstrap}?transactional={transactional}"
    if transactional == "none":
        url = f"kafka://{cardinal_broker.bootstrap}"
    sink = open_sink(url, app, producer_id="copier")
    assert sink.capabilities.records
    assert sink.capabilities.channels
    assert sink.capabilities.transactional == (transactional == "update")
    headers = ((("cardinal-producer", b"one"), ("other", b"\0\1"), ("other", b"")), ())
    records = [
        Record(app.default_topic, 7, at, b"\3" + bytes(32) + b"%d" % at, b"%d" % at, 1, headers[at % 2])
        for at in range(20)
    ]
    sink.replay(records).result(DEADLINE)
    sink.replay([]).result(DEADLINE)
    sink.close()
    found = everything_on(url, app, [app.default_topic])
    assert {(r.key, r.value, r.headers) for r in found} == {(r.key, r.value, r.headers) for r in records}
    order = defaultdict(list)
    for record in found:
        order[record.partition].append(int(record.value))
    assert all(values == sorted(values) for values in order.values())


def test_topics_are_made_as_the_url_says_and_messages_compressed(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    options = "partitions=3&replication=1&retention.ms=3600000&max.message.bytes=50000&compression.codec=zstd"
    url = f"kafka://{cardinal_broker.bootstrap}?{options}"
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g", values=50, size=20_000)).result(DEADLINE)  # 1 MB of dots
    admin = AdminClient(cardinal_broker.client_config())
    resource = ConfigResource(ResourceType.TOPIC, app.all_topics[1])
    config = {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(30).items()}
    assert (config["retention.ms"], config["max.message.bytes"]) == ("3600000", "50000")
    assert len(admin.list_topics(timeout=30).topics[app.all_topics[1]].partitions) == 3
    if not isinstance(cardinal_broker, EmbeddedKafka):
        pytest.skip("what a broker that is not ours keeps on its disk cannot be seen")
    folders = (cardinal_broker.data / "logs").glob(f"{app.all_topics[1]}-*/*.log")
    assert sum(log.stat().st_size for log in folders) < 100_000


def test_more_replicas_than_brokers_are_refused_with_the_topic(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    with pytest.raises(TopicError, match=app.default_topic):
        open_sink(f"kafka://{cardinal_broker.bootstrap}?replication=3", app, producer_id="one")


def test_a_topic_option_that_is_given_with_and_without_its_prefix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        open_sink("kafka://localhost?partitions=3&cardinal.partitions=4", small_stream(), producer_id="one")


def test_a_topic_that_can_acknowledge_nothing_is_refused(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    _create(cardinal_broker, app.default_topic, min_insync_replicas="2")
    with pytest.raises(TopicError, match=r"min\.insync\.replicas is 2") as caught:
        open_sink(f"kafka://{cardinal_broker.bootstrap}", app, producer_id="one")
    assert caught.value.topic == app.default_topic


def test_a_failed_delivery_fails_its_block_holds_its_children_and_does_no_harm_when_sent_again(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    app = small_stream()
    url = f"kafka://{cardinal_killable_broker.bootstrap}?message.timeout.ms=4000"
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        cardinal_killable_broker.pause()
        failed, child = producer.add(a_block("2a", "1a")), producer.add(a_block("3a", "2a"))
        with pytest.raises(DeliveryError) as caught:
            failed.result(DEADLINE)
        assert caught.value.hash == named("2a")
        with pytest.raises(DeliveryError):
            child.result(DEADLINE)
        cardinal_killable_broker.resume()
        again = [producer.add(a_block("3a", "2a"))]
        assert not again[0].done()
        again.append(producer.add(a_block("2a", "1a")))
        for future in again:
            future.result(DEADLINE)
    numbers: list[int] = []
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            assert not update.removed
            numbers += [block.number for block in update.added]
            if numbers[-1] == 3:
                break
    assert numbers == [1, 2, 3]


def test_a_deep_branch_goes_through_a_topic_with_one_partition_that_is_there_before_it_is_announced(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app, url = small_stream(threshold=2), f"kafka://{cardinal_broker.bootstrap}"
    channel = reorg_topic(app.default_topic, named("1a"))
    with Producer(url, app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a 4a 5a"):
            producer.add(payload)
        producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b 5b 6b", root="1a")).result(DEADLINE)
        producer.add(a_block("7b", "6b")).result(DEADLINE)
    records = everything_on(url, app, [channel])
    assert {record.partition for record in records} == {0}
    first, last = (decode(records[at].key, records[at].value) for at in (0, -1))
    assert (first, last) == (Reorg(named("1a"), 1), ReorgComplete(named("1a"), 1))
    assert sum(SEALED_HEADER in dict(record.headers) for record in records) == 5
    source = open_source(url, app, topics=[channel])
    assert source.partitions() == ((channel, 0),)
    source.close()


def test_a_consumer_switches_through_the_channel_in_one_update(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(threshold=2), f"kafka://{cardinal_broker.bootstrap}"
    chain: list[bytes] = []
    with Producer(url, app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a 4a 5a"):
            producer.add(payload)
        producer.flush(DEADLINE)
        with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
            for update in consumer:
                if named("5a") in {block.hash for block in update.added}:
                    producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b 5b 6b", root="1a"))
                for block in update.removed:
                    assert chain.pop() == block.hash
                chain += [block.hash for block in update.added]
                if update.removed:
                    break
    assert chain == [named(name) for name in ("1a", "2b", "3b", "4b", "5b", "6b")]
    assert [len(update.removed), len(update.added)] == [4, 5]


def test_a_channel_with_several_partitions_is_refused(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(threshold=1), f"kafka://{cardinal_broker.bootstrap}"
    channel = reorg_topic(app.default_topic, named("1a"))
    _create(cardinal_broker, channel, partitions=2)
    with Producer(url, app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload)
        with pytest.raises(TopicError, match="one"):
            producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b", root="1a"))
        producer.flush(DEADLINE)
