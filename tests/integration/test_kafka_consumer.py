"""The consumer on a real broker: where it begins, what it notices while it runs."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka
from cardinal.errors import TopicError
from cardinal.transports import parse_url
from cardinal.transports.kafka import KafkaSource, kafka_settings
from cardinal.transports.kafka.admin import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.embedded import EmbeddedKafka


pytestmark = pytest.mark.broker


def fresh(threshold: int = 16) -> Blocks:
    name = uuid.uuid4().hex
    topics = {"a/": f"{name}-a", "b/": f"{name}-b"}
    return Blocks(default_topic=f"{name}-block", topics=topics, reorg_threshold=threshold)


def consumer(url: str, app: Blocks, **options: object) -> Consumer:
    return Consumer(url, app, idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


def test_it_begins_with_the_block_of_a_number_or_at_a_time(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=3"
    publish(url, line(1, 150), app=app)
    middle = datetime.now(tz=UTC)
    publish(url, line(151, 300), app=app)
    with consumer(url, app, start=120) as reading:
        assert steps(until(reading, "300a")) == [f"+{number}a" for number in range(120, 301)]
    with consumer(url, app, start=middle) as reading:
        assert steps(until(reading, "300a")) == [f"+{number}a" for number in range(151, 301)]


def test_partitions_that_are_added_while_it_runs_are_read(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.2)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 20), app=app)
    with consumer(url, app) as reading:
        before = until(reading, "20a")
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        for future in admin.create_partitions([NewPartitions(topic, 4) for topic in app.all_topics]).values():
            future.result(DEADLINE)
        deadline = time.monotonic() + DEADLINE
        while len(admin.list_topics(app.default_topic).topics[app.default_topic].partitions) < 4:
            assert time.monotonic() < deadline
        publish(url, line(21, 60), app=app)
        after = until(reading, "60a")
    assert steps([*before, *after]) == [f"+{number}a" for number in range(1, 61)]
    with consumer(url, app, start=str(before[-1].cursor)) as reading:  # a cursor that knows one partition of four
        assert steps(until(reading, "60a")) == [f"+{number}a" for number in range(21, 61)]


def test_at_the_head_no_block_waits_for_a_question_to_the_broker(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends and partitions are asked for on a thread of their own, or when something stands to be proven."""
    app, url = fresh(threshold=128), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=3"
    publish(url, line(1, 20), app=app)
    with consumer(url, app) as reading:
        until(reading, "20a")
        reader, asked = threading.get_ident(), []
        for what in ("starts", "ends", "partition_counts"):
            ask = getattr(Cluster, what)

            def noted(*args: object, what: str = what, ask: Callable[..., object] = ask, **options: object) -> object:
                asked.append((what, threading.get_ident() == reader))
                return ask(*args, **options)

            monkeypatch.setattr(Cluster, what, noted)
        monkeypatch.setattr("cardinal.consuming.partition_sync._LOOK_SECONDS", 0.0)
        monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.0)
        producing = threading.Thread(target=publish, args=(url, line(21, 60)), kwargs={"app": app})
        producing.start()
        until(reading, "60a")
        producing.join(DEADLINE)
        deadline = time.monotonic() + DEADLINE
        while not any(what == "partition_counts" for what, _ in asked):
            assert time.monotonic() < deadline
    assert [what for what, waited in asked if waited] == []


def test_a_topic_that_is_deleted_while_it_reads_is_named(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.consuming.watermarks.LOOK_SECONDS", 0.2)
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=1"
    publish(url, line(1, 5), app=app)
    with consumer(url, app) as reading:
        until(reading, "5a")
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        admin.delete_topics([app.topics["b/"]])[app.topics["b/"]].result(DEADLINE)
        with pytest.raises(TopicError, match="is gone from Kafka") as caught:
            next(iter(reading))
    assert caught.value.topic == app.topics["b/"]


def test_a_topic_that_is_deleted_is_named_by_whoever_asks_where_it_ends(cardinal_broker: EmbeddedKafka) -> None:
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
    finally:
        source.close()
    assert "is gone from Kafka" in str(caught[0])
    assert caught[0].topic == app.topics["b/"]


def test_where_the_url_names_a_group_its_lag_can_be_seen(cardinal_broker: EmbeddedKafka) -> None:
    app, url = fresh(), f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
    group = uuid.uuid4().hex
    publish(url, line(1, 30), app=app)
    with consumer(f"{url}&group.id={group}", app) as reading:
        until(reading, "30a")
        positions = reading.positions
    client = Client({"bootstrap.servers": cardinal_broker.bootstrap, "group.id": group})
    try:
        asked = [TopicPartition(topic, number) for topic, number in positions]
        committed = {(found.topic, found.partition): found.offset for found in client.committed(asked, DEADLINE)}
    finally:
        client.close()
    assert committed == positions


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


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.slow), "pause"])
def test_a_consumer_is_not_ready_while_its_broker_is_away(cardinal_killable_broker: EmbeddedKafka, how: str) -> None:
    """The stream is at rest: nothing but the consumer's own requests says whether the broker is there."""
    name = f"health{uuid.uuid4().hex[:8]}"
    app = Blocks(default_topic=name, topics={"a/": f"{name}-a", "b/": f"{name}-b"})
    url = f"kafka://{cardinal_killable_broker.bootstrap}"
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
    name = uuid.uuid4().hex
    app = Blocks(default_topic=f"{name}-block", topics={"a/": f"{name}-a", "b/": f"{name}-b"})
    url = f"kafka://{cardinal_broker.bootstrap}?cardinal.partitions=2"
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
        assert steps(until(reading, "40a")) == [f"+{number}a" for number in range(21, 41)]
    assert next(looked) > 2, "nobody looked: the producers' pings say the time"
    assert time.monotonic() - began < 6 * DEADLINE
