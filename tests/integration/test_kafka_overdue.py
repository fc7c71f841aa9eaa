"""Transactions that were open for too long: the broker fences their producer, which goes on with a new client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka_streams import DEADLINE, a_block, everything_on, small_stream

from cardinal.embedded import EmbeddedKafka
from cardinal.errors import ConfigurationError, DeliveryError, FencedError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.kafka import transactions

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def looking_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that looks for overdue transactions every half second; by default Kafka does every ten."""
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with EmbeddedKafka(tmp_path_factory.mktemp("looking-broker"), properties=properties) as broker:
        yield broker


@pytest.fixture
def overdue(looking_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """A producer whose next transaction hangs for longer than it may be open."""
    url = f"kafka://{looking_broker.bootstrap}?transactional=update&transaction.timeout.ms=1000"
    with Producer(url, small_stream(), producer_id="hung", ping_seconds=0.2) as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        sink: Any = producer._sink
        send = sink._send

        def hang(*args: object) -> None:
            monkeypatch.setattr(sink, "_send", send)
            send(*args)
            time.sleep(2.5)  # longer than the timeout and the broker's looking: what this is about

        monkeypatch.setattr(sink, "_send", hang)
        yield producer


def _wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _blocks(producer: Producer, broker: EmbeddedKafka) -> list[bytes]:
    url = f"kafka://{broker.bootstrap}?transactional=update"
    found = everything_on(url, producer._app)  # type: ignore[arg-type] # it is an Application
    return sorted(record.key[1:] for record in found if record.key[:1] == bytes((BATCH,)))


def test_blocks_that_come_while_it_connects_again_wait_in_line(
    looking_broker: EmbeddedKafka, overdue: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink: Any = overdue._sink
    connect, may, asked = sink._connect, threading.Event(), threading.Event()

    def connect_later() -> object:
        asked.set()
        assert may.wait(DEADLINE)
        return connect()

    monkeypatch.setattr(sink, "_connect", connect_later)
    chain = [a_block(f"{number}a", f"{number - 1}a") for number in (2, 3, 4)]
    failed = overdue.add(chain[0])
    assert asked.wait(DEADLINE)
    _wait_for(lambda: sink._outbox.stopped is not None)
    later = overdue.add(chain[1])
    may.set()
    with pytest.raises(DeliveryError, match="timeout"):
        failed.result(DEADLINE)
    for sent in (overdue.add(chain[0]), later, overdue.add(chain[2])):
        sent.result(DEADLINE)
    pings = overdue._pinger._sent[-1]
    _wait_for(lambda: overdue._pinger._sent[-1] != pings)
    assert len(_blocks(overdue, looking_broker)) == 4


@pytest.mark.parametrize("error", [ConfigurationError("no CA file", setting="ssl.ca.location"), ValueError("a fault")])
def test_whatever_is_wrong_when_it_connects_again_is_told_and_ends_nothing(
    overdue: Producer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sink: Any = overdue._sink
    connect = sink._connect
    wrong = [error]

    def connect_if_right() -> object:
        if wrong:
            raise wrong.pop()
        return connect()

    monkeypatch.setattr(sink, "_connect", connect_if_right)
    with pytest.raises(type(error), match=str(error)):
        overdue.add(a_block("2a", "1a")).result(DEADLINE)
    overdue.add(a_block("2a", "1a")).result(DEADLINE)
    overdue.add(a_block("3a", "2a")).result(DEADLINE)


def test_where_it_cannot_connect_again_at_once_it_does_so_for_the_next_block(
    looking_broker: EmbeddedKafka, overdue: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink: Any = overdue._sink
    connect = sink._connect
    away = [UnreachableError("away", address="broker") for _ in range(2)]

    def connect_if_there() -> object:
        if away:
            raise away.pop()
        return connect()

    monkeypatch.setattr(sink, "_connect", connect_if_there)
    with pytest.raises(UnreachableError):
        overdue.add(a_block("2a", "1a")).result(DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            overdue.add(a_block("2a", "1a")).result(DEADLINE)
        except UnreachableError:
            assert time.monotonic() < deadline
        else:
            break
    overdue.add(a_block("3a", "2a")).result(DEADLINE)
    assert not away
    assert len(_blocks(overdue, looking_broker)) == 3


def test_that_the_client_stopped_may_be_heard_while_the_transaction_is_aborted(
    looking_broker: EmbeddedKafka, overdue: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is away for the abort, and back for the thread that serves acknowledgements."""
    sink: Any = overdue._sink
    send, abort = sink._send, sink._abort

    def fail(*args: object) -> None:
        send(*args)  # hangs
        raise transactions._UndeliveredError(KafkaError(KafkaError._MSG_TIMED_OUT))

    def hear(**_: object) -> bool:
        monkeypatch.setattr(sink, "_abort", abort)
        sink._outbox.stop(KafkaError(KafkaError._FENCED, fatal=True))
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))

    monkeypatch.setattr(sink, "_send", fail)
    monkeypatch.setattr(sink, "_abort", hear)
    with pytest.raises(DeliveryError, match="timeout"):
        overdue.add(a_block("2a", "1a")).result(DEADLINE)
    for number in (2, 3):
        overdue.add(a_block(f"{number}a", f"{number - 1}a")).result(DEADLINE)
    assert len(_blocks(overdue, looking_broker)) == 3


def test_a_fence_after_an_abort_that_came_too_late_is_the_brokers(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that aborts a transaction at the moment of its client's abort says yes to it, and fences the next one.

    What the broker does in that moment is done by another client here: the two look alike.
    """
    url = f"kafka://{cardinal_broker.bootstrap}?transactional=update&transaction.timeout.ms=1000"
    with Producer(url, small_stream(), producer_id="hung", ping_seconds=60) as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        sink: Any = producer._sink
        send = sink._send

        def fail(*args: object) -> None:
            monkeypatch.setattr(sink, "_send", send)
            send(*args)
            time.sleep(1.1)  # longer than the timeout: what this is about
            raise transactions._UndeliveredError(KafkaError(KafkaError._MSG_TIMED_OUT))

        monkeypatch.setattr(sink, "_send", fail)
        with pytest.raises(DeliveryError):
            producer.add(a_block("2a", "1a")).result(DEADLINE)
        fencing = sink._connect()
        with pytest.raises(DeliveryError, match="timeout"):
            producer.add(a_block("2a", "1a")).result(DEADLINE)
        for number in (2, 3):
            producer.add(a_block(f"{number}a", f"{number - 1}a")).result(DEADLINE)
        fencing = sink._connect()
        with pytest.raises(FencedError):
            producer.add(a_block("4a", "3a")).result(DEADLINE)
        del fencing
    assert len(_blocks(producer, cardinal_broker)) == 3
