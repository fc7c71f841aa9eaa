"""Pings: one at a time, none while a block has failed, and two producers of one id are noticed."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator

import pytest

from blocks import DEADLINE, Blocks, block, hash_of
from cardinal.errors import DeliveryError
from cardinal.producer import Producer
from cardinal.producing.pings import Pinger, ping_id
from cardinal.protocols.streams.wire.messages import PING, Ping
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until

PING_SECONDS = 0.01


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def _producer(broker: MemoryBroker, name: str, seconds: float = PING_SECONDS, *, watch: bool = False) -> Producer:
    return Producer(broker.url, Blocks(), producer_id=name, ping_seconds=seconds, watch=watch)


def _doubled(producer: Producer) -> bool:
    return producer.producer_count is not None and producer.producer_count.doubled


def _pings(broker: MemoryBroker, name: str = "") -> int:
    """Pings on the topic, of this producer or of all."""
    start = bytes((PING,)) + (ping_id(name) if name else b"")
    return sum(record.key.startswith(start) for record in broker.records("block"))


def test_opening_a_producer_sends_its_first_ping(broker: MemoryBroker) -> None:
    """Whoever else starts just then counts it, though the next is an hour away."""
    with _producer(broker, "one", 3600):
        assert _pings(broker, "one") == 1


def test_at_most_one_ping_is_unacknowledged(broker: MemoryBroker) -> None:
    queries, enough, more = itertools.count(1), threading.Event(), threading.Event()

    def may() -> bool:
        if next(queries) == 20:
            enough.set()
        if _pings(broker) > 3:
            more.set()
        return True

    sink = broker.sink(Blocks(), producer_id="one")
    broker.hold()
    pinger = Pinger(sink, "block", "one", seconds=0.001, may=may)
    pinger.start()
    assert enough.wait(DEADLINE)
    assert _pings(broker) == 1
    broker.release()
    assert more.wait(DEADLINE)
    pinger.stop()
    pinger.join(DEADLINE)
    sink.close()


def test_pings_stop_while_a_failed_block_is_not_added_again(broker: MemoryBroker) -> None:
    """Others take the producer's place. The pings of another one measure the time in which none of its own comes."""
    with _producer(broker, "one") as producer, _producer(broker, "two"):
        until(lambda: _pings(broker, "one") >= 3)
        broker.fail(lambda message: message.key[1:33] == hash_of("1a"))
        with pytest.raises(DeliveryError):
            producer.add(block("1a", "0a")).result(DEADLINE)
        before, others = _pings(broker, "one"), _pings(broker, "two")
        until(lambda: _pings(broker, "two") >= others + 30)
        assert _pings(broker, "one") <= before + 1, "one may have been on its way"
        broker.fail(None)
        producer.add(block("1a", "0a")).result(DEADLINE)
        until(lambda: _pings(broker, "one") >= before + 4)


def test_two_producers_with_one_id_are_reported_to_both(broker: MemoryBroker) -> None:
    with _producer(broker, "one", watch=True) as first, _producer(broker, "one", watch=True) as second:
        until(lambda: _doubled(first) and _doubled(second))


def test_other_ids_and_an_earlier_run_do_not_count_as_doubled(broker: MemoryBroker) -> None:
    with _producer(broker, "one", watch=True):
        until(lambda: _pings(broker) > 10)
    with _producer(broker, "one", watch=True) as again, _producer(broker, "two", watch=True) as other:
        before = _pings(broker)
        until(lambda: _pings(broker) > before + 20)
        until(lambda: again.producer_count is not None and again.producer_count.count == 2)
        assert not _doubled(again)
        assert not _doubled(other)


class _Slow(int):
    """A number that takes so long to compare that a ping is sent meanwhile."""

    broker: MemoryBroker

    def __eq__(self, other: object) -> bool:
        before = _pings(self.broker)
        until(lambda: _pings(self.broker) > before)
        return int(self) == other

    __hash__ = int.__hash__


def test_the_owner_of_a_ping_is_found_while_others_are_sent(broker: MemoryBroker) -> None:
    sink = broker.sink(Blocks(), producer_id="one")
    pinger = Pinger(sink, "block", "one", seconds=0.001, may=lambda: True)
    second = _Slow(7)
    second.broker = broker
    pinger.start()
    assert pinger.is_anothers(Ping(ping_id("one"), second, 0))
    pinger.stop()
    pinger.join(DEADLINE)
    sink.close()
