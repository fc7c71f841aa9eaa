"""The source and the consumer on a real broker: retention, topics that come and go, groups, an unreachable broker."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition
from confluent_kafka import Consumer as Client
from confluent_kafka import Producer as RawProducer
from confluent_kafka.admin import AdminClient, NewPartitions

import waiting
from blocks import DEADLINE, Blocks, hash_of, line, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming.reader import Reader
from cardinal.errors import CardinalError, CursorExpiredError, TopicError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams.types import BlockRef
from cardinal.transports import parse_url
from cardinal.transports.kafka import KafkaSource, kafka_settings
from cardinal.transports.kafka.admin import Cluster
from cardinal_devkit.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition, Position

pytestmark = pytest.mark.broker


def fresh(threshold: int = 16) -> Blocks:
    name = uuid.uuid4().hex
    topics = {"a/": f"{name}-a", "b/": f"{name}-b"}
    return Blocks(default_topic=f"{name}-block", topics=topics, reorg_threshold=threshold)


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


def test_a_cursor_that_retention_has_overtaken_is_refused_with_what_is_missing_and_what_to_do(
    cardinal_broker: EmbeddedKafka,
) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with consumer(url, app) as reading:
        cursor = str(updates_until(reading, "30a")[-1].cursor)
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


def test_records_that_expire_while_they_are_read_are_reported(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 20), app=app)
    source, tp = KafkaSource(kafka_settings(parse_url(url)), [app.default_topic]), (app.default_topic, 0)
    source.assign({tp: 5})
    source.pause([tp])
    admin = AdminClient(cardinal_broker.client_config())
    admin.delete_records([TopicPartition(*tp, 12)])[TopicPartition(*tp, 12)].result(DEADLINE)
    source.pause([])
    with pytest.raises(CursorExpiredError, match=r"retention\.ms") as caught:
        _poll_in_vain(source)
    assert caught.value.missing == {tp: (5, 12)}
    source.close()


def _poll_in_vain(source: KafkaSource) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        source.poll(100, 0.5)


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
        assert steps(updates_until(reading, "600a")) == [f"+{number}a" for number in range(1, 601)]
        everything = set(reading.positions)
    assert any(paused), "nobody was ever ahead: this test shows nothing"
    assert all(some < everything for some in paused)


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
            assert steps(updates_until(reading, "20a")) == [f"+{number}a" for number in range(1, 21)]
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
    waiting.until(lambda: added in other.partitions())
    other.close()
    put(cardinal_broker, app.default_topic, *[(b"%d" % number, b"x") for number in range(20)])
    source.assign({(app.default_topic, 0): 0, added: 0})
    found: set[Partition] = set()
    waiting.until(lambda: len(found) == 2, step=lambda: found.update(record[:2] for record in source.poll(100, 0.1)))
    with pytest.raises(TopicError, match="no partition 2"):
        source.assign({(app.default_topic, 2): 0})
    source.close()


def test_a_partition_that_the_client_has_stopped_reading_is_read_by_a_new_one(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As librdkafka does after some changes of a leader: one partition stays behind, and nothing says so."""
    monkeypatch.setattr("cardinal.transports.kafka.watchdog.PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr("cardinal.transports.kafka.watchdog._LOOK_SECONDS", 0.3)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    with consumer(f"{url}&socket.timeout.ms=1000", app) as reading:
        updates_until(reading, "20a")
        source = reading._reader.main
        assert isinstance(source, KafkaSource)
        client = source._consumer
        client.pause([TopicPartition(topic, 1) for topic in app.all_topics])
        publish(url, line(21, 60), app=app)
        updates_until(reading, "60a")
        assert source._consumer is not client
    assert "no longer fetches" in caplog.text


def test_paused_partitions_stay_paused_with_a_new_client(cardinal_broker: EmbeddedKafka) -> None:
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


def test_partitions_that_are_added_while_it_runs_are_read(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.2)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 20), app=app)
    with consumer(url, app) as reading:
        before = updates_until(reading, "20a")
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        for future in admin.create_partitions([NewPartitions(topic, 4) for topic in app.all_topics]).values():
            future.result(DEADLINE)
        waiting.until(lambda: len(admin.list_topics(app.default_topic).topics[app.default_topic].partitions) >= 4)
        publish(url, line(21, 60), app=app)
        after = updates_until(reading, "60a")
    assert steps([*before, *after]) == [f"+{number}a" for number in range(1, 61)]
    with consumer(url, app, start=str(before[-1].cursor)) as reading:  # a cursor that knows one partition of four
        assert steps(updates_until(reading, "60a")) == [f"+{number}a" for number in range(21, 61)]


