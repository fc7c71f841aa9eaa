"""What is lost, late or dropped on the way, and what comes through reorg channels."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming.healing import HealingFailed
from cardinal.protocols.streams import (
    BlockRef,
    Incomplete,
    MissingPayload,
    Overflow,
    ReorgBegan,
    ReorgEnded,
    Routed,
    split,
    split_reorg,
)
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import Payload
    from cardinal.protocols.streams.events import Explanation


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


def consumer(broker: MemoryBroker, **options: object) -> Consumer:
    return Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, **options)  # type: ignore[arg-type] # tests name them


@contextlib.contextmanager
def begun(broker: MemoryBroker, **options: object) -> Iterator[Consumer]:
    """A consumer that has delivered the blocks to 4."""
    publish(broker, line(1, 4))
    with consumer(broker, **options) as reading:
        assert steps(until(reading, "4a"))[-1] == "+4a"
        yield reading


def read_to(reading: Consumer, name: str) -> None:
    """Read until a block is complete, whether it is delivered or not."""
    deadline = time.monotonic() + DEADLINE
    while reading.explain(hash_of(name)).state in ("unknown", "open"):
        assert time.monotonic() < deadline
        reading._step()


def messages(payload: Payload) -> list[Routed]:
    return split(payload, Blocks().topics, "block")


def send(broker: MemoryBroker, routed: list[Routed]) -> None:
    broker.sink(Blocks(), producer_id="one").send(routed, None).result(DEADLINE)


def lossy(broker: MemoryBroker) -> list[Routed]:
    """A chain from 5 to 60 whose block 5 lacks a message; returns what is lost."""
    *rest, lost, batch = messages(block("5a", "4a"))
    send(broker, [*rest, batch])
    publish(broker, line(6, 60))
    return [lost]


# --- healing -----------------------------------------------------------------------------------------------


def test_a_hook_supplies_what_an_overdue_block_lacks(broker: MemoryBroker) -> None:
    asked: list[Explanation] = []
    lost: list[Routed] = []

    def heal(lacking: Explanation) -> list[Routed]:
        asked.append(lacking)
        return lost if lacking.block == hash_of("5a") else []

    with begun(broker, heal=heal) as reading:
        lost += lossy(broker)
        updates = until(reading, "60a")
    assert steps(updates) == [f"+{number}a" for number in range(5, 61)]
    assert [(lacking.number, sum(lacking.missing_counts.values())) for lacking in asked] == [(5, 1)]


def test_a_hook_that_raises_is_reported_and_holds_up_nothing(broker: MemoryBroker) -> None:
    events: list[object] = []

    def heal(_lacking: Explanation) -> list[Routed]:
        raise OSError("no node")

    with begun(broker, heal=heal, on_event=events.append) as reading:
        lossy(broker)
        assert steps(until(reading, "60a"))[0] == "+?5a"
    assert HealingFailed(hash_of("5a"), "OSError: no node") in events


def test_no_block_is_given_up_while_the_hook_is_asked(broker: MemoryBroker) -> None:
    lost: list[Routed] = []
    go_on = threading.Event()

    def heal(lacking: Explanation) -> list[Routed]:
        assert go_on.wait(DEADLINE)
        return lost if lacking.block == hash_of("5a") else []

    with begun(broker, heal=heal) as reading:
        lost += lossy(broker)
        read_to(reading, "60a")
        publish(broker, line(61, 64))
        read_to(reading, "64a")
        assert reading.head == BlockRef(4, hash_of("4a"))
        go_on.set()
        assert steps(until(reading, "64a")) == [f"+{number}a" for number in range(5, 65)]


def test_what_cannot_be_had_is_passed_over_as_missing(broker: MemoryBroker) -> None:
    with begun(broker) as reading:
        lossy(broker)
        updates = until(reading, "60a")
    assert steps(updates) == [f"+{'?' if number == 5 else ''}{number}a" for number in range(5, 61)]
    assert [one for update in updates for one in update.added if isinstance(one, MissingPayload)] == [
        MissingPayload(5, hash_of("5a"))
    ]


def test_the_stream_can_be_told_to_halt_until_the_messages_are_supplied(broker: MemoryBroker) -> None:
    supplied: list[Incomplete] = []
    lost: list[Routed] = []

    def on_event(event: object) -> None:
        if isinstance(event, Incomplete):
            supplied.append(event)
            reading.supply(lost)

    with begun(broker, on_incomplete="halt", on_event=on_event) as reading:
        lost += lossy(broker)
        assert steps(until(reading, "60a")) == [f"+{number}a" for number in range(5, 61)]
    assert len(supplied) == 1


# --- eviction ----------------------------------------------------------------------------------------------


def test_an_evicted_block_is_re_read_when_its_batch_comes(broker: MemoryBroker) -> None:
    *early, batch = messages(block("5a", "4a"))
    flood = [Routed("a", bytes((3,)) + bytes([n]) * 32 + b"a/x", bytes(4000)) for n in range(200)]
    events: list[object] = []
    with begun(broker, max_open_bytes=100_000, on_event=events.append) as reading:
        for part in (early, flood):
            send(broker, part)
        while not any(isinstance(event, Overflow) for event in events):
            reading._step()
        send(broker, [batch])
        publish(broker, line(6, 9))
        updates = until(reading, "9a")
    assert steps(updates) == [f"+{number}a" for number in range(5, 10)]
    assert dict(updates[0].added[0].updates) == dict(block("5a", "4a").updates)  # type: ignore[union-attr]
    assert hash_of("5a") in {event.block for event in events if isinstance(event, Overflow)}
    assert not [event for event in events if isinstance(event, Incomplete)]


# --- reorg channels ----------------------------------------------------------------------------------------


def deep(broker: MemoryBroker, ancestor: str, blocks: list[Payload]) -> tuple[Routed, list[Routed]]:
    announcement, channel = split_reorg(
        BlockRef(int(ancestor[:-1]), hash_of(ancestor)), blocks, Blocks().topics, "block"
    )
    broker.create(channel[0].topic, partitions=1)
    return announcement, channel


class Channels(Blocks):
    """The same application, whose sink may also write a channel."""


def write_channel(broker: MemoryBroker, channel: list[Routed]) -> None:
    app = Channels(default_topic=channel[0].topic, topics={}, prefixes=())
    broker.sink(app, producer_id="one").send(channel, None).result(DEADLINE)


def test_the_end_of_a_stream_lies_behind_a_channel_that_was_there(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    with consumer(broker, until="end") as reading:
        *_, last = reading
    announcement, channel = deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
    send(broker, [announcement])
    write_channel(broker, channel)
    with consumer(broker, until="end", start=last.cursor) as reading:
        assert [update.added[-1].hash for update in reading] == [hash_of("62b")]


def test_a_reorg_deeper_than_the_threshold_comes_through_its_channel_as_one_update(broker: MemoryBroker) -> None:
    publish(broker, line(1, 60))
    announcement, channel = deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
    events: list[object] = []
    with consumer(broker, on_event=events.append) as reading:
        before = until(reading, "60a")
        send(broker, [announcement])
        write_channel(broker, channel)
        after = until(reading, "62b")
        publish(broker, line(63, 64, "b", weight=5))
        assert steps(until(reading, "64b")) == ["+63b", "+64b"]
    assert steps(before) == [f"+{number}a" for number in range(1, 61)]
    assert len(after) == 1
    assert steps(after)[:41] == [*(f"-{'?' if number <= 43 else ''}{number}a" for number in range(60, 20, -1)), "+21b"]
    assert {type(event) for event in events} >= {ReorgBegan, ReorgEnded}


@pytest.mark.parametrize("cut", [5, 60, 120])
def test_a_consumer_killed_in_the_middle_of_a_channel_resumes_it(broker: MemoryBroker, cut: int) -> None:
    publish(broker, line(1, 60))
    announcement, channel = deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
    with consumer(broker) as reading:
        until(reading, "60a")
        send(broker, [announcement])
        write_channel(broker, channel[:cut])
        publish(broker, line(61, 61))
        (update,) = until(reading, "61a")
    with consumer(broker, start=str(update.cursor)) as reading:
        write_channel(broker, channel[cut:])
        (switch,) = until(reading, "62b")
    assert switch.first_seq == update.seq + 1
    assert steps([switch])[:2] == ["-61a", "-60a"]
    assert steps([switch])[41:43] == ["+21b", "+22b"]


def test_a_channel_deeper_than_what_a_resumed_consumer_remembers_is_looked_up_on_the_topics(
    broker: MemoryBroker,
) -> None:
    publish(broker, line(1, 60))
    announcement, channel = deep(broker, "20a", line(21, 62, "b", "20a", weight=5))
    with consumer(broker) as reading:
        update = until(reading, "60a")[-1]
    with consumer(broker, start=str(update.cursor)) as reading:
        send(broker, [announcement])
        write_channel(broker, channel)
        (switch,) = until(reading, "62b")
    assert [one.number for one in switch.removed] == list(range(60, 20, -1))
