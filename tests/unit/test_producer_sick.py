"""A producer whose block failed says no more that it is well, so that others take its place; and then says so again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from blocks import DEADLINE, Blocks, block, hash_of
from cardinal.errors import DeliveryError
from cardinal.producer import Producer
from cardinal.protocols.streams.wire.messages import PING
from cardinal.testing.memory import MemoryBroker

PING_SECONDS = 0.01
SILENT_SECONDS = 30 * PING_SECONDS


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def test_a_producer_with_a_failed_block_does_not_ping_until_it_was_added_again(broker: MemoryBroker) -> None:
    with Producer(broker.url, Blocks(), producer_id="one", ping_seconds=PING_SECONDS) as producer:
        _wait_for_pings(broker, 3)
        broker.fail(lambda message: message.key[1:33] == hash_of("1a"))
        with pytest.raises(DeliveryError):
            producer.add(block("1a", "0a")).result(DEADLINE)
        time.sleep(2 * PING_SECONDS)  # one that was on its way
        before = _pings(broker)
        time.sleep(SILENT_SECONDS)  # nothing is waited for: it is that nothing comes
        assert _pings(broker) == before
        broker.fail(None)
        producer.add(block("1a", "0a")).result(DEADLINE)
        _wait_for_pings(broker, before + 3)


def test_the_first_ping_is_there_when_the_producer_is(broker: MemoryBroker) -> None:
    """Whoever else starts just then counts it, though the next is an hour away."""
    with Producer(broker.url, Blocks(), producer_id="one", ping_seconds=3600):
        assert _pings(broker) == 1


def _pings(broker: MemoryBroker) -> int:
    return sum(record.key[:1] == bytes((PING,)) for record in broker.records("block"))


def _wait_for_pings(broker: MemoryBroker, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while _pings(broker) < count:
        assert time.monotonic() < deadline
        time.sleep(PING_SECONDS)
