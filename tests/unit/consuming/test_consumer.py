"""The consumer: its updates, how it resumes and ends, when it is ready, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from blocks import (
    DEADLINE,
    Blocks,
    added,
    block,
    consumer,
    hash_of,
    line,
    messages,
    name_of,
    publish,
    send,
    steps,
    updates_until,
)
from cardinal.consuming.gc_pause import collector_waits
from cardinal.errors import CursorExpiredError, CursorMismatchError, TopicError
from cardinal.protocols.streams import ChainUpdate
from cardinal.protocols.streams.events import PingSeen, Quarantined, Rejected
from cardinal.protocols.streams.ordering.finality import FinalityViolated
from cardinal.protocols.streams.types import Routed
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams.types import Partition, Record


def consumed(broker: MemoryBroker, last: str, **options: object) -> list[ChainUpdate]:
    with consumer(broker, **options) as reading:
        return updates_until(reading, last)


def chain_of(updates: list[ChainUpdate], before: list[str] | None = None) -> list[str]:
    chain = list(before or [])
    for update in updates:
        for removed in update.removed:
            assert chain.pop() == name_of(removed.hash)
        chain += [name_of(one.hash) for one in update.added]
    return chain


# --- updates -----------------------------------------------------------------------------------------------


def test_blocks_come_in_chain_order_with_all_of_their_content(broker: MemoryBroker) -> None:
    publish(broker, line(1, 20))
    updates = consumed(broker, "20a")
    assert steps(updates) == added(1, 20)
    blocks = [block for update in updates for block in update.added]
    assert [dict(block.updates) for block in blocks] == [dict(block.updates) for block in line(1, 20)]  # type: ignore[union-attr] # they are whole
    assert updates[-1].seq == 20


def test_a_reorg_is_one_update_that_names_what_it_removes(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with consumer(broker) as reading:
        updates_until(reading, "5a")
        publish(broker, line(4, 6, "b", "3a"))
        (update,) = updates_until(reading, "6b")
    assert steps([update]) == ["-5a", "-4a", "+4b", "+5b", "+6b"]


def test_two_producers_give_the_same_updates_as_one(broker: MemoryBroker) -> None:
    blocks = line(1, 12)
    for start in range(0, 12, 3):
        for producer_id in ("one", "two"):
            publish(broker, blocks[start : start + 3], producer_id)
    updates = consumed(broker, "12a")
    assert steps(updates) == added(1, 12)
    assert updates[-1].seq == 12


def test_of_two_chains_the_lists_decide_and_not_the_weight(broker: MemoryBroker) -> None:
    """2b and what stands on it are heavier; a whitelist pins 2a, a blacklist names 2b."""
    publish(broker, [*line(1, 6), *line(2, 9, "b", "1a", weight=50)])
    assert chain_of(consumed(broker, "9b")) == ["1a", *(f"{number}b" for number in range(2, 10))]
    for lists in ({"whitelist": {2: hash_of("2a")}}, {"blacklist": [hash_of("2b")]}):
        events: list[object] = []
        assert steps(consumed(broker, "6a", on_event=events.append, **lists)) == added(1, 6)
        refused = {name_of(event.block) for event in events if isinstance(event, Quarantined)}
        assert refused <= {f"{number}b" for number in range(2, 10)}
        assert "2b" in refused


def test_what_is_no_update_goes_to_on_event(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2))
    bad = Routed("a", b"\x2a" + bytes(32), b"")
    send(broker, [bad])
    events: list[object] = []
    with consumer(broker, idle_timeout=0.3, on_event=events.append) as reading:
        assert steps(list(reading)) == ["+1a", "+2a"]
    assert [event.key for event in events if isinstance(event, Rejected)] == [bad.key]
    assert any(isinstance(event, PingSeen) for event in events)


# --- where it begins, and how it resumes -------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 3])
def test_resumed_from_a_cursor_it_continues_with_the_next_seq(broker: MemoryBroker, cut: int) -> None:
    publish(broker, [*line(1, 4), block("3b", "2a", 9), block("4b", "3b", 10), block("5b", "4b", 11)])
    whole = consumed(broker, "5b")
    pieces: list[ChainUpdate] = []
    cursor = None
    while not pieces or pieces[-1].added[-1].hash != hash_of("5b"):
        taken: list[ChainUpdate] = []
        with consumer(broker, start=cursor) as reading:
            for update in reading:
                taken.append(update)
                if len(taken) == cut or update.added[-1].hash == hash_of("5b"):
                    break
        assert not pieces or taken[0].first_seq == pieces[-1].seq + 1
        pieces += taken
        cursor = str(pieces[-1].cursor)
    assert chain_of(pieces) == chain_of(whole)


def test_from_the_tail_only_what_comes_later_is_delivered(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with consumer(broker, start="latest") as reading:
        publish(broker, line(6, 8))
        assert steps(updates_until(reading, "8a")) == added(6, 8)


def test_a_blacklist_may_come_later_and_name_what_was_delivered(broker: MemoryBroker) -> None:
    publish(broker, line(1, 6))
    cursor = consumed(broker, "6a")[-1].cursor
    publish(broker, [*line(5, 9, "b", "4a", weight=50), *line(7, 8)])
    assert chain_of(consumed(broker, "8a", start=cursor, blacklist=[hash_of("5b")]), ["6a"]) == ["6a", "7a", "8a"]
    with pytest.raises(CursorMismatchError, match="blacklist names a block at 5"):
        consumer(broker, start=cursor, blacklist=[hash_of("5a")])


def test_the_error_of_an_unusable_cursor_has_its_reason(broker: MemoryBroker) -> None:
    publish(broker, line(1, 30))
    cursor = str(consumed(broker, "30a")[-1].cursor)
    with pytest.raises(CursorMismatchError):
        consumer(broker, app=Blocks(chain="blocks:2"), start=cursor)
    publish(broker, line(31, 40))
    for tp, (_, end) in broker.source(["block"]).watermarks().items():
        broker.trim(*tp, end)
    with pytest.raises(CursorExpiredError) as caught:
        consumer(broker, start=cursor)
    assert caught.value.missing


# --- how it ends -------------------------------------------------------------------------------------------


def test_closing_from_another_thread_ends_the_iteration(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    reading, updates, delivered = consumer(broker, idle_timeout=None), list[ChainUpdate](), threading.Event()

    def iterate() -> None:
        for update in reading:
            updates.append(update)
            if update.added[-1].number == 3:
                delivered.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    assert delivered.wait(DEADLINE)
    reading.close()
    reading.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert steps(updates) == added(1, 3)


def test_a_closed_consumer_has_no_file_of_the_stream_open(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    publish(url, line(1, 9))
    reading = consumer(url)
    updates_until(reading, "9a")

    def open_files() -> list[int]:
        inodes = {path.stat().st_ino for path in (tmp_path / "log").iterdir()}
        found = []
        for fd in Path("/dev/fd").iterdir():
            with suppress(OSError):  # the listing's own is closed by now
                found.append(os.fstat(int(fd.name)).st_ino)
        return [inode for inode in found if inode in inodes]

    assert open_files(), "it reads from files"
    reading.close()
    assert not open_files()


def test_a_consumer_that_cannot_be_made_leaves_no_thread(broker: MemoryBroker) -> None:
    before = set(threading.enumerate())
    with pytest.raises(TopicError, match="start a producer"):
        consumer(broker, heal=lambda _lacking: [], topics_timeout=0.0)
    assert set(threading.enumerate()) <= before


class Slow(MemoryBroker):
    """To read one record takes longer than a consumer may be idle; to look in vain does not."""

    now = 0.0

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        found = super().read(positions, min(limit, 1), timeout)
        self.now += 10.0 if found else 5.0 / 8
        return found


def test_a_slow_machine_reads_the_backlog_to_its_end_whatever_the_idle_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with Slow("slow", partitions=3) as broker:
        publish(broker, line(1, 30))
        monkeypatch.setattr("cardinal.consumer.time", SimpleNamespace(monotonic=lambda: broker.now))
        with consumer(broker, idle_timeout=5.0) as reading:
            assert steps(list(reading)) == added(1, 30)


# --- an event loop -----------------------------------------------------------------------------------------


def test_an_event_loop_is_not_held_up_and_a_cancelled_call_loses_nothing(broker: MemoryBroker) -> None:
    ticks, found = 0, list[str]()

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    async def read() -> None:
        ticking = asyncio.create_task(tick())
        async with consumer(broker) as reading:
            updates = aiter(reading)
            while len(found) < 3:
                found.extend(steps([await asyncio.wait_for(anext(updates), DEADLINE)]))
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(updates), 0.05)
            publish(broker, line(4, 5))
            while len(found) < 5:
                found.extend(steps([await asyncio.wait_for(anext(updates), DEADLINE)]))
        ticking.cancel()
        assert [update async for update in reading] == []

    publish(broker, line(1, 3))
    asyncio.run(read())
    assert found == added(1, 5)
    assert ticks > 5


def test_asynchronous_iteration_ends_where_nothing_comes_for_too_long(broker: MemoryBroker) -> None:
    async def read() -> None:
        with consumer(broker, idle_timeout=0.2) as reading:
            assert steps([update async for update in reading]) == ["+1a", "+2a"]
            assert reading.ready

    publish(broker, line(1, 2))
    asyncio.run(read())


# --- readiness ---------------------------------------------------------------------------------------------


def test_it_is_ready_when_everything_that_was_there_is_delivered_not_merely_read(broker: MemoryBroker) -> None:
    publish(broker, line(1, 5))
    with consumer(broker, idle_timeout=0.3) as reading:
        assert not reading.ready
        for update in reading:
            assert not reading.ready, "nobody has requested the next one"
            if update.added[-1].number == 5:
                break
        assert list(reading) == []
        assert reading.ready


def test_an_update_that_waits_to_be_fetched_is_not_delivered(broker: MemoryBroker) -> None:
    """Nobody iterates when the last messages of 4a come, by `supply`; it is delivered when somebody does again."""
    publish(broker, line(1, 3))
    lacking, *content = messages(block("4a", "3a"))
    send(broker, content)
    with consumer(broker, idle_timeout=0.3) as reading:
        assert steps(list(reading)) == added(1, 3)
        assert reading.ready
        assert reading.explain(f"0x{hash_of('4a').hex()}").state == "open"
        reading.supply([lacking])
        assert not reading.ready
        assert steps(list(reading)) == ["+4a"]
        assert reading.ready


def test_a_consumer_that_has_not_begun_because_lower_blocks_may_come_is_not_ready(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of 5a is there: whether the stream begins above it is in doubt until nothing has come for a while."""
    publish(broker, [*line(1, 4), *line(6, 12)])
    with consumer(broker, idle_timeout=0.3) as reading:
        assert not list(reading)
        assert reading.caught_up
        assert not reading.ready
        monkeypatch.setattr("cardinal.consuming.loop._QUIET_SECONDS", 0.0)
        assert steps(list(reading)) == added(6, 12)
        assert reading.ready


