"""A producer whose block failed stops to ping, so that others take its place, until the block is sent again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from blocks import DEADLINE, Blocks, block, hash_of
from cardinal.errors import DeliveryError
from cardinal.producer import Producer
from cardinal.producing.pings import ping_id
from cardinal.protocols.streams.wire.messages import PING
from cardinal.testing.memory import MemoryBroker

PING_SECONDS = 0.01


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def test_a_producer_with_a_failed_block_does_not_ping_until_it_was_added_again(broker: MemoryBroker) -> None:
    """The pings of another producer measure the time in which none of its own comes."""
    with (
        Producer(broker.url, Blocks(), producer_id="one", ping_seconds=PING_SECONDS) as producer,
        Producer(broker.url, Blocks(), producer_id="two", ping_seconds=PING_SECONDS),
    ):
        _wait_for_pings(broker, "one", 3)
        broker.fail(lambda message: message.key[1:33] == hash_of("1a"))
        with pytest.raises(DeliveryError):
            producer.add(block("1a", "0a")).result(DEADLINE)
        before = _pings(broker, "one")
        _wait_for_pings(broker, "two", _pings(broker, "two") + 30)
        assert _pings(broker, "one") <= before + 1, "one may have been on its way"
        broker.fail(None)
        producer.add(block("1a", "0a")).result(DEADLINE)
        _wait_for_pings(broker, "one", before + 4)


def test_the_first_ping_is_there_when_the_producer_is(broker: MemoryBroker) -> None:
    """Whoever else starts just then counts it, though the next is an hour away."""
    with Producer(broker.url, Blocks(), producer_id="one", ping_seconds=3600):
        assert _pings(broker, "one") == 1


def _pings(broker: MemoryBroker, producer_id: str) -> int:
    return sum(record.key[:33] == bytes((PING,)) + ping_id(producer_id) for record in broker.records("block"))


def _wait_for_pings(broker: MemoryBroker, producer_id: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while _pings(broker, producer_id) < count:
        assert time.monotonic() < deadline
        time.sleep(PING_SECONDS)
