"""Behaviour that needs a real Kafka: topics and their settings, refusals, a broker that is killed."""

from __future__ import annotations

import os
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Producer as RawProducer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.errors import (
    ConfigurationError,
    CursorExpiredError,
    DeliveryError,
    OversizeError,
    TopicError,
    UnreachableError,
)
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Routed
from cardinal.transports import list_topics, open_sink, open_source
from cardinal.transports.partitioner import fnv1a_partition

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports import Source

pytestmark = pytest.mark.broker
DEADLINE = 60.0


def _blocks() -> Application:
    """A small stream on topics of its own."""
    stem = uuid.uuid4().hex[:12]
    return Application(
        name="blocks",
        chain="blocks:1",
        default_topic=f"{stem}-block",
        topics={"a/": f"{stem}-a"},
        prefixes=("a/", "inside"),
        reorg_threshold=16,
    )


def _hash(number: int) -> bytes:
    return (number + 1).to_bytes(32, "big")


def _payload(number: int, values: int = 5, size: int = 100) -> Payload:
    updates = {f"a/{index}": bytes(size) for index in range(values)}
    return Payload(number, _hash(number), _hash(number - 1), number, {**updates, "inside": b"x"})


def _config(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(30).items()}


def _create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=wanted)])[topic].result(30)


