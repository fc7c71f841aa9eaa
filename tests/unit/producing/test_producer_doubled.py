"""Two producers with one id: each hears that it is not alone, and nobody hears it of itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from blocks import Blocks
from cardinal.producer import Producer
from cardinal.protocols.streams.wire.messages import PING
from cardinal.testing.memory import MemoryBroker
from waiting import until

PING_SECONDS = 0.02


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def _producer(broker: MemoryBroker, name: str) -> Producer:
    return Producer(broker.url, Blocks(), producer_id=name, ping_seconds=PING_SECONDS, watch=True)


def _doubled(producer: Producer) -> bool:
    return producer.producer_count is not None and producer.producer_count.doubled


def _pings(broker: MemoryBroker) -> int:
    return sum(record.key[:1] == bytes((PING,)) for record in broker.records("block"))


def test_two_producers_with_one_id_are_told_so(broker: MemoryBroker) -> None:
    with _producer(broker, "one") as first, _producer(broker, "one") as second:
        until(lambda: _doubled(first) and _doubled(second))


def test_neither_producers_with_other_ids_nor_what_was_before_a_restart_are_doubled(broker: MemoryBroker) -> None:
    with _producer(broker, "one"):
        until(lambda: _pings(broker) > 10)
    with _producer(broker, "one") as again, _producer(broker, "two") as other:
        before = _pings(broker)
        until(lambda: _pings(broker) > before + 20)
        until(lambda: again.producer_count is not None and again.producer_count.count == 2)
        assert not _doubled(again)
        assert not _doubled(other)
