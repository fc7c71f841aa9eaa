from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, name_of, publish, steps
from cardinal import apps
from cardinal.consumer import Consumer, find_application
from cardinal.errors import ConfigurationError, CursorExpiredError, CursorInvalidError, CursorMismatchError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams import ChainUpdate
from cardinal.protocols.streams.events import Event, PingSeen, Quarantined, Rejected
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Routed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


def _chain(updates: list[ChainUpdate], before: list[str] | None = None) -> list[str]:
    chain = list(before or [])
    for update in updates:
        for removed in update.removed:
            assert chain.pop() == name_of(removed.hash)
        chain += [name_of(added.hash) for added in update.added]
    return chain


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        yield broker


def _consume(broker: MemoryBroker, last: str, **options: object) -> list[ChainUpdate]:
    """Updates until the chain's head is ``last``."""
    updates: list[ChainUpdate] = []
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options) as consumer:  # type: ignore[arg-type] # tests name them
        for update in consumer:
            updates.append(update)
            if update.added and update.added[-1].hash == hash_of(last):
                return updates
    raise AssertionError(f"{last} did not come: {steps(updates)}")


def test_blocks_come_out_in_chain_order_with_their_whole_content(broker: MemoryBroker) -> None:
    publish(broker, line(1, 20))
    updates = _consume(broker, "20a")
    assert steps(updates) == [f"+{number}a" for number in range(1, 21)]
    blocks = [block for update in updates for block in update.added]
    assert all(isinstance(block, Payload) for block in blocks)
    assert [dict(block.updates) for block in blocks] == [dict(block.updates) for block in line(1, 20)]  # type: ignore[union-attr] # just asserted
    assert updates[-1].seq == 20


def test_a_reorg_is_one_update(broker: MemoryBroker) -> None:
    publish(broker, [*line(1, 5), block("4b", "3a"), block("5b", "4b"), block("6b", "5b")])
    with Consumer(broker.url, Blocks(), start="latest") as consumer:
        assert consumer.app.name == "blocks"
    updates = _consume(broker, "6b")
    assert _chain(updates) == ["1a", "2a", "3a", "4b", "5b", "6b"]


