from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from pydantic import Field

from cardinal import apps
from cardinal.apps import Application
from cardinal.consumer import Consumer, find_application
from cardinal.errors import ConfigurationError, CursorExpiredError, CursorInvalidError, CursorMismatchError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams import ChainUpdate
from cardinal.protocols.streams.events import Event, PingSeen, Rejected
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Routed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 10.0


class Blocks(Application):
    name: str = "blocks"
    chain: str = "blocks:1"
    reorg_threshold: int = 16
    default_topic: str = "block"
    topics: dict[str, str] = Field(default_factory=lambda: {"a/": "a", "b/": "b"})
    prefixes: tuple[str, ...] = ("a/", "b/", "inside")
    finality_paths: tuple[str, str] | None = ("a/safe", "a/finalized")


def _hash(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def _block(name: str, parent: str, weight: int | None = None) -> Payload:
    number = int(name[:-1])
    updates = {"a/1": name.encode(), "a/2": b"2", "b/1": b"3", "inside": b"4"}
    return Payload(number, _hash(name), _hash(parent), number if weight is None else weight, updates)


def _line(first: int, last: int, branch: str = "a") -> list[Payload]:
    return [_block(f"{number}{branch}", f"{number - 1}{branch}") for number in range(first, last + 1)]


def _name(block_hash: bytes) -> str:
    return block_hash.rstrip(b".").decode()


def _steps(updates: list[ChainUpdate]) -> list[str]:
    return [
        sign + _name(block.hash)
        for update in updates
        for sign, blocks in (("-", update.removed), ("+", update.added))
        for block in blocks
    ]


def _chain(updates: list[ChainUpdate], before: list[str] | None = None) -> list[str]:
    chain = list(before or [])
    for update in updates:
        for block in update.removed:
            assert chain.pop() == _name(block.hash)
        chain += [_name(block.hash) for block in update.added]
    return chain


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        yield broker


def _publish(broker: MemoryBroker, payloads: list[Payload], producer_id: str = "one") -> None:
    with Producer(broker.url, Blocks(), producer_id=producer_id) as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(DEADLINE)


def _consume(broker: MemoryBroker, last: str, **options: object) -> list[ChainUpdate]:
    """Updates until the chain's head is ``last``."""
    updates: list[ChainUpdate] = []
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options) as consumer:  # type: ignore[arg-type] # tests name them
        for update in consumer:
            updates.append(update)
            if update.added and update.added[-1].hash == _hash(last):
                return updates
    raise AssertionError(f"{last} did not come: {_steps(updates)}")


def test_blocks_come_out_in_chain_order_with_their_whole_content(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 20))
    updates = _consume(broker, "20a")
    assert _steps(updates) == [f"+{number}a" for number in range(1, 21)]
    blocks = [block for update in updates for block in update.added]
    assert all(isinstance(block, Payload) for block in blocks)
    assert [dict(block.updates) for block in blocks] == [dict(block.updates) for block in _line(1, 20)]  # type: ignore[union-attr] # just asserted
    assert updates[-1].seq == 20


def test_a_reorg_is_one_update(broker: MemoryBroker) -> None:
    _publish(broker, [*_line(1, 5), _block("4b", "3a"), _block("5b", "4b"), _block("6b", "5b")])
    with Consumer(broker.url, Blocks(), start="tail") as consumer:
        assert consumer.app.name == "blocks"
    updates = _consume(broker, "6b")
    assert _chain(updates) == ["1a", "2a", "3a", "4b", "5b", "6b"]


def test_a_reorg_seen_live_names_what_it_removes(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 5))
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
        seen = iter(consumer)
        first = next(seen)
        while first.added[-1].number < 5:
            first = next(seen)
        _publish(broker, [_block("4b", "3a"), _block("5b", "4b"), _block("6b", "5b")])
        update = next(seen)
    assert _steps([update]) == ["-5a", "-4a", "+4b", "+5b", "+6b"]


