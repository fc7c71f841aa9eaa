"""Size limits of messages where topics and the client have different ones: no broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cardinal.errors import ConfigurationError, OversizeError, TopicError
from cardinal.protocols.streams import Routed
from cardinal.transports import parse_url
from cardinal.transports.kafka.admin import TopicInfo
from cardinal.transports.kafka.errors import Reasons
from cardinal.transports.kafka.settings import kafka_settings
from cardinal.transports.kafka.sink import KafkaSink

TAKES = {"blocks": 1_000_000, "values": 20_000}


@contextmanager
def a_sink(options: str = "", channel: int = 1_000_000) -> Iterator[KafkaSink]:
    """A sink that never reaches its broker."""
    settings = kafka_settings(parse_url(f"kafka://127.0.0.1:1{options}"))
    sink = KafkaSink(
        settings.producer(max(TAKES.values()), "one", smallest=min(TAKES.values())),
        {name: TopicInfo(name, 1, takes) for name, takes in TAKES.items()},
        producer_id="one",
        reasons=Reasons("127.0.0.1:1"),
        recent=lambda _: [],
        channel=lambda name: TopicInfo(name, 1, channel),
        cluster="",
    )
    try:
        yield sink
    finally:
        sink.close()


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
    with a_sink() as sink:
        sink.check([message("blocks", 999_000), message("values", 19_000)])
        for topic, limit in TAKES.items():
            with pytest.raises(OversizeError, match=rf"the topic {topic} takes") as caught:
                sink.check([message(topic, limit)])
            assert (caught.value.path, caught.value.limit) == ("a/1", limit)
            assert caught.value.size > limit


def test_the_clients_own_bound_holds_for_every_topic_and_for_reorg_channels() -> None:
    """What is larger is refused by librdkafka when it is sent: a failure that would look as if it might pass."""
    with a_sink("?message.max.bytes=50000") as sink:
        sink.open_channel("reorg")
        for topic in ("blocks", "reorg"):
            sink.check([message(topic, 49_000)])
            with pytest.raises(OversizeError, match=r"raise message\.max\.bytes in its URL") as caught:
                sink.check([message(topic, 50_000)])
            assert caught.value.limit == 50_000
        with pytest.raises(OversizeError, match="the topic values takes"):
            sink.check([message("values", 20_000)])


def test_a_reorg_channel_that_takes_less_than_what_is_sent_at_once_is_refused() -> None:
    with a_sink(channel=19_999) as sink, pytest.raises(TopicError, match="19999 bytes at once") as caught:
        sink.open_channel("reorg")
    assert caught.value.topic == "reorg"
    with a_sink("?batch.size=10000", channel=19_999) as sink:
        sink.open_channel("reorg")
