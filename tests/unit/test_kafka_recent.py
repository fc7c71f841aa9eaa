"""The newest records of a topic, asked of a broker that is away meanwhile."""

from __future__ import annotations

import uuid

import pytest

from blocks import Blocks, line, publish
from cardinal.errors import UnreachableError
from cardinal.testing.memory import MemoryBroker, MemorySource
from cardinal.transports import parse_url
from cardinal.transports.kafka import kafka_settings
from cardinal.transports.kafka import source as recent

SETTINGS = kafka_settings(parse_url("kafka://host:9092"))


def test_a_broker_that_goes_away_while_they_are_read_is_told_as_something_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        publish(broker, line(1, 20))
        monkeypatch.setattr(recent, "KafkaSource", lambda _, topics: broker.source(topics))
        found = recent.read_recent(SETTINGS, "block", 3)
        assert [record.partition for record in found] == [0] * 3 + [1] * 3
        monkeypatch.setattr(recent, "_RECENT_SECONDS", -1.0)
        monkeypatch.setattr(MemorySource, "poll", lambda *_: [])
        with pytest.raises(UnreachableError, match="did not arrive") as failed:
            recent.read_recent(SETTINGS, Blocks().default_topic, 3)
    assert failed.value.retriable
    assert failed.value.address == "host:9092"