def test_two_producers_give_the_same_updates_as_one(broker: MemoryBroker) -> None:
    line = _line(1, 12)
    _publish(broker, line)
    alone = _consume(broker, "12a")
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as both:
        for start in range(0, 12, 3):
            for producer_id in ("one", "two"):
                _publish(both, line[start : start + 3], producer_id)
        together = _consume(both, "12a")
    assert _steps(together) == _steps(alone)
    assert together[-1].seq == alone[-1].seq


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_resumed_from_a_cursor_it_goes_on_with_the_next_seq(broker: MemoryBroker, cut: int) -> None:
    _publish(broker, [*_line(1, 4), _block("3b", "2a", 9), _block("4b", "3b", 10), _block("5b", "4b", 11)])
    whole = _consume(broker, "5b")
    pieces: list[ChainUpdate] = []
    cursor = "start"
    while not pieces or pieces[-1].added[-1].hash != _hash("5b"):
        taken: list[ChainUpdate] = []
        with Consumer(broker.url, Blocks(), start=cursor, idle_timeout=DEADLINE) as consumer:
            for update in consumer:
                taken.append(update)
                if len(taken) == cut or update.added[-1].hash == _hash("5b"):
                    break
        assert taken
        assert not pieces or taken[0].first_seq == pieces[-1].seq + 1
        pieces += taken
        cursor = str(pieces[-1].cursor)
    assert _chain(pieces) == _chain(whole)


def test_from_the_tail_only_what_comes_later_is_given(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 5))
    with Consumer(broker.url, Blocks(), start="tail", idle_timeout=DEADLINE) as consumer:
        _publish(broker, _line(6, 8))
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
        _publish(broker, _line(7, 9))
        updates = [next(seen)]
        while updates[-1].added[-1].number < 9:
            updates.append(next(seen))
    assert _chain(updates) == ["7a", "8a", "9a"]


def test_partitions_far_apart_in_time_are_read_in_step_and_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.reading.POLL_RECORDS", 10)
    seconds = iter(range(10**9))
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=lambda: 5 * next(seconds)) as broker:
        _publish(broker, _line(1, 200))
        assert _chain(_consume(broker, "200a")) == [f"{number}a" for number in range(1, 201)]


def test_an_idle_consumer_ends_when_it_was_told_to(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 3))
    with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
        assert _chain(list(consumer)) == ["1a", "2a", "3a"]


def test_closing_from_another_thread_ends_the_iteration(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 3))
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

    _publish(broker, _line(1, 3))
    updates, ticks = asyncio.run(read())
    assert _chain(updates) == ["1a", "2a", "3a"]
    assert ticks > 10


def test_what_is_no_update_goes_to_on_event(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 2))
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
            n, _hash(f"{n}a"), _hash(f"{n - 1}a"), n, {"a/safe": bytes([n]), "a/finalized": b"\x01" if n > 2 else b""}
        )
        for n in range(1, 5)
    ]
    _publish(broker, marked)
    update = _consume(broker, "4a")[-1]
    assert update.finality is not None
    assert (update.finality.safe, update.finality.finalized) == (4, 1)


def test_the_one_stream_of_a_broker_is_found_by_the_applications_name(broker: MemoryBroker) -> None:
    with pytest.raises(TopicError, match="cardinal produce"):
        find_application(broker.url, "evm")
    for topic in ("other-7", "cardinal-99"):
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
    _publish(broker, _line(1, 30))
    cursor = str(_consume(broker, "30a")[-1].cursor)
    with pytest.raises(CursorInvalidError):
        Consumer(broker.url, Blocks(), start="middle")
    with pytest.raises(CursorMismatchError):
        Consumer(broker.url, Blocks(chain="blocks:2"), start=cursor)
    _publish(broker, _line(31, 40))
    for partition in range(3):
        broker.trim("block", partition, broker.source(["block"]).watermarks()["block", partition][1])
    with pytest.raises(CursorExpiredError) as caught:
        Consumer(broker.url, Blocks(), start=cursor)
    assert caught.value.missing


def test_a_stream_that_is_not_there_is_named(broker: MemoryBroker) -> None:
    with pytest.raises(TopicError, match="start a producer"):
        Consumer(broker.url, Blocks(), topics_timeout=0.1)


def test_what_a_block_waits_for_can_be_asked(broker: MemoryBroker) -> None:
    _publish(broker, _line(1, 2))
    broker.fail(lambda message: message.topic == "b")
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        producer.add(_block("3a", "2a"))
        with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
            assert _chain(list(consumer)) == ["1a", "2a"]
            assert consumer.explain(_hash("3a")) != consumer.explain(_hash("9a"))
        broker.fail(None)
