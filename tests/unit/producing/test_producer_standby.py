"""Standby producers around one broker in memory: who sends, who leaves it to others, and what nobody may skip."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cardinal.consuming import watermarks
from cardinal.errors import DeliveryError, TransportError
from cardinal.producer import Producer, ping_id
from cardinal.producing.standby.committed_horizon import Horizon
from cardinal.protocols.streams import Ping, encode
from cardinal.protocols.streams.payload import SubBatch
from cardinal.protocols.streams.publishing.standby import ProducerCount
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Partition, Routed
from cardinal_devkit.testing.memory import MemoryBroker, MemorySource
from streams import SCHEMA, TOPIC, WIDTH, block, chain, h, messages
from waiting import until

DEADLINE = 60.0
LONG = 60.0
"""A step that does not end in these tests: what happens before it is over was not waited for."""


class Stream:
    default_topic = TOPIC
    topics = SCHEMA
    all_topics = tuple(WIDTH)
    finality_paths: tuple[str, str] | None = None


CHAIN = chain("1a 2a 3a 4a 5a")


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def standby(broker: MemoryBroker, name: str, step: float = LONG, **settings: float) -> Producer:
    return Producer(broker.url, Stream(), producer_id=name, redundancy="standby", standby_step=step, **settings)  # type: ignore[arg-type] # tests name them


def knows(producer: Producer, *names: str) -> None:
    until(lambda: count(producer).live == names)


def count(producer: Producer) -> ProducerCount:
    found = producer.producer_count
    assert found is not None
    return found


def sealers(broker: MemoryBroker) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for record in broker.records(TOPIC):
        headers = dict(record.headers)
        if SEALED_HEADER in headers:
            found.setdefault(record.key[1:], []).append(headers[PRODUCER_HEADER].decode())
    return found


def test_only_the_lowest_producer_sends(broker: MemoryBroker) -> None:
    with standby(broker, "b") as second, standby(broker, "a") as first:
        knows(second, "a", "b")
        waiting = [second.add(payload) for payload in CHAIN]
        assert not any(future.done() for future in waiting)
        for payload in CHAIN:
            first.add(payload)
        for future in waiting:
            future.result(DEADLINE)
        assert second.stats[:5] == (0, 0, 0, 0, 5)
        first.flush(DEADLINE)
        assert first.stats.blocks == 5
    assert sealers(broker) == {payload.hash: ["a"] for payload in CHAIN}


def test_a_standby_reads_added_partitions(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most blocks are in the new ones: not heard, each would be sent a second time."""
    monkeypatch.setattr(watermarks, "LOOK_SECONDS", 0.05)
    with standby(broker, "b") as second, standby(broker, "a") as first:
        knows(second, "a", "b")
        broker.widen(TOPIC, 64)
        line = chain(" ".join(f"{number}a" for number in range(1, 31)))
        for payload in line:
            first.add(payload).result(DEADLINE)
        for future in [second.add(payload) for payload in line]:
            future.result(DEADLINE)
        assert (second.stats.blocks, second.stats.skipped) == (0, 30)


def test_a_standby_sends_what_the_lowest_omits_after_its_step(broker: MemoryBroker) -> None:
    with standby(broker, "a") as first, standby(broker, "b", step=0.3) as second:
        knows(second, "a", "b")
        for payload in (CHAIN[0], CHAIN[3]):
            first.add(payload).result(DEADLINE)
        began = time.monotonic()
        for future in [second.add(payload) for payload in CHAIN]:
            future.result(DEADLINE)
        assert time.monotonic() - began > 0.25
        assert (second.stats.blocks, second.stats.skipped) == (3, 2)
    assert set(sealers(broker)) == {payload.hash for payload in CHAIN}
    assert sealers(broker)[h("3a")] == ["b"], "a hole below a sealed block is not skipped"


def test_the_next_producer_sends_at_once_when_the_lowest_dies(broker: MemoryBroker) -> None:
    with standby(broker, "b", ping_seconds=0.1) as second:
        with standby(broker, "a", ping_seconds=0.1):
            knows(second, "a", "b")
            waiting = second.add(CHAIN[0])
            assert not waiting.done()
        knows(second, "b")
        waiting.result(DEADLINE)
        second.add(CHAIN[1]).result(DEADLINE)


def test_a_sub_batch_sent_while_its_block_waited_counts(broker: MemoryBroker) -> None:
    """Its content was acknowledged before the block was begun: the turn comes, and nobody sends it once more."""
    first, *others = CHAIN
    announced = replace(first, sub_batches={h("state"): None})
    with standby(broker, "b", ping_seconds=0.1) as second:
        with standby(broker, "a", ping_seconds=0.1):
            knows(second, "a", "b")
            futures = [second.add(payload) for payload in (announced, *others)]
            second.send_sub_batch(first.hash, h("state"), SubBatch("tx/state", {"tx/state/1": b"x"})).result(DEADLINE)
            assert sealers(broker) == {}
        for future in futures:
            future.result(DEADLINE)
    assert sealers(broker) == {payload.hash: ["b"] for payload in CHAIN}


def test_blocks_sealed_before_a_start_are_not_sent_again(broker: MemoryBroker) -> None:
    with standby(broker, "b") as second:
        for payload in CHAIN:
            second.add(payload)
        second.flush(DEADLINE)
        with standby(broker, "a") as first:
            for payload in CHAIN:
                first.add(payload).result(DEADLINE)
            assert first.stats.skipped == 5


