"""When a consumer is ready: everything that was there is delivered, and nothing is withheld."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.protocols.streams import Payload, Routed, split
from cardinal.protocols.streams.ordering.finality import FinalityViolated
from cardinal.testing.memory import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        yield broker


def _messages(payload: Payload) -> list[Routed]:
    app = Blocks()
    return split(payload, app.topics, app.default_topic)


def test_an_update_that_waits_to_be_fetched_is_not_delivered(broker: MemoryBroker) -> None:
    """Nobody iterates when the last messages of 4a come, by `supply`; it is delivered when somebody does again."""
    publish(broker, line(1, 3))
    *content, batch = _messages(block("4a", "3a"))
    broker.sink(Blocks(), producer_id="one").send((*content[1:], batch), None).result(DEADLINE)
    with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
        assert steps(list(consumer)) == ["+1a", "+2a", "+3a"]
        assert consumer.ready
        consumer.supply(content[:1])
        assert not consumer.ready
        assert steps(list(consumer)) == ["+4a"]
        assert consumer.ready


def test_a_consumer_that_has_not_begun_because_lower_blocks_may_come_is_not_ready(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of 5a is there: whether the stream begins above it is in doubt until nothing has come for a while."""
    publish(broker, [*line(1, 4), *line(6, 12)])
    with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
        assert not list(consumer)
        assert consumer.caught_up
        assert not consumer.ready
        monkeypatch.setattr("cardinal.consuming.loop._QUIET_SECONDS", 0.0)
        assert steps(list(consumer)) == [f"+{number}a" for number in range(6, 13)]
        assert consumer.ready


def test_a_consumer_that_has_whole_blocks_above_one_that_is_not_there_is_not_ready(broker: MemoryBroker) -> None:
    """4a lacks a message; 5a to 9a are complete and wait for it. 11a comes later, and overtakes 10a."""
    publish(broker, line(1, 3))
    with Consumer(broker.url, Blocks()) as consumer:
        cursor = until(consumer, "3a")[-1].cursor
    sink = broker.sink(Blocks(), producer_id="one")
    lacking, *content = _messages(block("4a", "3a"))
    sink.send(content, None).result(DEADLINE)
    publish(broker, line(5, 9))
    with Consumer(broker.url, Blocks(), start=cursor, idle_timeout=0.3) as consumer:
        assert steps(list(consumer)) == []
        assert consumer.caught_up
        assert not consumer.ready
        sink.send([lacking], None).result(DEADLINE)
        assert steps(list(consumer)) == [f"+{number}a" for number in range(4, 10)]
        assert consumer.ready
        publish(broker, line(11, 11))
        assert steps(list(consumer)) == []
        assert consumer.ready


@pytest.mark.parametrize("policy", ["halt", "follow"])
def test_a_consumer_that_withholds_a_switch_is_not_ready(broker: MemoryBroker, policy: str) -> None:
    """5a says that 4a is final; 3b to 9b are heavier."""
    *below, newest = line(1, 5)
    final = replace(newest, updates={**newest.updates, "a/safe": b"\x04", "a/finalized": b"\x04"})
    publish(broker, [*below, final])
    events: list[object] = []
    with Consumer(
        broker.url, Blocks(), on_event=events.append, on_finality_violation=policy, idle_timeout=0.5
    ) as consumer:
        assert steps(list(consumer))[-1] == "+5a"
        assert consumer.ready
        publish(broker, line(3, 9, "b", "2a"))
        switched = steps(list(consumer))
        assert any(isinstance(event, FinalityViolated) for event in events)
        assert consumer.caught_up
        assert consumer.ready == (policy == "follow") == bool(switched)
        assert consumer.head is not None
        assert consumer.head.hash == hash_of("9b" if policy == "follow" else "5a")
