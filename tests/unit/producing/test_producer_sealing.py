"""What a producer hands over, and when, where handing over itself goes wrong and where sub batches come later."""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from cardinal._concurrency import Done
from cardinal.errors import DeliveryError, SplitError, TransportError
from cardinal.producer import Producer
from cardinal.protocols.streams import Batch, Payload, Routed, SubBatch, Update, decode
from cardinal.transports.written import Written
from cardinal_devkit.testing.memory import MemoryBroker, MemorySink
from streams import SCHEMA, TOPIC, WIDTH, block, h

DEADLINE = 60.0


class Stream:
    default_topic = TOPIC
    topics = SCHEMA
    all_topics = tuple(WIDTH)
    finality_paths: tuple[str, str] | None = None


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    ticks = iter(range(10**9))
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: next(ticks), max_message_bytes=10_000) as broker:
        yield broker


@pytest.fixture
def producer(broker: MemoryBroker) -> Iterator[Producer]:
    with Producer(broker.url, Stream(), producer_id="one") as producer:
        producer.add(block("1a", "0g")).result(DEADLINE)
        yield producer


def batches(broker: MemoryBroker) -> list[Batch]:
    records = sorted(broker.records(TOPIC), key=lambda record: record.timestamp_ms)
    return [message for record in records if isinstance(message := decode(record.key, record.value), Batch)]


def freed_at_once(broker: MemoryBroker, producer: Producer) -> tuple[Future[None], Future[None]]:
    """Blocks 2a and 3a, whose Batches get into the line together."""
    broker.hold()
    parent, child = producer.add(block("2a", "1a")), producer.add(block("3a", "2a"))
    broker.release_some(lambda message: message.key[1:33] == h("3a"))
    return parent, child


def test_a_child_is_not_sent_after_its_parents_lost_batch(broker: MemoryBroker, producer: Producer) -> None:
    broker.fail(lambda message: message.key == b"\0" + h("2a"))
    parent, child = freed_at_once(broker, producer)
    broker.release()
    with pytest.raises(DeliveryError):
        parent.result(DEADLINE)
    assert [one.hash for one in batches(broker)] == [h("1a")]
    broker.fail(None)
    producer.add(block("2a", "1a")).result(DEADLINE)
    child.result(DEADLINE)
    assert [one.hash for one in batches(broker)] == [h("1a"), h("2a"), h("3a")]


