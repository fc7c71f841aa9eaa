"""Transactions that were open for too long: the broker fences their producer, and a new one takes its place."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from kafka_streams import DEADLINE, a_block, everything_on, named, small_stream

from cardinal.embedded import EmbeddedKafka
from cardinal.errors import ClientStoppedError, DeliveryError, FencedError
from cardinal.producer import Producer
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.transports.kafka import transactions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.apps import Application

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def looking_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that looks for overdue transactions every half second; by default Kafka does every ten."""
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    with EmbeddedKafka(tmp_path_factory.mktemp("looking-broker"), properties=properties) as broker:
        yield broker


def _hang_once(producer: Producer, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    """Let the producer's next transaction be open for longer than it may be."""
    sink: Any = producer._sink
    send = sink._send

    def hang(*args: object) -> None:
        monkeypatch.setattr(sink, "_send", send)
        send(*args)
        time.sleep(2.5)  # longer than the timeout and the broker's interval: what this is about
        if error is not None:
            raise error

    monkeypatch.setattr(sink, "_send", hang)


def _blocks(app: Application, broker: EmbeddedKafka) -> list[bytes]:
    found = everything_on(f"kafka://{broker.bootstrap}?transactional=update", app)
    return sorted(record.key[1:] for record in found if record.key[:1] == bytes((BATCH,)))


@pytest.mark.parametrize("aborted", [False, True])
def test_a_producer_whose_transaction_was_overdue_stops_and_a_new_one_sends_again(
    looking_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, *, aborted: bool
) -> None:
    """Whether the client hears of it at the commit, or finds out itself when it aborts."""
    url = f"kafka://{looking_broker.bootstrap}?transactional=update&transaction.timeout.ms=1000"
    app = small_stream()
    with Producer(url, app, producer_id="hung", ping_seconds=0.2) as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        failure = transactions._UndeliveredError(KafkaError(KafkaError._MSG_TIMED_OUT)) if aborted else None
        _hang_once(producer, monkeypatch, failure)
        failed, waiting = producer.add(a_block("2a", "1a")), producer.add(a_block("3a", "2a"))
        with pytest.raises(ClientStoppedError, match="timeout"):
            failed.result(DEADLINE)
        with pytest.raises((ClientStoppedError, DeliveryError)):
            producer.add(a_block("4a", "3a")).result(DEADLINE)
        with pytest.raises((ClientStoppedError, DeliveryError)):
            producer.flush(DEADLINE)
        assert not waiting.done(), "its parent is to be sent again"
    with pytest.raises(DeliveryError, match="closed before block") as caught:
        waiting.result(0)
    assert caught.value.hash == named("3a")
    assert ClientStoppedError.retriable
    with Producer(url, app, producer_id="hung") as producer:
        for number in (2, 3):
            producer.add(a_block(f"{number}a", f"{number - 1}a")).result(DEADLINE)
    assert len(_blocks(app, looking_broker)) == 3


def test_another_producer_with_the_same_id_is_no_reason_for_a_new_one(
    looking_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at once nor when the transaction in which it was met would be overdue."""
    url = f"kafka://{looking_broker.bootstrap}?transactional=update&transaction.timeout.ms=60000"
    app = small_stream()
    with Producer(url, app, producer_id="same") as first, Producer(url, app, producer_id="same") as second:
        second.add(a_block("1a", "0g")).result(DEADLINE)
        with pytest.raises(FencedError):
            first.add(a_block("1a", "0g")).result(DEADLINE)
        monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 3600))
        with pytest.raises(FencedError):
            first.add(a_block("1a", "0g")).result(DEADLINE)
        monkeypatch.undo()
        second.add(a_block("2a", "1a")).result(DEADLINE)
    assert not FencedError.retriable
    assert len(_blocks(app, looking_broker)) == 2
