"""The Kafka sink on a real broker: topics and their settings, bounds, failed deliveries, many threads, kills."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka_streams import DEADLINE, a_block, a_chain, everything_on, named, small_stream

from cardinal.consumer import Consumer
from cardinal.errors import DeliveryError, OversizeError, TopicError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams import Completed, Payload, Reassembler, reorg_topic, split
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef, Record
from cardinal.transports import list_topics, open_sink, open_source
from cardinal_devkit.kafka import EmbeddedKafka
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application

pytestmark = pytest.mark.broker

BOTH = pytest.mark.parametrize("options", ["", "?transactional=update"])


def _url(broker: EmbeddedKafka, options: str = "") -> str:
    return f"kafka://{broker.bootstrap}{options}"


def _create(broker: EmbeddedKafka, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient(broker.client_config())
    wanted = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=wanted)])[topic].result(DEADLINE)


def _config(broker: EmbeddedKafka, topic: str) -> dict[str, str]:
    resource, admin = ConfigResource(ResourceType.TOPIC, topic), AdminClient(broker.client_config())
    answer = admin.describe_configs([resource])[resource].result(DEADLINE)
    return {name: entry.value for name, entry in answer.items()}


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "partitions", "limit", "retention"),
    [
        ("?cardinal.retention.ms=86400000", 2, 10_000_024, 86_400_000),  # twice the number of brokers
        ("?partitions=3&replication=1&retention.ms=-1&max.message.bytes=50000&compression.codec=zstd", 3, 50_000, -1),
    ],
)
def test_new_topics_have_explicit_settings(
    cardinal_broker: EmbeddedKafka, options: str, partitions: int, limit: int, retention: int
) -> None:
    app, url = small_stream(), _url(cardinal_broker, options)
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g", values=50, size=20_000)).result(DEADLINE)  # 1 MB of dots
    admin = AdminClient(cardinal_broker.client_config())
    for topic in app.all_topics:
        config = _config(cardinal_broker, topic)
        assert (config["message.timestamp.type"], config["cleanup.policy"]) == ("LogAppendTime", "delete")
        assert (config["retention.ms"], config["max.message.bytes"]) == (str(retention), str(limit))
        assert len(admin.list_topics(timeout=DEADLINE).topics[topic].partitions) == partitions
    assert set(app.all_topics) <= list_topics(url)
    if isinstance(cardinal_broker, EmbeddedKafka):  # of any other the disk is not visible
        logs = (cardinal_broker.data / "logs").glob(f"{app.all_topics[1]}-*/*.log")
        assert sum(log.stat().st_size for log in logs) < 100_000, "messages are not compressed"


@pytest.mark.parametrize(
    ("config", "says", "options"),
    [
        ({"cleanup_policy": "compact"}, r"compacted.*cleanup\.policy=delete", {}),
        ({"min_insync_replicas": "2"}, r"min\.insync\.replicas is 2", {}),
        ({"max_message_bytes": "500"}, r"500 bytes only: raise its max\.message\.bytes", {}),
        (
            {"message_timestamp_type": "CreateTime"},
            r"message\.timestamp\.type=LogAppendTime",
            {"redundancy": "standby"},
        ),
    ],
)
def test_a_topic_that_cannot_carry_the_stream_is_refused_and_not_changed(
    cardinal_broker: EmbeddedKafka, config: dict[str, str], says: str, options: dict[str, Any]
) -> None:
    app = small_stream()
    _create(cardinal_broker, app.default_topic, **config)
    with pytest.raises(TopicError, match=says) as caught:
        Producer(_url(cardinal_broker), app, producer_id="one", **options)
    assert caught.value.topic == app.default_topic
    ((name, value),) = config.items()
    assert _config(cardinal_broker, app.default_topic)[name.replace("_", ".")] == value
    if options:  # without standby it is as the Go implementation's topics are
        with Producer(_url(cardinal_broker), app, producer_id="one") as producer:
            producer.add(a_block("1a", "0g")).result(DEADLINE)


def test_more_replicas_than_brokers_are_refused_with_the_topic(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    with pytest.raises(TopicError, match=app.default_topic):
        open_sink(_url(cardinal_broker, "?replication=3"), app, producer_id="one")


def test_a_channel_with_several_partitions_is_refused(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream(threshold=1)
    _create(cardinal_broker, reorg_topic(app.default_topic, named("1a")), partitions=2)
    with Producer(_url(cardinal_broker), app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload)
        with pytest.raises(TopicError, match="one"):
            producer.reorg(BlockRef(1, named("1a")), a_chain("2b 3b 4b", root="1a"))
        producer.flush(DEADLINE)


def test_empty_partitions_of_an_existing_topic_get_their_heartbeat(cardinal_broker: EmbeddedKafka) -> None:
    app = small_stream()
    _create(cardinal_broker, app.default_topic, partitions=5)
    open_sink(_url(cardinal_broker), app, producer_id="one").close()
    source = open_source(_url(cardinal_broker), app, topics=[app.default_topic])
    assert source.watermarks() == {(app.default_topic, number): (0, 1) for number in range(5)}
    source.close()


@BOTH
def test_a_heartbeat_for_a_partition_that_is_gone_fails_and_the_sink_continues(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    """The topic was recreated with fewer partitions."""
    app = small_stream()
    sink = open_sink(_url(cardinal_broker, options), app, producer_id="one")
    with pytest.raises(DeliveryError, match="partition"):
        sink.heartbeat([(app.default_topic, 99), (app.default_topic, 0)], DEADLINE)
    sink.heartbeat([(app.default_topic, 0)], DEADLINE)
    sink.close()


def test_no_broker_is_one_sentence_within_the_time_given() -> None:
    url = "kafka://alice:s3cr3t@127.0.0.1:1?cardinal.connect.timeout.ms=500"
    for attempt in (
        lambda: open_sink(url, small_stream(), producer_id="one"),
        lambda: open_source(url, small_stream()),
        lambda: list_topics(url),
    ):
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 within .*cardinal broker up") as caught:
            attempt()
        assert "s3cr3t" not in repr(caught.value)
        assert caught.value.address == "127.0.0.1:1"


# --- messages -------------------------------------------------------------------------------------------------------


@BOTH
def test_records_are_replayed_with_their_own_headers_in_their_order(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    app, url = small_stream(), _url(cardinal_broker, options)
    sink = open_sink(url, app, producer_id="copier")
    assert (sink.capabilities.records, sink.capabilities.channels) == (True, True)
    assert sink.capabilities.transactional == bool(options)
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


@BOTH
def test_every_topic_carries_what_it_accepts(cardinal_broker: EmbeddedKafka, options: str) -> None:
    """One topic accepts less than the other: neither a large message nor a batch of small ones is refused."""
    app = small_stream()
    _create(cardinal_broker, app.default_topic, max_message_bytes="2000000")
    _create(cardinal_broker, app.all_topics[1], max_message_bytes="20000")
    with Producer(_url(cardinal_broker, options), app, producer_id=f"{app.default_topic}-one") as producer:
        whole = a_block("1a", "0g", values=2_000)
        values = {**whole.updates, "a/large": os.urandom(19_000), "inside": os.urandom(1_000_000)}
        producer.add(Payload(1, whole.hash, whole.parent, 1, values)).result(DEADLINE)
        for path, size, limit in (("a/larger", 20_000, 20_000), ("within", 2_000_000, 2_000_000)):
            with pytest.raises(OversizeError) as caught:
                producer.add(Payload(2, whole.parent, whole.hash, 2, {path: bytes(size)}))
            assert caught.value.limit == limit
            assert caught.value.size > limit
        producer.add(a_block("2a", "1a")).result(DEADLINE)
    spoken = {record.key[1:33] for record in everything_on(_url(cardinal_broker), app) if record.key[0] <= 4}
    assert spoken == {named("1a"), named("2a")}


@pytest.mark.slow
def test_while_the_broker_accepts_nothing_sending_is_bounded_and_then_all_arrives_in_order(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    """Bounds of bytes in the client, of blocks and of bytes in the producer."""
    _check_bounded(cardinal_killable_broker, "&queue.buffering.max.kbytes=32")
    _check_bounded(cardinal_killable_broker, max_blocks=16)
    _check_bounded(cardinal_killable_broker, max_bytes=65_536)


def _check_bounded(broker: EmbeddedKafka, options: str = "", **settings: Any) -> None:  # noqa: ANN401 - of Producer
    app, url = small_stream(threshold=256), _url(broker, f"?linger.ms=1{options}")
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 121)), values=10)  # 120 times 1.5 kB
    taken: list[int] = []
    with Producer(url, app, producer_id="one", **settings) as producer:
        producer.add(chain[0]).result(DEADLINE)
        broker.pause()
        adding = threading.Thread(target=lambda: [taken.append(1) for one in chain[1:] if producer.add(one)])
        adding.start()
        _settled(taken)
        assert 0 < len(taken) < 60
        assert adding.is_alive()
        broker.resume()
        adding.join(DEADLINE)
        producer.flush(DEADLINE)
        assert producer.stats.blocks == len(chain)
    batches = [record for record in everything_on(url, app, [app.default_topic]) if record.key[0] == 0]
    assert sorted(record.key[1:] for record in batches) == sorted(payload.hash for payload in chain)
    for partition in {record.partition for record in batches}:
        numbers = [int(r.key[1:].lstrip(b"\0")[:-1]) for r in batches if r.partition == partition]
        assert all(below < above for below, above in pairwise(numbers))


def _settled(taken: list[int]) -> None:
    """Wait until nothing more has been taken for a while."""
    deadline, since, seen = time.monotonic() + DEADLINE, time.monotonic(), -1
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline
        if len(taken) != seen:
            seen, since = len(taken), time.monotonic()
        time.sleep(0.01)


# --- failures -------------------------------------------------------------------------------------------------------


def _numbers(consumer: Consumer) -> Iterator[int]:
    for update in consumer:
        assert not update.removed
        yield from (block.number for block in update.added)


def test_a_failed_delivery_fails_its_block_holds_its_children_and_does_no_harm_when_sent_again(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    app, url = small_stream(), _url(cardinal_killable_broker, "?message.timeout.ms=4000")
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
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        numbers = _numbers(consumer)
        assert [next(numbers) for _ in range(3)] == [1, 2, 3]


def test_if_the_content_is_refused_no_seal_is_sent(cardinal_broker: EmbeddedKafka) -> None:
    """The content's topic accepts less than when the sink was opened; that of the Batches does not."""
    app, url = small_stream(), _url(cardinal_broker, "?compression.type=none")
    sink = open_sink(url, app, producer_id="one")
    [topic] = app.topics.values()
    lower = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[lower])
    admin = AdminClient(cardinal_broker.client_config())
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE)
    payload = a_block("1a", "0g", values=1, size=5_000)
    *content, batch = split(payload, app.topics, app.default_topic)
    until(lambda: sink.send(content, None).exception(DEADLINE))  # the broker applies it
    with pytest.raises(DeliveryError) as caught:
        sink.send(content, batch).result(DEADLINE)
    assert caught.value.hash == payload.hash
    sink.flush(DEADLINE)
    assert [record for record in everything_on(url, app, [app.default_topic]) if record.key[:1] == b"\0"] == []
    sink.close()


