"""A Kafka sink that is closed while others send: every call of theirs ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError

from cardinal.config.url import parse_url
from cardinal.errors import DeliveryError, RefusedError, TransportError
from cardinal.protocols.streams.types import Routed
from cardinal.transports.kafka import sink as kafka_sink
from cardinal.transports.kafka.admin import TopicInfo
from cardinal.transports.kafka.errors import Reasons
from cardinal.transports.kafka.settings import kafka_settings
from cardinal.transports.kafka.sink import KafkaSink

DEADLINE = 20.0
MESSAGE = Routed("blocks", b"\3" + bytes(32) + b"path", bytes(1_500))


@pytest.fixture
def reasons() -> Reasons:
    return Reasons("127.0.0.1:1")


@pytest.fixture
def sink(reasons: Reasons, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
    """A sink that never reaches its broker, with room for one message."""
    monkeypatch.setattr(kafka_sink, "CLOSE_SECONDS", 0.2)
    settings = kafka_settings(parse_url("kafka://127.0.0.1:1"))
    sink = KafkaSink(
        settings.producer(1_000_000, "one"),
        {"blocks": TopicInfo("blocks", 1, 1_000_000)},
        producer_id="one",
        queue_bytes=2_000,
        reasons=reasons,
        recent=lambda _: [],
        channel=lambda name: TopicInfo(name, 1, 1_000_000),
        cluster="",
    )
    yield sink
    sink.close()


def test_whoever_waits_for_room_when_it_is_closed_is_told_so(sink: KafkaSink, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, wait = threading.Event(), KafkaSink._wait_for_capacity

    def waiting(self: KafkaSink, size: int) -> None:
        waits.set()
        wait(self, size)

    first = sink.send([MESSAGE], None)
    monkeypatch.setattr(KafkaSink, "_wait_for_capacity", waiting)

    def send() -> Future[None]:
        return sink.send([MESSAGE], None)

    with ThreadPoolExecutor() as pool:
        second = pool.submit(send)
        assert waits.wait(DEADLINE)
        sink.close()
        with pytest.raises(TransportError, match="this sink is closed"):
            second.result(DEADLINE).result(DEADLINE)
    with pytest.raises(DeliveryError):
        first.result(DEADLINE)


@pytest.mark.parametrize("again", [False, True])
def test_what_is_left_at_closing_fails_by_a_refusal_of_now_and_not_by_one_of_before(
    sink: KafkaSink, reasons: Reasons, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    refusal = KafkaError(KafkaError._AUTHENTICATION, "no")
    with monkeypatch.context() as soon:
        soon.setattr(kafka_sink, "_REFUSED_SECONDS", 0.0)
        first = sink.send([MESSAGE], None)
        reasons(refusal)
        with pytest.raises(RefusedError, match="refused the login"):
            first.result(DEADLINE)
    second = sink.send([MESSAGE], None)
    if again:
        reasons(refusal)
    sink.close()
    assert isinstance(second.exception(DEADLINE), RefusedError if again else DeliveryError)
