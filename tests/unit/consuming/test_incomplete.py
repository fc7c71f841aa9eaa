"""Blocks that lack messages: healing, abandonment, and handlers of reports, which may supply messages and may raise."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

import waiting
from blocks import (
    DEADLINE,
    Blocks,
    added,
    block,
    consumer,
    hash_of,
    line,
    messages,
    publish,
    send,
    steps,
    updates_until,
)
from cardinal.consuming import healing, partition_sync
from cardinal.consuming.healing import Healer, HealingFailed
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams import BlockRef, Incomplete, MissingPayload, Overflow, Payload, Rejected, Routed
from cardinal.protocols.streams.events import Explanation
from examples import few

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.consumer import Consumer
    from cardinal.protocols.streams.types import Partition
    from cardinal_devkit.testing.memory import MemoryBroker


@contextlib.contextmanager
def begun(broker: MemoryBroker, **options: object) -> Iterator[Consumer]:
    """A consumer that has delivered the blocks to 4."""
    publish(broker, line(1, 4))
    with consumer(broker, **options) as reading:
        assert steps(updates_until(reading, "4a"))[-1] == "+4a"
        yield reading


def read_to(reading: Consumer, name: str) -> None:
    """Read until a block is complete, whether it is delivered or not."""
    waiting.until(lambda: reading.explain(hash_of(name)).state not in ("unknown", "open"), step=reading._step)


def whole(*payloads: Payload) -> list[Routed]:
    return [one for payload in payloads for one in messages(payload)]


def lossy(broker: MemoryBroker) -> list[Routed]:
    """A chain from 5 to 60, all of it there at once, whose block 5 lacks a message; returns what is lost."""
    *rest, lost, batch = messages(block("5a", "4a"))
    send(broker, [*rest, batch, *whole(*line(6, 60))])
    return [lost]


# --- healing -----------------------------------------------------------------------------------------------


def test_a_hook_supplies_what_an_overdue_block_lacks(broker: MemoryBroker) -> None:
    """Nothing is abandoned while it runs."""
    asked: list[Explanation] = []
    lost: list[Routed] = []
    go_on = threading.Event()

    def heal(lacking: Explanation) -> list[Routed]:
        asked.append(lacking)
        assert go_on.wait(DEADLINE)
        return lost

    with begun(broker, heal=heal) as reading:
        lost += lossy(broker)
        read_to(reading, "60a")
        publish(broker, line(61, 64))
        read_to(reading, "64a")
        assert reading.head == BlockRef(4, hash_of("4a"))
        go_on.set()
        assert steps(updates_until(reading, "64a")) == added(5, 64)
    assert [(lacking.number, sum(lacking.missing_counts.values())) for lacking in asked] == [(5, 1)]


def test_a_hook_that_raises_is_reported_and_holds_up_nothing(broker: MemoryBroker) -> None:
    events: list[object] = []

    def heal(_lacking: Explanation) -> list[Routed]:
        raise OSError("no node")

    with begun(broker, heal=heal, on_event=events.append) as reading:
        lossy(broker)
        assert steps(updates_until(reading, "60a"))[0] == "+?5a"
    assert HealingFailed(hash_of("5a"), "OSError: no node") in events


def test_what_cannot_be_had_is_delivered_as_missing(broker: MemoryBroker) -> None:
    with begun(broker) as reading:
        lossy(broker)
        updates = updates_until(reading, "60a")
    assert steps(updates) == ["+?5a", *added(6, 60)]
    assert updates[0].added[0] == MissingPayload(5, hash_of("5a"))


def test_with_halt_the_chain_waits_until_the_messages_are_supplied(broker: MemoryBroker) -> None:
    supplied: list[Incomplete] = []
    lost: list[Routed] = []

    def on_event(event: object) -> None:
        if isinstance(event, Incomplete):
            supplied.append(event)
            reading.supply(lost)

    with begun(broker, on_incomplete="halt", on_event=on_event) as reading:
        lost += lossy(broker)
        assert steps(updates_until(reading, "60a")) == added(5, 60)
    assert len(supplied) == 1


@pytest.mark.parametrize("steps_late", few(1, [1, 0, 5]))
@pytest.mark.parametrize("by", ["heal", "on_event"])
@pytest.mark.parametrize("broker", [1], indirect=True)
def test_what_a_block_lacks_is_requested_before_it_is_abandoned(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, by: str, steps_late: int
) -> None:
    """Watermarks for overdue blocks come some steps after they were requested, as a broker's do."""
    lost: list[Routed] = []
    left = [steps_late]

    def answered(reader: Reader) -> dict[Partition, int] | None:
        left[0] = left[0] - 1 if left[0] else steps_late
        if left[0] < steps_late:
            return None
        return {tp: end for tp, (_, end) in reader.watermarks.query().items()}

    def heal(lacking: Explanation) -> list[Routed]:
        return lost if lacking.block == hash_of("5a") else []

    def on_event(event: object) -> None:
        if isinstance(event, Incomplete) and event.explanation.block == hash_of("5a"):
            reading.supply(lost)

    monkeypatch.setattr(Reader, "answered_ends", answered)
    with begun(broker, **({"heal": heal} if by == "heal" else {"on_event": on_event})) as reading:
        lost += lossy(broker)
        assert steps(updates_until(reading, "60a")) == added(5, 60)