def test_a_refusal_that_is_over_is_not_raised(cardinal_broker: EmbeddedKafka) -> None:
    """The broker refuses producer and reader for a moment, and then accepts and delivers everything."""
    app, url = small_stream(), _url(cardinal_broker)
    refused = KafkaError(KafkaError._AUTHENTICATION, "the password was wrong for a moment")
    with Producer(url, app, producer_id="one") as producer:
        source: Any = open_source(url, app)
        source.assign({tp: high for tp, (_, high) in source.watermarks().items()})
        sink: Any = producer._sink
        for reasons in (sink._reasons, source._reasons):
            reasons(refused)
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        until(lambda: source.poll(1000, 0.0))  # a longer wait would raise the refusal
        assert (sink._reasons.refusal(), source._reasons.refusal()) == (None, None)
        source.close()


@pytest.mark.slow
def test_a_killed_broker_loses_nothing_acknowledged_and_all_resume_by_themselves(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    broker, app, last = cardinal_killable_broker, small_stream(threshold=512), 4000
    acknowledged: list[int] = []
    failed: list[BaseException] = []

    def ended(number: int, done: Future[None]) -> None:
        if error := done.exception():
            failed.append(error)
        else:
            acknowledged.append(number)

    def produce() -> None:
        with Producer(_url(broker), app, producer_id="one", max_blocks=64) as producer:
            for number in range(1, last + 1):
                block = a_block(f"{number}a", f"{number - 1}a", values=20)
                producer.add(block).add_done_callback(partial(ended, number))
            producer.flush(DEADLINE)

    Producer(_url(broker), app, producer_id="one").close()
    producing = threading.Thread(target=produce)
    with Consumer(_url(broker), app, idle_timeout=DEADLINE) as consumer:
        producing.start()
        for expected, number in enumerate(_numbers(consumer), 1):
            assert number == expected
            if number == last // 10:
                assert len(acknowledged) < last
                broker.kill()
                broker.start()
            if number == last:
                break
    producing.join(DEADLINE)
    assert not producing.is_alive()
    assert failed == []
    assert sorted(acknowledged) == list(range(1, last + 1))


# --- threads and callbacks --------------------------------------------------------------------------------------------

SMALL = "?queue.buffering.max.messages=100&queue.buffering.max.kbytes=32"
"""Capacity for so little that every thread waits for every other one."""


def _check_complete(url: str, app: Application, chains: list[list[Payload]]) -> None:
    """Every block is complete, and its sealed Batch is after all the rest of it by the broker's clock."""
    records = everything_on(url, app)
    newest: dict[bytes, int] = {}
    for record in records:
        if record.key[0] not in (0, 0xFF):
            newest[record.key[1:33]] = max(record.timestamp_ms, newest.get(record.key[1:33], 0))
    sealed = [record for record in records if SEALED_HEADER in dict(record.headers)]
    assert all(record.timestamp_ms >= newest[record.key[1:]] for record in sealed)
    assert len(sealed) == sum(map(len, chains))
    events = Reassembler().receive(sorted(records, key=lambda record: record.timestamp_ms))
    complete = {event.payload.hash for event in events if isinstance(event, Completed)}
    assert complete == {payload.hash for chain in chains for payload in chain}


@pytest.mark.parametrize("options", ["", SMALL])
def test_several_threads_add_at_once_and_every_block_is_sealed_when_it_is_complete(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    app, url = small_stream(threshold=512), _url(cardinal_broker, options)
    chains = [a_chain(" ".join(f"{number}{letter}" for number in range(1, 151))) for letter in "abcd"]
    with Producer(url, app, producer_id="one", max_blocks=64) as producer:
        threads = [threading.Thread(target=lambda chain=chain: [*map(producer.add, chain)]) for chain in chains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        producer.flush(DEADLINE)
        assert producer.stats[:2] == (600, 600 * 6)
    _check_complete(url, app, chains)


def test_a_block_may_be_added_by_the_callback_of_its_parent(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(threshold=512), _url(cardinal_broker, SMALL)
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 201)))
    ended = threading.Event()
    with Producer(url, app, producer_id="one", max_blocks=2) as producer:

        def add_next(left: list[Payload], done: Future[None]) -> None:
            assert done.exception() is None
            if left:
                producer.add(left[0]).add_done_callback(partial(add_next, left[1:]))
            else:
                ended.set()

        producer.add(chain[0]).add_done_callback(partial(add_next, chain[1:]))
        assert ended.wait(DEADLINE)
        assert producer.stats.blocks == 200
    _check_complete(url, app, [chain])
