"""The Kafka source under a consumer: records to pass over, poison, retention, memory, topics that come and go."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer as RawProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.errors import CursorExpiredError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams.events import Divergence, Rejected
from cardinal.protocols.streams.publishing.splitter import reorg_topic, split
from cardinal.protocols.streams.types import BlockRef
from cardinal.transports import parse_url
from cardinal.transports.kafka import KafkaSource, kafka_settings
from cardinal.transports.kafka.admin import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.embedded import EmbeddedKafka
    from cardinal.protocols.streams.types import Partition, Position

pytestmark = pytest.mark.broker


def fresh() -> Blocks:
    name = uuid.uuid4().hex
    return Blocks(default_topic=f"{name}-block", topics={"a/": f"{name}-a", "b/": f"{name}-b"})


def consumer(url: str, app: Blocks, **options: object) -> Consumer:
    return Consumer(url, app, idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def put(broker: EmbeddedKafka, topic: str, *messages: tuple[bytes, bytes]) -> list[Position]:
    """Write these keys and values by hand; where they lie."""
    client = RawProducer(broker.client_config())
    places: list[Position] = []
    for key, value in messages:
        client.produce(
            topic,
            value,
            key,
            on_delivery=lambda _, message: places.append((topic, message.partition() or 0, message.offset() or 0)),
        )
    client.flush(DEADLINE)
    return places


def test_only_the_topics_of_wanted_entries_are_read(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    with consumer(url, app, tracked=["b/"]) as reading:
        assert steps(until(reading, "20a")) == [f"+{number}a" for number in range(1, 21)]
        assert {topic for topic, _ in reading.positions} == {app.default_topic, app.topics["b/"]}


def test_poison_is_told_with_its_place_and_reason_and_the_stream_goes_on(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 5), app=app)
    poison = [(b"\x00" + hash_of("6a"), b"\xff\xff"), (b"\x77nonsense", b"?"), (b"\x00short", b"")]
    places = put(cardinal_broker, app.default_topic, *poison)
    publish(url, line(6, 40), app=app)
    events: list[object] = []
    with consumer(url, app, on_event=events.append) as reading:
        assert steps(until(reading, "40a")) == [f"+{number}a" for number in range(1, 41)]
    told = {event.position: event for event in events if isinstance(event, Rejected)}
    assert sorted(told) == places
    assert [told[place].key for place in places] == [key for key, _ in poison]
    assert all(event.reason for event in told.values())


def test_records_to_pass_over_are_as_if_they_were_not_there(cardinal_broker: EmbeddedKafka) -> None:
    """A lie that came first counts; with its position on the list what came after it does."""
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 5), app=app)
    lie = next(message for message in split(block("6a", "5a"), app.topics, app.default_topic) if b"a/1" in message.key)
    places = put(cardinal_broker, lie.topic, (lie.key, b"a lie"))
    publish(url, line(6, 9), app=app)

    def sixth(**options: object) -> tuple[bytes, list[object]]:
        events: list[object] = []
        with consumer(url, app, on_event=events.append, **options) as reading:
            found = next(one for update in until(reading, "9a") for one in update.added if one.number == 6)
        return found.updates["a/1"], events  # type: ignore[union-attr] # it is whole

    value, events = sixth()
    assert value == b"a lie"
    assert any(isinstance(event, Divergence) for event in events)
    value, events = sixth(skip=places)
    assert value == b"6a"
    assert [event.position for event in events if isinstance(event, Rejected)] == places
    assert not any(isinstance(event, Divergence) for event in events)


def test_a_cursor_that_retention_has_overtaken_is_refused_with_what_is_missing_and_what_to_do(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with consumer(url, app) as reading:
        cursor = str(until(reading, "30a")[-1].cursor)
    publish(url, line(31, 90), app=app)
    admin = AdminClient(cardinal_broker.client_config())
    for topic in app.all_topics:
        with consumer(url, app, start="latest") as reading:
            before = TopicPartition(topic, 0, reading.positions[topic, 0] - 3)
        admin.delete_records([before])[TopicPartition(topic, 0)].result(DEADLINE)
    with pytest.raises(CursorExpiredError, match=r"records expired.*start without a cursor") as caught:
        consumer(url, app, start=cursor)
    assert {topic for topic, _ in caught.value.missing} <= set(app.all_topics)
    assert all(needed < kept for needed, kept in caught.value.missing.values())


def test_a_position_that_the_broker_does_not_have_is_explained(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 10), app=app)
    source = KafkaSource(kafka_settings(parse_url(url)), [app.default_topic])
    tp = (app.default_topic, 0)
    end = source.watermarks()[tp][1]
    with pytest.raises(
        CursorExpiredError, match=f"ends at {end}, before the position {end + 5}: the topic was recreated"
    ):
        source.assign({tp: end + 5})
    admin = AdminClient(cardinal_broker.client_config())
    admin.delete_records([TopicPartition(*tp, 7)])[TopicPartition(*tp)].result(DEADLINE)
    with pytest.raises(
        CursorExpiredError, match=f"retention has removed the records from 5 to 7 of {tp[0]}:0"
    ) as caught:
        source.assign({tp: 5})
    assert caught.value.missing == {tp: (5, 7)}
    source.close()


@pytest.mark.slow
def test_partitions_far_apart_are_kept_in_sync_and_none_is_left_behind(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No partition is read more than a window ahead of the slowest."""
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=3&fetch.message.max.bytes=1000"
    monkeypatch.setattr("cardinal.consuming.partition_sync._PART", 1_000)
    monkeypatch.setattr("cardinal.consuming.partition_sync._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("cardinal.consuming.partition_sync.POLL_RECORDS", 20)
    for first in range(1, 600, 100):
        publish(url, line(first, first + 99), app=app)  # each takes its time, a few hundred milliseconds
    paused: list[frozenset[Partition]] = []
    pause = KafkaSource.pause

    def noted(self: KafkaSource, partitions: frozenset[Partition]) -> None:
        paused.append(frozenset(partitions))
        pause(self, partitions)

    monkeypatch.setattr(KafkaSource, "pause", noted)
    with consumer(url, app) as reading:
        assert steps(until(reading, "600a")) == [f"+{number}a" for number in range(1, 601)]
        everything = set(reading.positions)
    assert any(paused), "nobody was ever ahead: this test shows nothing"
    assert all(some < everything for some in paused)


def test_from_the_tail_only_what_comes_later_is_read(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 40), app=app)
    with consumer(url, app, start="latest") as reading:
        publish(url, line(41, 60), app=app)
        updates = until(reading, "60a")
    assert steps(updates) == [f"+{number}a" for number in range(41, 61)]


