"""A producer's pings never line up behind each other."""

from __future__ import annotations

import itertools
import threading
import time
import uuid

from cardinal.producing.pings import Pinger, ping_id
from cardinal.protocols.streams.wire.messages import PING, Ping
from cardinal.testing.memory import MemoryBroker
from streams import SCHEMA, TOPIC, WIDTH

DEADLINE = 10.0


class Stream:
    default_topic = TOPIC
    topics = SCHEMA
    all_topics = tuple(WIDTH)
    finality_paths: tuple[str, str] | None = None


def _pings(broker: MemoryBroker) -> int:
    return sum(record.key[:1] == bytes((PING,)) for record in broker.records(TOPIC))


def test_no_ping_is_sent_behind_one_that_is_not_acknowledged_and_they_go_on_when_it_is() -> None:
    asked, enough, more = itertools.count(1), threading.Event(), threading.Event()

    def may() -> bool:
        if next(asked) == 20:
            enough.set()
        if _pings(broker) > 3:
            more.set()
        return True

    with MemoryBroker(uuid.uuid4().hex) as broker:
        sink = broker.sink(Stream(), producer_id="one")
        broker.hold()
        pinger = Pinger(sink, TOPIC, "one", seconds=0.001, may=may)
        pinger.start()
        assert enough.wait(DEADLINE)
        assert _pings(broker) == 1
        broker.release()
        assert more.wait(DEADLINE)
        pinger.stop()
        pinger.join(DEADLINE)
        sink.close()


class _Slow(int):
    """A number that takes so long to compare that a ping is sent meanwhile."""

    broker: MemoryBroker

    def __eq__(self, other: object) -> bool:
        before, deadline = _pings(self.broker), time.monotonic() + DEADLINE
        while _pings(self.broker) == before:
            assert time.monotonic() < deadline
        return int(self) == other

    __hash__ = int.__hash__


def test_whose_a_ping_is_can_be_asked_while_others_are_sent() -> None:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        sink = broker.sink(Stream(), producer_id="one")
        pinger = Pinger(sink, TOPIC, "one", seconds=0.001, may=lambda: True)
        second = _Slow(7)
        second.broker = broker
        pinger.start()
        assert pinger.is_anothers(Ping(ping_id("one"), second, 0))
        pinger.stop()
        pinger.join(DEADLINE)
        sink.close()