def test_a_reorg_seen_live_names_what_it_removes(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
        seen = iter(consumer)
        first = next(seen)
        while first.added[-1].number < 5:
            first = next(seen)
        publish(broker, [block("4b", "3a"), block("5b", "4b"), block("6b", "5b")])
        update = next(seen)
    assert steps([update]) == ["-5a", "-4a", "+4b", "+5b", "+6b"]


def test_two_producers_give_the_same_updates_as_one(broker: MemoryBroker) -> None:
    blocks = line(1, 12)
    publish(broker, blocks)
    alone = _consume(broker, "12a")
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as both:
        for start in range(0, 12, 3):
            for producer_id in ("one", "two"):
                publish(both, blocks[start : start + 3], producer_id)
        together = _consume(both, "12a")
    assert steps(together) == steps(alone)
    assert together[-1].seq == alone[-1].seq


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_resumed_from_a_cursor_it_goes_on_with_the_next_seq(broker: MemoryBroker, cut: int) -> None:
    publish(broker, [*line(1, 4), block("3b", "2a", 9), block("4b", "3b", 10), block("5b", "4b", 11)])
    whole = _consume(broker, "5b")
    pieces: list[ChainUpdate] = []
    cursor = "earliest"
    while not pieces or pieces[-1].added[-1].hash != hash_of("5b"):
        taken: list[ChainUpdate] = []
        with Consumer(broker.url, Blocks(), start=cursor, idle_timeout=DEADLINE) as consumer:
            for update in consumer:
                taken.append(update)
                if len(taken) == cut or update.added[-1].hash == hash_of("5b"):
                    break
        assert taken
        assert not pieces or taken[0].first_seq == pieces[-1].seq + 1
        pieces += taken
        cursor = str(pieces[-1].cursor)
    assert _chain(pieces) == _chain(whole)


def test_from_the_tail_only_what_comes_later_is_given(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with Consumer(broker.url, Blocks(), start="latest", idle_timeout=DEADLINE) as consumer:
        publish(broker, line(6, 8))
        updates = []
        for update in consumer:
            updates.append(update)
            if update.added[-1].number == 8:
                break
    assert _chain(updates) == ["6a", "7a", "8a"]


def test_a_stream_that_begins_later_begins_with_its_first_block(broker: MemoryBroker) -> None:
    Producer(broker.url, Blocks(), producer_id="one").close()
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
        seen = iter(consumer)
        consumer._step()
        assert consumer.caught_up
        publish(broker, line(7, 9))
        updates = [next(seen)]
        while updates[-1].added[-1].number < 9:
            updates.append(next(seen))
    assert _chain(updates) == ["7a", "8a", "9a"]


def test_partitions_far_apart_in_time_are_read_in_step_and_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.consuming.partition_sync.POLL_RECORDS", 10)
    seconds = iter(range(10**9))
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=lambda: 5 * next(seconds)) as broker:
        publish(broker, line(1, 200))
        assert _chain(_consume(broker, "200a")) == [f"{number}a" for number in range(1, 201)]


def test_of_two_chains_the_lists_decide_and_not_the_weight(broker: MemoryBroker) -> None:
    """2b and what stands on it are heavier; a whitelist pins 2a, a blacklist names 2b."""
    publish(broker, [*line(1, 6), *line(2, 9, "b", "1a", weight=50)])
    assert _chain(_consume(broker, "9b")) == ["1a", *(f"{number}b" for number in range(2, 10))]
    for lists in ({"whitelist": {2: hash_of("2a")}}, {"blacklist": [hash_of("2b")]}):
        events: list[object] = []
        updates = _consume(broker, "6a", on_event=events.append, **lists)
        assert _chain(updates) == [f"{number}a" for number in range(1, 7)]
        refused = {name_of(event.block) for event in events if isinstance(event, Quarantined)}
        assert refused <= {f"{number}b" for number in range(2, 10)}
        assert "2b" in refused


def test_a_blacklist_may_come_later_and_names_what_was_delivered(broker: MemoryBroker) -> None:
    publish(broker, line(1, 6))
    cursor = _consume(broker, "6a")[-1].cursor
    publish(broker, [*line(5, 9, "b", "4a", weight=50), *line(7, 8)])
    assert _chain(_consume(broker, "8a", start=cursor, blacklist=[hash_of("5b")]), ["6a"]) == ["6a", "7a", "8a"]
    with pytest.raises(CursorMismatchError, match="blacklist names a block at 5"):
        _consume(broker, "8a", start=cursor, blacklist=[hash_of("5a")])


def test_an_idle_consumer_ends_when_it_was_told_to(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
        assert _chain(list(consumer)) == ["1a", "2a", "3a"]


def test_closing_from_another_thread_ends_the_iteration(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    consumer = Consumer(broker.url, Blocks())
    updates: list[ChainUpdate] = []
    reading = threading.Thread(target=lambda: updates.extend(consumer))
    reading.start()
    for _ in range(int(DEADLINE / 0.05)):
        if updates or not reading.is_alive():
            break
        reading.join(0.05)
        if consumer.caught_up:
            break
    consumer.close()
    consumer.close()
    reading.join(DEADLINE)
    assert not reading.is_alive()
    assert _chain(updates) == ["1a", "2a", "3a"]


def test_an_event_loop_is_not_held_up(broker: MemoryBroker) -> None:
    async def read() -> tuple[list[ChainUpdate], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        with Consumer(broker.url, Blocks(), idle_timeout=0.5) as consumer:
            updates = [update async for update in consumer]
        ticking.cancel()
        return updates, ticks

    publish(broker, line(1, 3))
    updates, ticks = asyncio.run(read())
    assert _chain(updates) == ["1a", "2a", "3a"]
    assert ticks > 10


def test_what_is_no_update_goes_to_on_event(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2))
    bad = Routed("a", b"\x2a" + bytes(32), b"")
    broker.sink(Blocks(), producer_id="strange").send([bad], None).result(DEADLINE)
    events: list[Event] = []
    with Consumer(broker.url, Blocks(), idle_timeout=0.3, on_event=events.append) as consumer:
        assert _chain(list(consumer)) == ["1a", "2a"]
    assert [event.key for event in events if isinstance(event, Rejected)] == [bad.key]
    assert any(isinstance(event, PingSeen) for event in events)


def test_finality_marks_come_with_the_updates(broker: MemoryBroker) -> None:
    marked = [
        Payload(
            n,
            hash_of(f"{n}a"),
            hash_of(f"{n - 1}a"),
            n,
            {"a/safe": bytes([n]), "a/finalized": b"\x01" if n > 2 else b""},
        )
        for n in range(1, 5)
    ]
    publish(broker, marked)
    update = _consume(broker, "4a")[-1]
    assert update.finality is not None
    assert (update.finality.safe, update.finality.finalized) == (4, 1)


def test_the_one_stream_of_a_broker_is_found_by_the_applications_name(broker: MemoryBroker) -> None:
    with pytest.raises(TopicError, match="cardinal produce"):
        find_application(broker.url, "evm")
    for topic in ("other-7", "cardinal-99", "cardinal-31337-claims-0", "cardinal-31337-claims-1"):
        broker.create(topic)  # no stream: the other topics are missing
    broker.sink(apps.get("evm", chain_id=31337), producer_id="one")
    assert find_application(broker.url, "evm") == apps.get("evm", chain_id=31337)
    broker.sink(apps.get("evm", chain_id=5), producer_id="one")
    with pytest.raises(ConfigurationError, match=r"31337.*5|5.*31337") as caught:
        find_application(broker.url, "evm")
    assert caught.value.setting == "chain_id"
    with Consumer(broker.url, "evm", chain_id=5) as consumer:
        assert consumer.app.default_topic == "cardinal-5"


def test_a_cursor_that_cannot_be_used_says_why(broker: MemoryBroker) -> None:
    publish(broker, line(1, 30))
    cursor = str(_consume(broker, "30a")[-1].cursor)
    with pytest.raises(CursorInvalidError):
        Consumer(broker.url, Blocks(), start="middle")
    with pytest.raises(CursorMismatchError):
        Consumer(broker.url, Blocks(chain="blocks:2"), start=cursor)
    publish(broker, line(31, 40))
    for partition in range(3):
        broker.trim("block", partition, broker.source(["block"]).watermarks()["block", partition][1])
    with pytest.raises(CursorExpiredError) as caught:
        Consumer(broker.url, Blocks(), start=cursor)
    assert caught.value.missing


def test_a_stream_that_is_not_there_is_named(broker: MemoryBroker) -> None:
    with pytest.raises(TopicError, match="start a producer"):
        Consumer(broker.url, Blocks(), topics_timeout=0.1)


def test_what_a_block_waits_for_can_be_asked(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2))
    broker.fail(lambda message: message.topic == "b")
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.add(block("3a", "2a"))
        with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
            assert _chain(list(consumer)) == ["1a", "2a"]
            assert consumer.explain(hash_of("3a")) != consumer.explain(hash_of("9a"))
        broker.fail(None)