def test_topics_that_are_made_after_the_consumer_began_are_noticed(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    producing = threading.Thread(target=publish, args=(url, line(1, 20)), kwargs={"app": app})
    looked = threading.Event()
    ask = Cluster.partition_counts

    def noted(self: Cluster, names: Iterable[str]) -> dict[str, int]:
        found = ask(self, names)
        if not found and not looked.is_set():
            looked.set()
            producing.start()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "partition_counts", noted)
        with consumer(url, app, topics_timeout=DEADLINE) as reading:
            assert steps(until(reading, "20a")) == [f"+{number}a" for number in range(1, 21)]
    producing.join(DEADLINE)
    assert looked.is_set()


def test_partitions_that_were_added_after_a_source_was_opened_may_be_read_before_it_has_looked_for_any(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    with Producer(f"{url}?cardinal.partitions=1", app, producer_id="a"):
        pass
    settings = kafka_settings(parse_url(url))
    source, other = (KafkaSource(settings, [app.default_topic]) for _ in range(2))
    admin = AdminClient(cardinal_broker.client_config())
    for done in admin.create_partitions([NewPartitions(app.default_topic, 2)]).values():
        done.result(DEADLINE)
    added = (app.default_topic, 1)
    deadline = time.monotonic() + DEADLINE
    while added not in other.partitions():
        assert time.monotonic() < deadline
    other.close()
    put(cardinal_broker, app.default_topic, *[(b"%d" % number, b"x") for number in range(20)])
    source.assign({(app.default_topic, 0): 0, added: 0})
    found: set[Partition] = set()
    while len(found) < 2:
        assert time.monotonic() < deadline
        found |= {record[:2] for record in source.poll(100, 0.1)}
    with pytest.raises(TopicError, match="no partition 2"):
        source.assign({(app.default_topic, 2): 0})
    source.close()


def test_a_reorg_channel_is_read_when_a_reorg_names_one_and_dropped_when_it_is_complete(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    own = set(app.all_topics)
    channel = reorg_topic(app.default_topic, hash_of("5a"))
    read: set[str] = set()
    with Producer(url, app, producer_id="one") as producer:
        for one in line(1, 40):
            producer.add(one)
        producer.flush(DEADLINE)
        with consumer(url, app, on_event=lambda _: read.update(topic for topic, _ in reading.positions)) as reading:
            until(reading, "40a")
            assert {topic for topic, _ in reading.positions} == own
            producer.reorg(BlockRef(5, hash_of("5a")), line(6, 42, "b", "5a", weight=9)).result(DEADLINE)
            (switch,) = until(reading, "42b")
            deadline = time.monotonic() + DEADLINE
            while {topic for topic, _ in reading.positions} != own:
                assert time.monotonic() < deadline
                reading._step()
    assert channel in read
    assert steps([switch])[-37:] == [f"+{number}b" for number in range(6, 43)]
    assert len(switch.removed) == 35


def test_it_is_ready_when_what_was_there_is_delivered_and_not_when_it_is_read(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 30), app=app)
    with consumer(url, app) as reading:
        seen = iter(reading)
        last = next(seen)
        deadline = time.monotonic() + DEADLINE
        while last.added[-1].number < 30:
            assert not reading.ready
            last = next(seen)
        while not reading.caught_up:
            assert time.monotonic() < deadline
            reading._step()
        assert not reading.ready, "nobody has asked for the next one, so the last may not have been taken"
    with consumer(url, app) as reading:
        for update in reading:
            assert not reading.ready
            if update.added[-1].number == 30:
                reading._options = replace(reading._options, idle_timeout=0.2)  # asked for the next one, it finds none
        assert reading.ready


def test_a_partition_that_the_client_has_stopped_reading_is_read_by_a_new_one(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As librdkafka does after some changes of a leader: one partition stays behind, and nothing says so."""
    monkeypatch.setattr("cardinal.transports.kafka.watchdog.PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("cardinal.transports.kafka.watchdog._LOOK_SECONDS", 0.3)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    with consumer(f"{url}&socket.timeout.ms=1000", app) as reading:
        until(reading, "20a")
        source = reading._reader.main
        assert isinstance(source, KafkaSource)
        client = source._consumer
        client.pause([TopicPartition(topic, 1) for topic in app.all_topics])
        publish(url, line(21, 60), app=app)
        until(reading, "60a")
        assert source._consumer is not client
    assert "no longer fetches" in caplog.text


def test_what_was_paused_stays_so_with_a_new_client_and_nothing_comes_twice(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 200), app=app)
    source = KafkaSource(kafka_settings(parse_url(url)), app.all_topics)
    try:
        marks = source.watermarks()
        source.assign({where: low for where, (low, _) in marks.items()})
        later = frozenset(where for where in marks if where[1] == 1)
        read = source.poll(100, 5.0)
        source.pause(later)
        read += source.poll(50, 5.0)  # of what is fetched already, some is held back
        source._reconnect(sorted(marks))
        deadline = time.monotonic() + DEADLINE
        while any(source.positions()[where] < marks[where][1] for where in marks.keys() - later):
            assert time.monotonic() < deadline
            found = source.poll(500, 0.2)
            assert not later & {record[:2] for record in found}
            read += found
        source.pause(())
        while any(source.positions()[where] < high for where, (_, high) in marks.items()):
            assert time.monotonic() < deadline
            read += source.poll(500, 0.2)
    finally:
        source.close()
    places = [record[:3] for record in read]
    assert len(places) == len(set(places)) == sum(high - low for low, high in marks.values())