def test_new_topics_have_explicit_settings(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    bootstrap = cardinal_broker.bootstrap
    open_sink(f"kafka://{bootstrap}?cardinal.retention.ms=86400000", app, producer_id="one").close()
    for topic in app.all_topics:
        config = _config(bootstrap, topic)
        assert config["message.timestamp.type"] == "LogAppendTime"
        assert config["cleanup.policy"] == "delete"
        assert config["retention.ms"] == "86400000"
        assert config["max.message.bytes"] == "10000024"
    source = open_source(f"kafka://{bootstrap}", app)
    assert len(source.partitions()) == 4  # twice the brokers, for two topics
    source.close()
    assert set(app.all_topics) <= list_topics(f"kafka://{bootstrap}")


def test_a_topic_that_would_lose_messages_is_refused_and_not_changed(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    _create(cardinal_broker.bootstrap, app.default_topic, cleanup_policy="compact")
    with pytest.raises(TopicError, match=r"compacted.*cleanup\.policy=delete") as caught:
        open_sink(f"kafka://{cardinal_broker.bootstrap}", app, producer_id="one")
    assert caught.value.topic == app.default_topic
    assert _config(cardinal_broker.bootstrap, app.default_topic)["cleanup.policy"] == "compact"


def test_an_existing_topics_limit_counts_for_messages_and_for_batches_of_them(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    _create(cardinal_broker.bootstrap, app.all_topics[1], max_message_bytes="20000")
    with Producer(f"kafka://{cardinal_broker.bootstrap}?compression.codec=none", app, producer_id="one") as producer:
        with pytest.raises(OversizeError) as caught:
            producer.add(Payload(0, _hash(0), _hash(-1), 0, {"a/big": os.urandom(20_001)}))
        assert (caught.value.limit, caught.value.path) == (20_000, "a/big")
        # many small messages at once are one batch to the broker, and no batch may be larger either
        payload = _payload(1, values=500, size=1000)
        producer.add(payload).result(DEADLINE)


def test_empty_partitions_of_a_topic_that_was_there_get_their_heartbeat(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    _create(cardinal_broker.bootstrap, app.default_topic, partitions=5)
    open_sink(f"kafka://{cardinal_broker.bootstrap}", app, producer_id="one").close()
    source = open_source(f"kafka://{cardinal_broker.bootstrap}", app, topics=[app.default_topic])
    assert source.watermarks() == {(app.default_topic, number): (0, 1) for number in range(5)}
    source.close()


@pytest.mark.parametrize("options", ["", "?transactional=update"])
def test_a_heartbeat_for_a_partition_that_is_gone_fails_and_the_sink_goes_on(
    cardinal_broker: EmbeddedKafka, options: str
) -> None:
    """So it is when a topic was created again, with fewer partitions."""
    app = _blocks()
    sink = open_sink(f"kafka://{cardinal_broker.bootstrap}{options}", app, producer_id="one")
    with pytest.raises(DeliveryError, match="partition"):
        sink.heartbeat([(app.default_topic, 99), (app.default_topic, 0)], DEADLINE)
    sink.heartbeat([(app.default_topic, 0)], DEADLINE)
    sink.close()


@pytest.mark.parametrize("partitions", [1, 2, 7, 64])
def test_partitions_are_those_of_the_reference(cardinal_broker: EmbeddedKafka, partitions: int) -> None:
    app = _blocks()
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions={partitions}"
    sink = open_sink(url, app, producer_id="one")
    keys = [b"\x03" + os.urandom(32) + b"a/%d" % index for index in range(200)]
    sink.send([Routed(app.all_topics[1], key, b"") for key in keys], None).result(DEADLINE)
    source = open_source(url, app, topics=app.all_topics[1:])
    source.assign(dict.fromkeys(source.partitions(), 0))
    found: dict[bytes, int] = {}
    deadline = time.monotonic() + DEADLINE
    while len(found) < 200 and time.monotonic() < deadline:
        found |= {record.key: record.partition for record in source.poll(1000, 0.2) if record.key}
    assert found == {key: fnv1a_partition(key, partitions) for key in keys}
    sink.close()
    source.close()


def test_no_broker_is_one_sentence_within_the_time_given() -> None:
    url = "kafka://alice:s3cr3t@127.0.0.1:1?cardinal.connect.timeout.ms=500"
    for attempt in (
        lambda: open_sink(url, _blocks(), producer_id="one"),
        lambda: open_source(url, _blocks()),
        lambda: list_topics(url),
    ):
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 within .*cardinal broker up") as caught:
            attempt()
        assert 0.4 < time.monotonic() - began < DEADLINE
        assert "s3cr3t" not in repr(caught.value)
        assert caught.value.address == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("no.such.option=1", "no.such.option"),
        ("linger.ms=soon", "linger.ms"),
        ("acks=1", "acks is always all"),
        ("request.required.acks=0", "acks is always all"),
        ("partitioner=random", "partitioner is always fnv1a"),
        ("enable.idempotence=false", "enable.idempotence is always true"),
        ("idempotent=0", "idempotent is always 1"),
        ("tls=maybe", "the option tls of kafka:// URLs cannot be used"),
        ("cardinal.partitions=0", "cardinal.partitions"),
        ("cardinal.partitions=many", "cardinal.partitions"),
        ("cardinal.retention.ms=0", "0 keeps nothing: write milliseconds, or -1"),
        ("cardinal.colour=red", "cardinal.colour"),
        ("bootstrap.servers=other", "bootstrap.servers is given twice"),
    ],
)
def test_an_option_that_cannot_work_is_named(cardinal_broker: EmbeddedKafka, options: str, says: str) -> None:
    app = _blocks()
    with pytest.raises(ConfigurationError, match=says):
        open_sink(f"kafka://{cardinal_broker.bootstrap}?{options}", app, producer_id="one")
    assert app.default_topic not in list_topics(f"kafka://{cardinal_broker.bootstrap}")


def test_options_of_the_reference_are_taken(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    options = (
        "compression.codec=lz4&request.required.acks=-1&message.send.max.retries=10&retry.backoff.ms=50&idempotent=1"
        "&fetch.default=1048576&max.waittime=100&net.maxopenrequests=4"
    )
    url = f"kafka://{cardinal_broker.bootstrap}?{options}"
    with Producer(url, app, producer_id="one") as producer:
        producer.add(_payload(0)).result(DEADLINE)
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        assert next(iter(consumer)).added[0].number == 0


def test_more_than_may_be_under_way_waits_and_arrives(cardinal_broker: EmbeddedKafka) -> None:
    app = _blocks()
    url = (
        f"kafka://{cardinal_broker.bootstrap}?queue.buffering.max.messages=50&queue.buffering.max.kbytes=64&linger.ms=0"
    )
    with Producer(url, app, producer_id="one", max_blocks=8) as producer:
        futures = [producer.add(_payload(number, values=40)) for number in range(50)]
        for future in futures:
            future.result(DEADLINE)
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        numbers: list[int] = []
        for update in consumer:
            numbers += [block.number for block in update.added]
            if numbers[-1] == 49:
                break
    assert numbers == list(range(50))


def test_a_refusal_that_is_over_is_not_told_again(cardinal_broker: EmbeddedKafka) -> None:
    """The broker refuses producer and reader for a moment, and takes and gives everything after it."""
    app, url = _blocks(), f"kafka://{cardinal_broker.bootstrap}"
    refused = KafkaError(KafkaError._AUTHENTICATION, "the password was wrong for a moment")
    with Producer(url, app, producer_id="one") as producer:
        source: Any = open_source(url, app)
        source.assign({where: high for where, (_, high) in source.watermarks().items()})
        sink: Any = producer._sink
        for reasons in (sink._reasons, source._reasons):
            reasons(refused)
            assert reasons.refusal() is not None
        producer.add(_payload(1)).result(DEADLINE)
        deadline = time.monotonic() + DEADLINE
        found = []
        while not found and time.monotonic() < deadline:
            found = source.poll(1000, 0.0)  # where nothing comes in time, it tells why
        assert found
        for reasons in (sink._reasons, source._reasons):
            assert reasons.refusal() is None
        source.close()


def _poll_until(source: Source, deadline: float) -> None:
    while time.monotonic() < deadline:
        source.poll(100, 0.5)


def test_records_that_go_while_they_are_read_are_reported(cardinal_broker: EmbeddedKafka) -> None:
    from confluent_kafka import TopicPartition  # noqa: PLC0415 - only this case needs it

    app = _blocks()
    _create(cardinal_broker.bootstrap, app.default_topic)
    raw = RawProducer(cardinal_broker.client_config())
    for _ in range(20):
        raw.produce(app.default_topic, b"x", b"k")
    raw.flush(DEADLINE)
    source = open_source(f"kafka://{cardinal_broker.bootstrap}", app, topics=[app.default_topic])
    where = (app.default_topic, 0)
    source.assign({where: 5})
    source.pause([where])
    admin = AdminClient(cardinal_broker.client_config())
    admin.delete_records([TopicPartition(*where, 12)])[TopicPartition(*where, 12)].result(30)
    source.pause([])
    deadline = time.monotonic() + DEADLINE
    with pytest.raises(CursorExpiredError, match=r"retention\.ms") as caught:
        _poll_until(source, deadline)
    assert caught.value.missing == {where: (5, 12)}
    source.close()


@pytest.mark.slow
def test_a_killed_broker_loses_nothing_acknowledged_and_all_go_on_by_themselves(
    cardinal_killable_broker: EmbeddedKafka,
) -> None:
    broker, app, last = cardinal_killable_broker, _blocks(), 4000
    url = f"kafka://{broker.bootstrap}"
    acknowledged: list[int] = []
    failed: list[BaseException] = []

    def produce() -> None:
        with Producer(url, app, producer_id="one", max_blocks=64) as producer:
            for number in range(last + 1):
                future = producer.add(_payload(number, values=20))
                future.add_done_callback(
                    lambda done, number=number: (
                        failed.append(done.exception())  # type: ignore[misc] # None is checked
                        if done.exception()
                        else acknowledged.append(number)
                    )
                )
            producer.flush(DEADLINE)

    Producer(url, app, producer_id="one").close()
    numbers: list[int] = []
    producing = threading.Thread(target=produce)
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        producing.start()
        killed = False
        for update in consumer:
            assert not update.removed
            numbers += [block.number for block in update.added]
            if not killed and numbers[-1] > last // 10:
                killed = True
                assert len(acknowledged) < last
                broker.kill()
                broker.start()
            if numbers[-1] == last:
                break
    producing.join(DEADLINE)
    assert not producing.is_alive()
    assert failed == []
    assert sorted(acknowledged) == list(range(last + 1))
    assert numbers == list(range(last + 1))