def test_at_the_head_no_block_waits_for_a_question_to_the_broker(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watermarks and partitions are queried on a thread of their own, or when something stands to be proven."""
    app, url = fresh(threshold=128), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=3"
    publish(url, line(1, 20), app=app)
    with consumer(url, app) as reading:
        updates_until(reading, "20a")
        reader, queries = threading.get_ident(), []
        for what in ("starts", "ends", "partition_counts"):
            ask = getattr(Cluster, what)

            def noted(*args: object, what: str = what, ask: Callable[..., object] = ask, **options: object) -> object:
                queries.append((what, threading.get_ident() == reader))
                return ask(*args, **options)

            monkeypatch.setattr(Cluster, what, noted)
        monkeypatch.setattr("cardinal.consuming.partition_sync._LOOK_SECONDS", 0.0)
        monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.0)
        producing = threading.Thread(target=publish, args=(url, line(21, 60)), kwargs={"app": app})
        producing.start()
        updates_until(reading, "60a")
        producing.join(DEADLINE)
        waiting.until(lambda: any(what == "partition_counts" for what, _ in queries))
    assert [what for what, waited in queries if waited] == []


def test_a_query_of_watermarks_names_a_deleted_topic(cardinal_broker: EmbeddedKafka) -> None:
    """A consumer that wants a proof asks again and again, and each question would wait for its leaders in vain."""
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 5), app=app)
    source = KafkaSource(kafka_settings(parse_url(url)), app.all_topics)
    try:
        assert len(source.watermarks()) == 2 * len(app.all_topics)
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        admin.delete_topics([app.topics["b/"]])[app.topics["b/"]].result(DEADLINE)
        caught: list[TopicError] = []
        deadline = time.monotonic() + DEADLINE
        while not caught:  # the controller has deleted it, and the broker learns of that
            assert time.monotonic() < deadline
            try:
                source.watermarks()
            except TopicError as error:
                caught.append(error)
        source.partitions()
        with pytest.raises(TopicError, match="is gone from Kafka"):  # two queries in a row did not find it
            source.partitions()
    finally:
        source.close()
    assert "is gone from Kafka" in str(caught[0])
    assert caught[0].topic == app.topics["b/"]


# --- a consumer's health while its broker is killed, hangs, and comes back -------------------------------------------


SOON = 10.0


LATER = 60.0


def wait_for(what: Callable[[], bool], seconds: float) -> float:
    """Seconds until it is so."""
    begun = time.monotonic()
    while not what():
        assert time.monotonic() - begun < seconds
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_consumer_is_not_ready_while_its_broker_is_unreachable(
    cardinal_killable_broker: EmbeddedKafka, how: str
) -> None:
    """The stream is at rest: nothing but the consumer's own requests says whether the broker is there."""
    app, url = fresh(), f"kafka://{cardinal_killable_broker.bootstrap}"
    publish(url, line(1, 3), app=app)
    with Consumer(url, app) as consumer:
        reading = threading.Thread(target=lambda: [None for _ in consumer])
        reading.start()
        try:
            wait_for(lambda: consumer.ready, SOON)
            assert consumer.lag == 0
            seen = consumer.last_read_at
            wait_for(lambda: consumer.last_read_at > seen, SOON)
            if how == "kill":
                cardinal_killable_broker.kill()
            else:
                cardinal_killable_broker.pause()
            wait_for(lambda: not consumer.connected, SOON)
            assert not consumer.ready
            assert consumer.caught_up
            away = consumer.last_read_at
            if how == "kill":
                cardinal_killable_broker.start()
            else:
                cardinal_killable_broker.resume()
            wait_for(lambda: consumer.ready, LATER)
            assert consumer.connected
            wait_for(lambda: consumer.last_read_at > away, SOON)
        finally:
            if how == "pause":
                cardinal_killable_broker.resume()
            consumer.close()
            reading.join(SOON)


# --- a process whose clock is turned back by a day each time somebody looks at it ------------------------------------


DAY = 24 * 3600


def test_a_clock_that_goes_back_by_a_day_holds_up_neither_side(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins, is idle, goes on, and resumes; the producer pings. Waits and deadlines are by the monotonic clock."""
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    began, now, looked = time.monotonic(), time.time(), itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: now - DAY * next(looked))
    monkeypatch.setattr(time, "time_ns", lambda: int(now - DAY * next(looked)) * 1_000_000_000)
    monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.2)
    publish(url, line(1, 20), app=app)
    with Consumer(url, app, idle_timeout=3.0) as reading:
        updates = list(reading)
    assert steps(updates) == [f"+{number}a" for number in range(1, 21)]
    publish(url, line(21, 40), app=app)
    with Consumer(url, app, start=str(updates[-1].cursor), idle_timeout=DEADLINE) as reading:
        assert steps(updates_until(reading, "40a")) == [f"+{number}a" for number in range(21, 41)]
    assert next(looked) > 2, "nobody looked: the producers' pings say the time"
    assert time.monotonic() - began < 6 * DEADLINE


@pytest.mark.slow
def test_the_lag_of_a_consumer_can_be_seen_while_it_reads(cardinal_broker: EmbeddedKafka) -> None:
    app, group = fresh(), uuid.uuid4().hex
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    publish(url, line(1, 20), app=app)
    client = Client({"bootstrap.servers": cardinal_broker.bootstrap, "group.id": group})
    try:
        with Consumer(f"{url}&group.id={group}", app, idle_timeout=DEADLINE) as consumer:
            updates_until(consumer, "20a")
            deadline = time.monotonic() + DEADLINE
            while (committed := _committed(client, consumer.positions)) != consumer.positions:
                assert time.monotonic() < deadline, f"{committed} of {consumer.positions}"
                consumer._step()  # it goes on reading, and there is nothing to read
    finally:
        client.close()


@pytest.mark.slow
def test_a_consumer_of_a_group_is_closed_while_the_broker_is_unreachable(tmp_path: Path) -> None:
    app, group = Blocks(), uuid.uuid4().hex
    with EmbeddedKafka(tmp_path) as broker:
        url = f"kafka://{broker.bootstrap}?cardinal.partitions=1"
        publish(url, line(1, 20), app=app)
        consumer = Consumer(f"{url}&group.id={group}", app, idle_timeout=DEADLINE)
        updates_until(consumer, "20a")
        broker.pause()
        try:
            begun = time.monotonic()
            consumer.close()
            assert time.monotonic() - begun < DEADLINE
        finally:
            broker.resume()


def test_a_look_up_beside_the_stream_counts_for_no_group(cardinal_broker: EmbeddedKafka) -> None:
    """Older Batches end where the stream was long ago."""
    app, group = fresh(), uuid.uuid4().hex
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
    wanted = [TopicPartition(topic, number) for topic, number in positions]
    return {(found.topic, found.partition): found.offset for found in client.committed(wanted, DEADLINE)}


def _delete(broker: EmbeddedKafka, app: Blocks) -> None:
    admin = AdminClient(broker.client_config())
    for done in admin.delete_topics(list(app.all_topics)).values():
        done.result(DEADLINE)
    waiting.until(lambda: not set(app.all_topics) & set(admin.list_topics(timeout=DEADLINE).topics))


def _raised(consumer: Consumer) -> CardinalError:
    with pytest.raises((CursorExpiredError, TopicError)) as caught:
        list(consumer)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("again", ["made anew", "gone"])
def test_a_consumer_reports_at_every_iteration_that_its_topics_were_deleted(
    cardinal_broker: EmbeddedKafka, again: str
) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with Consumer(url, app, idle_timeout=2 * DEADLINE) as consumer:
        updates_until(consumer, "30a")
        _delete(cardinal_broker, app)
        if again == "made anew":
            publish(url, line(1, 3), app=app)
        first = _raised(consumer)
        for _ in range(3):
            repeated = _raised(consumer)
            assert type(repeated) is type(first)
            assert str(repeated) == str(first)
    if again == "made anew":
        with Consumer(url, app, idle_timeout=DEADLINE) as anew:
            updates_until(anew, "3a")


@pytest.mark.slow
def test_a_query_of_a_broker_that_is_unreachable_is_retried(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is fetched of such a partition: a caller that waits for the broker would wait in vain."""
    starts, away = Cluster.starts, [2]

    def failing_twice(self: Cluster, partitions: Sequence[Partition]) -> dict[Partition, int]:
        if len(partitions) == 1 and away[0]:  # of one partition: why the broker has nothing at its position
            away[0] -= 1
            raise UnreachableError("the broker starts again", address="here")
        return starts(self, partitions)

    monkeypatch.setattr(Cluster, "starts", failing_twice)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 30), app=app)
    with Consumer(url, app, idle_timeout=2 * DEADLINE) as consumer:
        updates_until(consumer, "30a")
        _delete(cardinal_broker, app)
        publish(url, line(1, 3), app=app)
        for _ in range(2):
            with pytest.raises(UnreachableError):
                list(consumer)
        assert isinstance(_raised(consumer), CursorExpiredError)
