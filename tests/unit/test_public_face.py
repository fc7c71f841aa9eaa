"""The names, types and texts that a user meets first."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import typing
import uuid
from collections.abc import Iterator
from dataclasses import fields

import pytest

import cardinal
from blocks import DEADLINE, Blocks, block, hash_of, line, messages, publish, steps
from cardinal import errors
from cardinal.consumer import Consumer, ConsumerOptions
from cardinal.consuming.options import ConsumerKeywords
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.events import Event
from cardinal_devkit.testing.memory import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


# --- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["cardinal", "cardinal_ethereum", "cardinal_devkit"])
def test_completion_offers_the_public_names_and_nothing_else(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_every_error_and_every_report_is_in_the_package() -> None:
    raised = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    told = {kind.__name__ for kind in typing.get_args(Event)} | {"HealingFailed"}
    assert raised | told <= set(cardinal.__all__)
    assert cardinal.CursorExpiredError is errors.CursorExpiredError


# --- options -------------------------------------------------------------------------------------------------


def test_options_are_a_value_and_every_field_of_it_a_keyword(broker: MemoryBroker) -> None:
    assert list(ConsumerKeywords.__annotations__) == [field.name for field in fields(ConsumerOptions)]
    publish(broker, line(1, 3))
    options = ConsumerOptions(tracked="b/", until="end", idle_timeout=0.0)
    with Consumer(broker.url, Blocks(), options=options, idle_timeout=DEADLINE) as consumer:
        (update,) = consumer
    assert {path for one in update.added for path in one.updates} == {"b/1"}  # type: ignore[union-attr] # they are complete
    with pytest.raises(TypeError, match=r"Consumer\(\) has no argument 'traked': did you mean tracked\?"):
        Consumer(broker.url, Blocks(), traked="b/")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Consumer\(\) has no argument 'ap': did you mean app\?"):
        Consumer(broker.url, ap=Blocks())  # type: ignore[call-arg]


def test_ranges_say_where_the_content_lies_and_are_of_topics_alone(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    with Consumer(broker.url, Blocks(), until="end", content="ranges", max_update=1) as consumer:
        updates = list(consumer)
        assert steps(updates) == ["+1a", "+2a", "+3a"]
        for update in updates:
            (one,) = update.added
            assert isinstance(one, cardinal.HeaderOnly)
            inside = [
                record
                for record in broker.records()
                if one.ranges.get(record[:2], (0, 0))[0] <= record.offset < one.ranges.get(record[:2], (0, 0))[1]
            ]
            assert {record.key[1:33] for record in inside} == {one.hash}
        with pytest.raises(ConfigurationError, match="content of topics alone"):
            consumer.supply([])
    with pytest.raises(ConfigurationError, match="content of topics alone"):
        ConsumerOptions(content="ranges", heal=lambda _: [])


# --- until the end -------------------------------------------------------------------------------------------


def test_reading_until_the_end_waits_for_nothing(broker: MemoryBroker) -> None:
    broker.sink(Blocks(), producer_id="one")
    with Consumer(broker.url, Blocks(), until="end") as consumer:
        assert list(consumer) == []
    publish(broker, line(1, 30))
    with Consumer(broker.url, Blocks(), until="end") as consumer:
        updates = list(consumer)
        assert steps(updates)[-1] == "+30a"
        assert consumer.ready
        publish(broker, line(31, 32))
        assert steps(list(consumer)) == []
    publish(broker, line(31, 32))
    with Consumer(broker.url, Blocks(), until="end", start=updates[-1].cursor) as consumer:
        assert steps(list(consumer)) == ["+31a", "+32a"]


def test_reading_until_the_end_includes_what_waits_for_the_proof_that_a_block_is_lost(broker: MemoryBroker) -> None:
    """2a lacks a message for ever; the chain goes on without it when everything was read."""
    publish(broker, line(1, 1))
    broker.sink(Blocks(), producer_id="one").send(messages(block("2a", "1a"))[1:], None).result(DEADLINE)
    publish(broker, line(3, 60))
    with Consumer(broker.url, Blocks(), start=1, until="end") as consumer:
        assert steps(list(consumer)) == ["+1a", "+?2a", *(f"+{number}a" for number in range(3, 61))]


def test_reading_until_the_end_ends_with_a_warning_where_a_block_is_incomplete(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """4a lacks a message, and nothing proves yet that it will not come."""
    monkeypatch.setattr("cardinal.consumer._END_SECONDS", 0.5)
    publish(broker, line(1, 3))
    broker.sink(Blocks(), producer_id="one").send(messages(block("4a", "3a"))[1:], None).result(DEADLINE)
    publish(broker, line(5, 6))
    with Consumer(broker.url, Blocks(), start=1, until="end") as consumer:
        assert steps(list(consumer)) == ["+1a", "+2a", "+3a"]
        assert not consumer.ready
    lacking = f"block 4 (0x{hash_of('4a').hex()}) lacks 1 message"
    assert f"ends before everything that was there is delivered: {lacking}" in caplog.text


# --- until a block -------------------------------------------------------------------------------------------


def test_reading_until_a_block_ends_with_its_update(broker: MemoryBroker) -> None:
    publish(broker, line(1, 30))
    with Consumer(broker.url, Blocks(), until=20) as consumer:
        updates = list(consumer)
        assert steps(updates) == [f"+{number}a" for number in range(1, 21)]
        assert list(consumer) == [], "it stays at its end"
        assert consumer.head == block("20a", "19a").ref
    with Consumer(broker.url, Blocks(), start=updates[-1].cursor, until=20) as consumer:
        assert list(consumer) == [], "its cursor is there already"
    with Consumer(broker.url, Blocks(), start=updates[-1].cursor, until=21) as consumer:
        (update,) = consumer
        assert steps([update]) == ["+21a"]
        assert update.seq == updates[-1].seq + 1
    with Consumer(broker.url, Blocks(), start=30, until=30) as consumer:
        assert steps(list(consumer)) == ["+30a"]


def test_reading_until_a_block_waits_for_it_and_delivers_the_reorg_that_brings_it(broker: MemoryBroker) -> None:
    async def read() -> list[str]:
        async with Consumer(broker.url, Blocks(), until=4) as consumer:
            updates = []
            async for update in consumer:
                updates.append(update)
                if len(updates) == 1:
                    publish(broker, [*line(3, 5, "b", "2a", -3), *line(6, 6, "b", "5b", 3)])
        return steps(updates)

    publish(broker, line(1, 3))
    assert asyncio.run(read()) == ["+1a", "+2a", "+3a", "-3a", "+3b", "+4b", "+5b", "+6b"]


def test_reading_until_a_block_below_the_stream_ends_after_the_first_update(broker: MemoryBroker) -> None:
    publish(broker, line(5, 9))
    with Consumer(broker.url, Blocks(), until=3) as consumer:
        assert steps(list(consumer)) == [f"+{number}a" for number in range(5, 10)]


# --- the consumer as an object -------------------------------------------------------------------------------


def test_an_asynchronous_block_closes_it(broker: MemoryBroker) -> None:
    async def read() -> list[str]:
        async with Consumer(broker.url, Blocks(), until="end") as consumer:
            found = steps([update async for update in consumer])
        assert "closed" in repr(consumer)
        return found

    publish(broker, line(1, 2))
    assert asyncio.run(read()) == ["+1a", "+2a"]


def test_a_block_is_explained_by_its_hash_as_bytes_or_text(broker: MemoryBroker) -> None:
    publish(broker, line(1, 2))
    with Consumer(broker.url, Blocks(), until="end") as consumer:
        list(consumer)
        by_bytes = consumer.explain(hash_of("2a"))
        assert by_bytes.state != "unknown"
        assert consumer.explain(hash_of("2a").hex()) == consumer.explain(f"0x{hash_of('2a').hex()}") == by_bytes
        for wrong in ("0xab", "2a", "block 2", hash_of("2a")[1:], 2, "0x" + "zz" * 32):
            with pytest.raises(ConfigurationError, match="is no block hash"):
                consumer.explain(wrong)  # type: ignore[arg-type]