@pytest.mark.parametrize(("on_incomplete", "begins"), [("skip", True), ("halt", False)])
def test_no_block_is_forgotten_that_was_overdue_with_many_others(
    broker: MemoryBroker,
    on_incomplete: str,
    begins: bool,  # noqa: FBT001 - a case
) -> None:
    """A third of the chain lacks a message each."""
    lacking = range(5, 160, 3)
    asked: list[int | None] = []
    lost: dict[bytes, list[Routed]] = {}

    def heal(one: Explanation) -> list[Routed]:
        asked.append(one.number)
        return lost.get(one.block, [])

    publish(broker, line(1, 4))
    with consumer(broker, heal=heal, on_incomplete=on_incomplete) as reading:
        if begins:
            updates_until(reading, "4a")
        for payload in line(5, 200):
            if payload.number in lacking:
                lost[payload.hash] = [one for one in messages(payload) if one.topic == "b"]
            send(broker, [one for one in messages(payload) if one not in lost.get(payload.hash, ())])
        delivered = steps(updates_until(reading, "200a"))
    assert delivered[-196:] == added(5, 200)
    assert sorted(number for number in asked if number is not None) == [*lacking]


def test_a_bounded_number_of_blocks_waits_for_the_hook_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "_REQUESTS_MAX", 100)
    blocks: list[bytes] = []
    may_go_on = threading.Event()

    def heal(lacking: Explanation) -> list[Routed]:
        assert may_go_on.wait(DEADLINE)
        blocks.append(lacking.block)
        return []

    healer = Healer(heal)
    hashes = [number.to_bytes(32, "big") for number in range(2_500)]
    for block_hash in hashes:
        healer.request(Explanation(block_hash, None, "open"))
    may_go_on.set()
    answers, deadline = 0, time.monotonic() + DEADLINE
    while healer.busy:
        assert time.monotonic() < deadline
        answers += len([*healer.results()])
    healer.close()
    assert answers == 100
    assert blocks == hashes[:100]


