"""A program leaves a transaction open on a stream's topics: readers of committed records see nothing behind it."""

from __future__ import annotations

import json
import threading
import time
import uuid
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from commands import run_here
from confluent_kafka import Producer as Client
from kafka_streams import a_chain, small_stream

from cardinal.apps import get
from cardinal.consumer import Consumer
from cardinal.consuming import health, watermarks
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal.server import status
from cardinal.transports import open_source, parse_url
from cardinal.transports.base import OpenTransaction
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

CHAIN = " ".join(f"{number}a" for number in range(1, 41))


@contextmanager
def open_transaction(url: str, app: Application, topic: str) -> Iterator[tuple[OpenTransaction, ...]]:
    """A program that writes a record into every partition of a topic, and does not end its transaction."""
    lasting = {"transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": 600_000}
    client = Client({"bootstrap.servers": url.removeprefix("kafka://"), **lasting})
    client.init_transactions()
    with closing(open_source(url, app, topics=(topic,))) as source:
        marks = source.watermarks()
        client.begin_transaction()
        for name, partition in marks:
            client.produce(name, key=b"", value=b"", partition=partition)
        client.flush()
        try:
            yield tuple(OpenTransaction(*tp, high, 1) for tp, (_, high) in sorted(marks.items()))
        finally:
            client.abort_transaction()
            until(lambda: not source.open_transactions())


@pytest.fixture
def url(cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> str:
    """A broker's URL; a transaction takes too long after a second."""
    monkeypatch.setattr(watermarks, "_TRANSACTION_SECONDS", 1.0)
    monkeypatch.setattr(watermarks, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(health, "_LAG_SECONDS", 1.0)
    monkeypatch.setattr(status, "_OPEN_SECONDS", 0.0)
    return f"kafka://{cardinal_broker.bootstrap}"


def test_a_source_names_the_transaction_and_its_first_records_time(url: str) -> None:
    app = small_stream()
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_chain("1a")[0]).result()
        before = time.time()
        with open_transaction(url, app, app.default_topic) as opened, closing(open_source(url, app)) as source:
            assert [(one.tp, one.first) for one in source.open_transactions()] == [
                (one.tp, one.first) for one in opened
            ]
            for one in source.open_transactions():
                assert one.since_ms is not None
                assert before - 5 < one.since_ms / 1000 < time.time() + 5
                assert f"{one.topic}:{one.partition} from offset {one.first} on is behind an open" in str(one)
                assert " since 20" in str(one)
            ends = source.uncommitted_ends()
            assert all(ends[tp] >= high for tp, (_, high) in source.watermarks().items())
        with closing(open_source(url, app)) as source:
            assert list(source.open_transactions()) == []
            assert source.uncommitted_ends() == {tp: high for tp, (_, high) in source.watermarks().items()}


def test_a_consumer_is_not_ready_and_names_the_transaction_that_hides_blocks(url: str) -> None:
    app = small_stream()
    first, *rest = a_chain("1a 2a 3a")
    numbers: list[int] = []
    with Producer(url, app, producer_id="one") as producer, Consumer(url, app) as consumer:
        reading = threading.Thread(target=lambda: numbers.extend(b.number for u in consumer for b in u.added))
        producer.add(first).result()
        with open_transaction(url, app, app.default_topic) as opened:
            for block in rest:
                producer.add(block).result()
            reading.start()
            until(lambda: numbers == [1] and consumer.open_transactions())
            metrics = ConsumerMetrics(consumer)
            until(lambda: not consumer.ready)
            assert consumer.lag >= 2
            waits = metrics.waits_for()
            assert all(f"{one.topic}:{one.partition} from offset {one.first} on" in waits for one in opened)
            assert "an open transaction since" in waits
            with Consumer(url, app, until="end") as other:
                assert [block.number for update in other for block in update.added] == [1]
            state = status.stream_state(parse_url(url), app, 8)
            assert state.head is not None
            assert state.head.number == 1
            assert {one.tp for one in state.open_transactions} == {one.tp for one in opened}
        until(lambda: numbers == [1, 2, 3] and consumer.ready)
        until(lambda: (consumer.lag, consumer.open_transactions(), metrics.waits_for()) == (0, [], ""))
        consumer.close()
        reading.join()
    assert status.stream_state(parse_url(url), app, 8).open_transactions == ()


def test_messages_behind_a_transaction_are_missing_and_not_absent(url: str) -> None:
    app = small_stream()
    chain = [*a_chain("1a 2a"), *a_chain(CHAIN, values=0)[2:]]
    added: list[object] = []
    with Producer(url, app, producer_id="one") as producer:
        producer.add(chain[0]).result()
        with open_transaction(url, app, app.topics["a/"]):
            for block in chain[1:]:
                producer.add(block).result()
            with Consumer(url, app) as consumer:
                reading = threading.Thread(target=lambda: added.extend(b for u in consumer for b in u.added))
                reading.start()
                until(lambda: [one.number for one in consumer.awaited] == [2])
                answers: set[float] = set()  # to requests for watermarks: two of them prove an absence
                until(lambda: answers.add(consumer.last_read_at) or len(answers) > 8)
                assert [getattr(block, "number", 0) for block in added] == [1]
                consumer.close()
                reading.join()
        with Consumer(url, app, until="end") as consumer:
            blocks = [block for update in consumer for block in update.added]
    assert [block.number for block in blocks] == [*range(1, 41)]
    assert all(isinstance(block, Payload) for block in blocks)


def test_the_command_prints_the_transaction(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    topic = f"open-{uuid.uuid4().hex[:8]}"
    feed = ("--from", "dev://?seed=3&blocks=4&reorg-rate=0", "--to", url, "--topic", topic)
    assert run_here(capfd, "produce", "--producer-id", "one", *feed)[0] == 0
    with open_transaction(url, get("evm", chain_id=1337, topic=topic), topic):
        code, text, _ = run_here(capfd, "status", url, "--topic", topic, "--chain-id", "1337")
        assert code == 0
        assert f"hidden     1 record of {topic}:0" in text
        code, text, _ = run_here(capfd, "status", url, "--topic", topic, "--chain-id", "1337", "--json")
        assert [one["partition"] for one in json.loads(text)["open_transactions"]] == [0, 1]