def test_a_consumer_that_has_complete_blocks_above_one_that_is_not_there_is_not_ready(broker: MemoryBroker) -> None:
    """4a lacks a message; 5a to 9a are complete and wait for it. 11a comes later, and overtakes 10a."""
    publish(broker, line(1, 3))
    cursor = consumed(broker, "3a")[-1].cursor
    lacking, *content = messages(block("4a", "3a"))
    send(broker, content)
    publish(broker, line(5, 9))
    with consumer(broker, start=cursor, idle_timeout=0.3) as reading:
        assert steps(list(reading)) == []
        assert reading.caught_up
        assert not reading.ready
        send(broker, [lacking])
        assert steps(list(reading)) == added(4, 9)
        assert reading.ready
        publish(broker, line(11, 11))
        assert steps(list(reading)) == []
        assert reading.ready


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["halt", "follow"])
def test_a_consumer_that_withholds_a_switch_is_not_ready(broker: MemoryBroker, policy: str) -> None:
    """5a says that 4a is final; 3b to 9b are heavier."""
    *below, newest = line(1, 5)
    final = replace(newest, updates={**newest.updates, "a/safe": b"\x05", "a/finalized": b"\x04"})
    publish(broker, [*below, final])
    events: list[object] = []
    with consumer(broker, on_event=events.append, on_finality_violation=policy, idle_timeout=0.5) as reading:
        (*_, update) = reading
        assert update.finality is not None
        assert (update.finality.safe, update.finality.finalized) == (5, 4)
        assert reading.ready
        publish(broker, line(3, 9, "b", "2a"))
        switched = steps(list(reading))
        assert any(isinstance(event, FinalityViolated) for event in events)
        assert reading.caught_up
        assert reading.ready == (policy == "follow") == bool(switched)
        assert reading.head is not None
        assert reading.head.hash == hash_of("9b" if policy == "follow" else "5a")


# --- the collector -----------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[None]:
    """Whatever a test does to the collector, it is on before and after."""
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_the_collector_waits_and_is_as_the_user_has_it_afterwards_also_after_an_error() -> None:
    with collector_waits():
        with collector_waits():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collector_waits():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with collector_waits():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_records_are_assembled_without_the_collector(broker: MemoryBroker) -> None:
    """2,000 messages, a record and more for each, and the collector comes every 700 objects where it does not wait."""
    runs: list[int] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            runs.append(info["generation"])

    publish(broker, line(1, 400))
    with consumer(broker) as reading:
        gc.collect()
        gc.callbacks.append(noted)
        try:
            updates_until(reading, "400a")
        finally:
            gc.callbacks.remove(noted)
        assert gc.isenabled()
    assert len(runs) <= 3