def test_a_batch_without_a_seal_does_not_count(broker: MemoryBroker) -> None:
    other = broker.sink(Stream(), producer_id="other")
    with standby(broker, "b") as producer:
        *content, batch = messages(CHAIN[0])
        other.send([*content, batch], None).result(DEADLINE)
        until(lambda: count(producer).first.get("other") == 1)
        producer.add(CHAIN[0]).result(DEADLINE)
        assert (producer.stats.blocks, producer.stats.skipped) == (1, 0)


def test_a_failed_block_is_sent_again_at_once_with_its_children(broker: MemoryBroker) -> None:
    with standby(broker, "a") as producer:
        broker.fail(lambda message: message.key[1:33] == h("2a") and message.topic == "tx")
        futures = [producer.add(payload) for payload in CHAIN]
        with pytest.raises(DeliveryError):
            futures[1].result(DEADLINE)
        broker.fail(None)
        producer.add(CHAIN[1]).result(DEADLINE)
        futures[4].result(DEADLINE)


def test_waiting_blocks_count_for_the_queue_and_fail_on_close(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.producer._CLOSE_SECONDS", 0.05)
    with standby(broker, "a"), standby(broker, "b", max_blocks=2) as second:
        knows(second, "a", "b")
        futures = [second.add(payload) for payload in CHAIN[:2]]
        third = threading.Thread(target=second.add, args=(CHAIN[2],), daemon=True)
        third.start()
        third.join(0.1)
        assert third.is_alive()
        broker.sink(Stream(), producer_id="a").send((), messages(CHAIN[0])[-1]).result(DEADLINE)
        third.join(DEADLINE)
        assert not third.is_alive()
        second.close()
        with pytest.raises(DeliveryError, match="closed"):
            futures[1].result(DEADLINE)


def test_producers_of_other_implementations_count_without_a_rank(broker: MemoryBroker) -> None:
    with standby(broker, "b") as producer:
        broker.take(Routed(TOPIC, *encode(Ping(ping_id("0"), 1, 0))), ())
        knows(producer, "b", f"0x{ping_id('0').hex()}")
        assert count(producer).rank == 0


@pytest.mark.parametrize("why", [TransportError("the line is down"), RuntimeError("a fault of ours")])
def test_a_standby_that_cannot_read_sends_everything(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    told: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_value))

    def broken(*_: object) -> list[object]:
        raise why

    with standby(broker, "b") as second, standby(broker, "a"):
        knows(second, "a", "b")
        waiting = second.add(CHAIN[0])
        assert not waiting.done()
        monkeypatch.setattr(MemorySource, "poll", broken)
        waiting.result(DEADLINE)
        second.add(CHAIN[1]).result(DEADLINE)
    assert set(told) == ({why} if isinstance(why, RuntimeError) else set()), "a fault of ours is not kept quiet"


def test_only_the_lowest_sends_while_reading_is_delayed(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    held.set()
    asked = threading.Event()

    def written() -> dict[Partition, int] | None:
        asked.set()
        return None if held.is_set() else {}

    with standby(broker, "a", step=0.05) as first, standby(broker, "b", step=0.05) as second:
        for producer in (first, second):
            knows(producer, "a", "b")
            monkeypatch.setattr(producer._watch, "_horizon", Horizon(written, dict))
        waiting = [second.add(payload) for payload in CHAIN]
        assert asked.wait(DEADLINE)
        first.add(CHAIN[0]).result(DEADLINE)
        waiting[0].result(DEADLINE)
        assert not any(future.done() for future in waiting[1:])
        held.clear()
        for future in waiting:
            future.result(DEADLINE)
        assert (second.stats.blocks, second.stats.skipped) == (4, 1)


def test_first_arrivals_are_counted_without_standby_too(broker: MemoryBroker) -> None:
    settings = {"redundancy": "all", "watch": True}
    with (
        Producer(broker.url, Stream(), producer_id="a", **settings) as first,  # type: ignore[arg-type] # named above
        Producer(broker.url, Stream(), producer_id="b", **settings) as second,  # type: ignore[arg-type] # the same
    ):
        for payload in CHAIN:
            second.add(payload).result(DEADLINE)
            first.add(payload).result(DEADLINE)
        until(lambda: sum(count(first).first.values()) == len(CHAIN))  # it has read what both have sent
        assert (count(first).live, count(first).rank, count(first).first) == (("a", "b"), 0, {"b": 5})
    assert sealers(broker) == {payload.hash: ["b", "a"] for payload in CHAIN}
    with Producer(broker.url, Stream(), producer_id="c") as silent:
        assert silent.producer_count is None


def test_a_short_reorg_waits_its_turn_too(broker: MemoryBroker) -> None:
    with standby(broker, "a") as first, standby(broker, "b") as second:
        knows(second, "a", "b")
        for payload in CHAIN:
            first.add(payload)
        branch = [block("5b", "4a"), block("6b", "5b")]
        waiting = second.reorg(CHAIN[3].ref, branch)
        assert not waiting.done()
        first.reorg(CHAIN[3].ref, branch)
        waiting.result(DEADLINE)
        assert second.stats.blocks == 0
