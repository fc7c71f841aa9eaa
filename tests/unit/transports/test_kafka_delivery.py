"""Kafka sinks that never reach a broker: reports of messages, closing, sizes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from cardinal.config.url import parse_url
from cardinal.errors import ConfigurationError, DeliveryError, OversizeError, RefusedError, TopicError, TransportError
from cardinal.protocols.streams import Routed
from cardinal.protocols.streams.wire.ranges import decode_ranges
from cardinal.transports.kafka import sink as kafka_sink
from cardinal.transports.kafka.admin import TopicInfo
from cardinal.transports.kafka.delivery import Delivery
from cardinal.transports.kafka.errors import Reasons
from cardinal.transports.kafka.settings import kafka_settings
from cardinal.transports.kafka.sink import KafkaSink
from cardinal.transports.written import Written
from waiting import until


class Message:
    """One that was acknowledged somewhere."""

    def __init__(self, key: bytes, offset: int | None) -> None:
        self._key, self._offset = key, offset

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return 1

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes:
        return self._key


@pytest.mark.parametrize(("offset", "known"), [(7, True), (None, False)])
def test_a_message_without_an_offset_ends_its_call(offset: int | None, known: bool) -> None:  # noqa: FBT001 - a case
    """An earlier try has written it, and its answer was lost."""
    written, told = Written({}), list[KafkaError | None]()
    written.sends(20)
    settled: deque[Delivery] = deque()
    delivery = Delivery(2, told.append, settled, {b"h" * 32: written})
    for each in (6, offset):
        delivery.report(None, cast("Any", Message(b"\4" + b"h" * 32, each)))
    settled.popleft().finish()
    assert told == [None]
    assert (written.header("log") is not None) == known


def test_messages_of_several_blocks_are_noted_by_their_block() -> None:
    blocks = {bytes([number]) * 32: Written({}) for number in range(3)}
    settled: deque[Delivery] = deque()
    delivery = Delivery(6, lambda _: None, settled, blocks)
    for offset in range(6):
        delivery.report(None, cast("Any", Message(b"\4" + bytes([offset // 2]) * 32, offset)))
    settled.popleft().finish()
    for number, written in enumerate(blocks.values()):
        value = written.header("log")
        assert value is not None
        assert decode_ranges(value).ranges == {("a", 1): (2 * number, 2 * number + 2)}


DEADLINE = 60.0


TAKES = {"blocks": 1_000_000, "values": 20_000}
MESSAGE = Routed("blocks", b"\3" + bytes(32) + b"path", bytes(1_500))


@pytest.fixture
def reasons() -> Reasons:
    return Reasons("127.0.0.1:1")


def a_sink(options: str = "", reasons: Reasons | None = None, channel: int = 1_000_000, **properties: str) -> KafkaSink:
    settings = kafka_settings(parse_url(f"kafka://127.0.0.1:1{options}"))
    return KafkaSink(
        {**settings.producer(max(TAKES.values()), "one", smallest=min(TAKES.values())), **properties},
        {name: TopicInfo(name, 1, takes) for name, takes in TAKES.items()},
        producer_id="one",
        reasons=reasons or Reasons("127.0.0.1:1"),
        recent=lambda _: [],
        channel=lambda name: TopicInfo(name, 1, channel),
        cluster="",
    )


@pytest.fixture
def sink(reasons: Reasons, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
    """A sink with capacity for one message."""
    monkeypatch.setattr(kafka_sink, "CLOSE_SECONDS", 0.2)
    with closing(a_sink("?queue.buffering.max.messages=1", reasons)) as sink:
        yield sink


def test_waiting_for_capacity_ends_when_it_is_closed(sink: KafkaSink) -> None:
    first = sink.send([MESSAGE], None)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(sink.send, [MESSAGE, MESSAGE], None) for _ in range(3)]
        until(lambda: sink._calls >= 4)
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


def test_a_block_is_in_flight_until_its_seal_is_acknowledged() -> None:
    mock = {"test.mock.num.brokers": "1", "allow.auto.create.topics": "true"}
    with closing(a_sink(reasons=SlowReasons("mock"), **mock)) as sink:
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


def message(topic: str, size: int) -> Routed:
    return Routed(topic, b"\x03" + bytes(32) + b"a/1", bytes(size))


def test_the_client_carries_what_the_largest_topic_takes_and_batches_what_the_smallest_takes() -> None:
    config = kafka_settings(parse_url("kafka://host")).producer(5_000_000, "one", smallest=20_000)
    assert (config["message.max.bytes"], config["batch.size"]) == ("5000000", "20000")
    for options, batch in (("", "1048576"), ("?batch.size=65536", "65536"), ("?batch.size=5000000", "3000000")):
        config = kafka_settings(parse_url(f"kafka://host{options}")).producer(3_000_000, "one")
        assert (config["message.max.bytes"], config["batch.size"]) == ("3000000", batch)
    assert kafka_settings(parse_url("kafka://host")).producer(2**31 - 1, "one")["message.max.bytes"] == "1000000000"


@pytest.mark.parametrize("wrong", ["message.max.bytes=10M", "message.max.bytes=999", "batch.size=0", "batch.size=no"])
def test_sizes_that_cannot_be_are_refused_by_their_name(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong.partition("=")[0]):
        kafka_settings(parse_url(f"kafka://host?{wrong}")).producer(10_000, "one")


def test_each_topic_has_its_own_limit() -> None:
    with closing(a_sink()) as sink:
        sink.check([message("blocks", 999_000), message("values", 19_000)])
        for topic, limit in TAKES.items():
            with pytest.raises(OversizeError, match=rf"the topic {topic} takes") as caught:
                sink.check([message(topic, limit)])
            assert (caught.value.path, caught.value.limit) == ("a/1", limit)
            assert caught.value.size > limit


def test_the_clients_own_bound_holds_for_every_topic_and_for_reorg_channels() -> None:
    """What is larger is refused by librdkafka when it is sent: a failure that would look as if it might pass."""
    with closing(a_sink("?message.max.bytes=50000")) as sink:
        sink.open_channel("reorg")
        for topic in ("blocks", "reorg"):
            sink.check([message(topic, 49_000)])
            with pytest.raises(OversizeError, match=r"raise message\.max\.bytes in its URL") as caught:
                sink.check([message(topic, 50_000)])
            assert caught.value.limit == 50_000
        with pytest.raises(OversizeError, match="the topic values takes"):
            sink.check([message("values", 20_000)])


def test_a_reorg_channel_that_takes_less_than_what_is_sent_at_once_is_refused() -> None:
    with closing(a_sink(channel=19_999)) as sink, pytest.raises(TopicError, match="19999 bytes at once") as caught:
        sink.open_channel("reorg")
    assert caught.value.topic == "reorg"
    with closing(a_sink("?batch.size=10000", channel=19_999)) as sink:
        sink.open_channel("reorg")