@pytest.mark.parametrize("broker", [1, 7], indirect=True)
def test_what_lies_behind_the_old_ends_is_read_before_anything_is_abandoned(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Batches' topic is read first, then the others', partition by partition: blocks are complete in any order."""
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", 10)
    app = Blocks(topics={"a/": "y", "b/": "z"})
    publish(broker, line(1, 4), app=app)
    with consumer(broker, app=app) as reading:
        updates_until(reading, "4a")
        publish(broker, line(5, 120), app=app)
        assert steps(updates_until(reading, "120a")) == added(5, 120)


def test_an_evicted_block_is_re_read_when_its_batch_comes(broker: MemoryBroker) -> None:
    *early, batch = messages(block("5a", "4a"))
    flood = [Routed("a", bytes((3,)) + bytes([n]) * 32 + b"a/x", bytes(4000)) for n in range(200)]
    events: list[object] = []
    with begun(broker, max_open_bytes=100_000, on_event=events.append) as reading:
        send(broker, [*early, *flood])
        while not any(isinstance(event, Overflow) for event in events):
            reading._step()
        send(broker, [batch])
        publish(broker, line(6, 9))
        updates = updates_until(reading, "9a")
    assert steps(updates) == added(5, 9)
    assert dict(updates[0].added[0].updates) == dict(block("5a", "4a").updates)  # type: ignore[union-attr] # it is whole
    assert hash_of("5a") in {event.block for event in events if isinstance(event, Overflow)}
    assert not [event for event in events if isinstance(event, Incomplete)]


# --- handlers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_what_a_handler_supplies_comes_after_what_came_before(broker: MemoryBroker) -> None:
    """The Batch of 6 does not decode, and that of 5 comes after it in the same read: the handler supplies 6."""
    six = block("6a", "5a")
    *content, batch = messages(six)

    def told(event: object) -> None:
        if isinstance(event, Rejected):
            reading.supply(messages(six))

    with begun(broker, on_event=told) as reading:
        send(broker, [*content, Routed(batch.topic, batch.key, b"\xff"), *messages(block("5a", "4a"))])
        updates = updates_until(reading, "6a")
    assert steps(updates) == ["+5a", "+6a"]
    assert [update.seq for update in updates] == [5, 6]


def test_a_handler_is_not_called_inside_itself(broker: MemoryBroker) -> None:
    """What it supplies is rejected in its turn, and reported when it has returned."""
    bad = [Routed("a", b"\x2a" + bytes([number]) * 32, b"") for number in range(3)]
    inside = 0
    depths: list[int] = []

    def told(event: object) -> None:
        nonlocal inside
        if isinstance(event, Rejected):
            inside += 1
            depths.append(inside)
            if len(depths) < len(bad):
                reading.supply([bad[len(depths)]])
            inside -= 1

    with begun(broker, on_event=told) as reading:
        reading.supply([bad[0]])
        assert depths == [1, 1, 1], "what is supplied between two steps is reported at once"


class Alerting:
    """A handler whose service is unreachable for the first rejected records; notes them."""

    def __init__(self, failures: int) -> None:
        self.told: list[Rejected] = []
        self._failures = failures

    def __call__(self, event: object) -> None:
        if isinstance(event, Rejected):
            self.told.append(event)
            if len(self.told) <= self._failures:
                raise ConnectionError("alerting is unreachable")


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_a_handler_that_raises_loses_nothing_and_receives_every_report_once(broker: MemoryBroker) -> None:
    """Two records of one read are no messages, and it raises at both, before the updates that follow them."""
    alerting = Alerting(failures=2)
    bad = [Routed("block", b"\x2a" + bytes([number]) * 32, b"") for number in (1, 2)]
    with begun(broker, on_event=alerting) as reading:
        send(broker, [*bad, *whole(*line(5, 7))])
        for _ in bad:
            with pytest.raises(ConnectionError):
                next(iter(reading))
            assert not reading.ready, "5a to 7a are read, and not delivered"
        assert [event.key for event in alerting.told] == [one.key for one in bad]
        updates = updates_until(reading, "7a")
    assert steps(updates) == added(5, 7)
    assert [update.seq for update in updates] == [5, 6, 7]
    assert len(alerting.told) == 2


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_a_record_that_is_skipped_is_reported_to_a_handler_that_raises(broker: MemoryBroker) -> None:
    alerting = Alerting(failures=1)
    publish(broker, line(1, 4))
    place = ("block", 0, broker.source(["block"]).watermarks()["block", 0][1])
    with consumer(broker, on_event=alerting, skip=[place]) as reading:
        updates_until(reading, "4a")
        send(broker, [messages(block("5x", "4a"))[-1], *whole(*line(5, 7))])
        with pytest.raises(ConnectionError):
            next(iter(reading))
        assert steps(updates_until(reading, "7a")) == added(5, 7)
    assert [event.position for event in alerting.told] == [place]
