"""A Kafka sink that is closed while others send: every call of theirs ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import MappingProxyType

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


def a_sink(reasons: Reasons, options: Mapping[str, str] = MappingProxyType({})) -> KafkaSink:
    """A sink with room for one message."""
    settings = kafka_settings(parse_url("kafka://127.0.0.1:1?queue.buffering.max.messages=1"))
    return KafkaSink(
        {**settings.producer(1_000_000, "one"), **options},
        {"blocks": TopicInfo("blocks", 1, 1_000_000)},
        producer_id="one",
        reasons=reasons,
        recent=lambda _: [],
        channel=lambda name: TopicInfo(name, 1, 1_000_000),
        cluster="",
    )


@pytest.fixture
def sink(reasons: Reasons, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
    """A sink that never reaches its broker."""
    monkeypatch.setattr(kafka_sink, "CLOSE_SECONDS", 0.2)
    with closing(a_sink(reasons)) as sink:
        yield sink


def test_whoever_waits_for_room_ends_when_it_is_closed(sink: KafkaSink) -> None:
    first = sink.send([MESSAGE], None)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(sink.send, [MESSAGE, MESSAGE], None) for _ in range(3)]
        deadline = time.monotonic() + DEADLINE
        while sink._calls < 4:
            assert time.monotonic() < deadline
        sink.close()
        for call in waiting:
            assert isinstance(call.result(DEADLINE).exception(DEADLINE), TransportError)
    with pytest.raises(DeliveryError):
        first.result(DEADLINE)
    with pytest.raises(TransportError, match="closed"):
        sink.send([MESSAGE], None)


def test_a_sink_is_closed_by_a_callback_of_its_own(sink: KafkaSink) -> None:
    """One that still sends fails, too."""
    closed = threading.Event()

    def close(_: object) -> None:
        sink.close()
        closed.set()

    first = sink.send([MESSAGE], None)
    first.add_done_callback(close)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(sink.send, [MESSAGE, MESSAGE], None)
        sink._outbound.fail_unacknowledged(DEADLINE)
        assert closed.wait(DEADLINE)
        with pytest.raises(TransportError):
            second.result(DEADLINE).result(DEADLINE)
    assert isinstance(first.exception(DEADLINE), DeliveryError)
    with pytest.raises(TransportError, match="closed"):
        sink.send([MESSAGE], None)


class SlowReasons(Reasons):
    """The thread that polls takes its time between a block's content and its seal."""

    def forget(self) -> None:
        time.sleep(0.02)
        super().forget()


def test_a_block_is_under_way_until_its_seal_is_acknowledged() -> None:
    with closing(
        a_sink(SlowReasons("mock"), {"test.mock.num.brokers": "1", "allow.auto.create.topics": "true"})
    ) as sink:
        sink.send([MESSAGE], None).result(DEADLINE)
        for number in range(10):
            key = bytes([number]) * 32
            future = sink.send([Routed("blocks", b"\3" + key + b"path", b"")], Routed("blocks", b"\0" + key, b""))
            sink.flush(DEADLINE)
            assert future.done(), number


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