def test_a_child_is_not_sent_where_its_parents_batch_is_refused(
    broker: MemoryBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = MemorySink.post

    def refuse(
        sink: MemorySink, messages: tuple[Routed, ...], seal: Routed | None, done: Done, written: Written | None = None
    ) -> None:
        if seal is not None and seal.key[1:] == h("2a"):
            raise TransportError("the line is down")
        post(sink, messages, seal, done, written)

    parent, child = freed_at_once(broker, producer)
    monkeypatch.setattr(MemorySink, "post", refuse)
    broker.release()
    with pytest.raises(TransportError):
        parent.result(DEADLINE)
    assert [one.hash for one in batches(broker)] == [h("1a")]
    monkeypatch.undo()
    producer.add(block("2a", "1a")).result(DEADLINE)
    child.result(DEADLINE)
    assert [one.hash for one in batches(broker)] == [h("1a"), h("2a"), h("3a")]


def test_a_failed_first_block_holds_only_its_descendants(broker: MemoryBroker) -> None:
    with Producer(broker.url, Stream(), producer_id="one") as producer:
        broker.hold()
        first, other = producer.add(block("1a", "0g")), producer.add(block("1b", "0h"))
        broker.fail(lambda message: message.key == b"\0" + h("1a"))
        broker.release()
        with pytest.raises(DeliveryError):
            first.result(DEADLINE)
        other.result(DEADLINE)


CONTENT = SubBatch("state/", {"state/x": b"1"}, frozenset({"state/y"}))


def announced(name: str, parent: str) -> Payload:
    return Payload(2, h(name), h(parent), 2, {"tip": b"2"}, sub_batches={h("s"): None})


def test_a_late_sub_batch_is_in_the_batch_under_its_path(broker: MemoryBroker, producer: Producer) -> None:
    done = producer.add(announced("2a", "1a"))
    producer.send_sub_batch(h("2a"), h("s"), CONTENT).result(DEADLINE)
    done.result(DEADLINE)
    assert batches(broker)[-1].updates == {"tip": Update(b"2"), "state/": Update(sub_batch=h("s"))}
    assert len(broker.records("state")) == 2 + 3  # heartbeats; header, deletes, one update


def test_concurrent_sub_batches_are_all_in_the_batch(
    broker: MemoryBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads are brought together where both have made a Batch with their own path, if they can be there."""
    check, both = MemorySink.check, threading.Barrier(2)

    def meet(sink: MemorySink, messages: Sequence[Routed]) -> int:
        size = check(sink, messages)
        if [message.key for message in messages] == [b"\0" + h("2a")]:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)
        return size

    ids = {b"\1" * 32: "evm/one", b"\2" * 32: "evm/two"}
    future = producer.add(replace(block("2a", "1a"), sub_batches=dict.fromkeys(ids)))
    monkeypatch.setattr(MemorySink, "check", meet)
    with ThreadPoolExecutor() as pool:
        sent = [pool.submit(producer.send_sub_batch, h("2a"), one, SubBatch(path)) for one, path in ids.items()]
        for one in sent:
            one.result(DEADLINE).result(DEADLINE)
    future.result(DEADLINE)
    named = {entry.sub_batch: path for path, entry in batches(broker)[-1].updates.items()}
    assert {one: named[one] for one in ids} == ids


def test_a_block_waits_for_a_lost_sub_batch_to_be_sent_again(broker: MemoryBroker, producer: Producer) -> None:
    done = producer.add(announced("2a", "1a"))
    broker.fail(lambda message: message.topic == "state")
    with pytest.raises(DeliveryError):
        producer.send_sub_batch(h("2a"), h("s"), CONTENT).result(DEADLINE)
    assert not done.done()
    broker.fail(None)
    producer.send_sub_batch(h("2a"), h("s"), CONTENT).result(DEADLINE)
    done.result(DEADLINE)


def test_a_sub_batch_of_an_earlier_attempt_does_not_count_for_the_next(
    broker: MemoryBroker, producer: Producer
) -> None:
    """Sent twice; the second is acknowledged and its Batch lost; the block goes again; the first is acknowledged."""
    done = producer.add(announced("2a", "1a"))
    broker.hold()
    late = producer.send_sub_batch(h("2a"), h("s"), CONTENT)
    broker.fail(lambda message: message.key[:1] == b"\0")
    turns = itertools.cycle((False, True))  # asked of both, twice
    producer.send_sub_batch(h("2a"), h("s"), CONTENT)
    broker.release_some(lambda message: message.key[:1] == b"\1" and next(turns))
    with pytest.raises(DeliveryError):
        done.result(DEADLINE)
    broker.fail(None)
    again = producer.add(announced("2a", "1a"))
    assert not late.done()
    broker.release()
    late.result(DEADLINE)
    assert not again.done()
    producer.send_sub_batch(h("2a"), h("s"), CONTENT).result(DEADLINE)
    again.result(DEADLINE)
    assert "state/" in batches(broker)[-1].updates


@pytest.mark.parametrize(("batch_id", "path"), [("t", "state/"), ("s", "tip")])
def test_a_sub_batch_that_does_not_belong_to_its_block_is_refused(
    broker: MemoryBroker, producer: Producer, batch_id: str, path: str
) -> None:
    done = producer.add(announced("2a", "1a"))
    before = len(broker.records())
    with pytest.raises(SplitError):
        producer.send_sub_batch(h("2a"), h(batch_id), SubBatch(path, {"state/x": b"1"}))
    assert len(broker.records()) == before
    producer.send_sub_batch(h("2a"), h("s"), CONTENT).result(DEADLINE)
    done.result(DEADLINE)
