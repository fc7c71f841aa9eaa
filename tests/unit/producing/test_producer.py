from __future__ import annotations

import hashlib
import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

import blocks
from cardinal.consumer import Consumer
from cardinal.errors import (
    ConfigurationError,
    DeliveryError,
    LocalProtocolError,
    OversizeError,
    SplitError,
    TransportError,
    UnreachableError,
)
from cardinal.producer import Producer, ping_id
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import BATCH, Batch, Ping
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Record, Routed

DEADLINE = 60.0


@dataclass(frozen=True)
class Blocks:
    """A small stream: values under `a/` and `b/` have topics of their own."""

    default_topic: str = "block"
    topics: dict[str, str] = field(default_factory=lambda: {"a/": "a", "b/": "b"})
    all_topics: tuple[str, ...] = ("block", "a", "b")
    finality_paths: tuple[str, str] | None = None


def _hash(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _payload(number: int, **more: object) -> Payload:
    updates = {"a/1": b"1", "a/2": b"2", "b/1": b"3", "inside": b"4"}
    return Payload(number, _hash(number), _hash(number - 1), number, updates, **more)  # type: ignore[arg-type] # tests name them


def _is_batch(message: Record | Routed, number: int | None = None) -> bool:
    return message.key[:1] == bytes((BATCH,)) and (number is None or message.key[1:] == _hash(number))


def _batches(broker: MemoryBroker) -> list[int]:
    """Numbers of the Batches on the topic, in the order of their arrival."""
    records = sorted(broker.records("block"), key=lambda record: record.timestamp_ms)
    return [message.number for record in records if isinstance(message := decode(record.key, record.value), Batch)]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    ticks = iter(range(10**9))
    with MemoryBroker(uuid.uuid4().hex, partitions=3, clock=lambda: next(ticks), max_message_bytes=10_000) as broker:
        yield broker


@pytest.fixture
def producer(broker: MemoryBroker) -> Iterator[Producer]:
    with Producer(broker.url, Blocks(), producer_id="one") as producer:
        yield producer


def test_a_future_ends_when_its_block_is_on_the_topics(broker: MemoryBroker, producer: Producer) -> None:
    producer.add(_payload(1)).result(DEADLINE)
    keys = {record.key[33:] for record in broker.records("a") if record.key}
    assert keys == {b"a/1", b"a/2"}
    assert _batches(broker) == [1]
    assert producer.stats[:2] == (1, 4)
    assert producer.stats.in_flight == 0
    assert repr(producer) == f"<Producer 'one' of block at {broker.url}, 0 blocks in flight>"


def test_a_batch_is_sent_after_its_blocks_messages_are_acknowledged(broker: MemoryBroker, producer: Producer) -> None:
    broker.hold()
    future = producer.add(_payload(1))
    assert len([record for record in broker.records() if record.key[:1] == b"\x03"]) == 3
    assert _batches(broker) == []
    broker.release()
    future.result(DEADLINE)
    assert _batches(broker) == [1]


def test_a_batch_is_acknowledged_before_the_next_is_sent(broker: MemoryBroker, producer: Producer) -> None:
    broker.hold()
    futures = [producer.add(_payload(number)) for number in (1, 2, 3)]
    broker.release_some(lambda message: not _is_batch(message))
    assert _batches(broker) == [1]
    broker.release()
    for future in futures:
        future.result(DEADLINE)
    assert _batches(broker) == [1, 2, 3]


def test_batches_are_sent_parents_first_in_any_order_of_acknowledgements(
    broker: MemoryBroker, producer: Producer
) -> None:
    producer.add(_payload(1)).result(DEADLINE)
    broker.hold()
    futures = [producer.add(_payload(number)) for number in (2, 3, 4)]
    for number in (4, 3):
        broker.release_some(lambda message, wanted=number: message.key[1:33] == _hash(wanted))
        assert _batches(broker) == [1]
    broker.release()
    for future in futures:
        future.result(DEADLINE)
    assert _batches(broker) == [1, 2, 3, 4]


def test_a_failed_block_fails_its_future_and_holds_its_descendants(broker: MemoryBroker, producer: Producer) -> None:
    producer.add(_payload(1)).result(DEADLINE)
    broker.fail(lambda message: message.key[1:33] == _hash(2) and message.topic == "b")
    failed, child = producer.add(_payload(2)), producer.add(_payload(3))
    with pytest.raises(DeliveryError) as caught:
        failed.result(DEADLINE)
    assert caught.value.hash == _hash(2)
    assert not child.done()
    with pytest.raises(DeliveryError):
        producer.flush(DEADLINE)
    broker.fail(None)
    producer.add(_payload(2)).result(DEADLINE)
    child.result(DEADLINE)
    assert _batches(broker) == [1, 2, 3]
    producer.flush(DEADLINE)


def test_a_lost_batch_fails_its_block_which_can_be_added_again(broker: MemoryBroker, producer: Producer) -> None:
    broker.fail(_is_batch)
    with pytest.raises(DeliveryError):
        producer.add(_payload(1)).result(DEADLINE)
    broker.fail(None)
    producer.add(_payload(1)).result(DEADLINE)
    assert _batches(broker) == [1]


def test_an_announced_sub_batch_holds_its_blocks_batch_and_descendants(
    broker: MemoryBroker, producer: Producer
) -> None:
    batch_id = bytes([7]) * 32
    block = producer.add(_payload(1, sub_batches={batch_id: None}))
    child = producer.add(_payload(2))
    assert _batches(broker) == []
    producer.send_sub_batch(_hash(1), batch_id, SubBatch("a/state", {"a/9": b"x"})).result(DEADLINE)
    block.result(DEADLINE)
    child.result(DEADLINE)
    assert _batches(broker) == [1, 2]
    with pytest.raises(LocalProtocolError, match="not in flight"):
        producer.send_sub_batch(_hash(1), batch_id, SubBatch("a/state"))


def test_blocks_in_flight_are_bounded(broker: MemoryBroker) -> None:
    with Producer(broker.url, Blocks(), producer_id="one", max_blocks=2) as producer:
        broker.hold()
        first = [producer.add(_payload(number)) for number in (1, 2)]
        waiting = threading.Thread(target=producer.add, args=(_payload(3),))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert producer.stats.in_flight == 2
        broker.release()
        for future in first:
            future.result(DEADLINE)
        waiting.join(DEADLINE)
        assert not waiting.is_alive()
        producer.flush(DEADLINE)
    assert _batches(broker) == [1, 2, 3]


def test_a_callback_may_add_blocks_while_the_queue_is_full(broker: MemoryBroker) -> None:
    added: list[Future[None]] = []
    with Producer(broker.url, Blocks(), producer_id="one", max_blocks=2) as producer:
        broker.hold()
        first, _ = [producer.add(_payload(number)) for number in (1, 2)]
        first.add_done_callback(lambda _: added.extend(producer.add(_payload(number)) for number in (3, 4, 5)))
        broker.release()
        producer.flush(DEADLINE)
        for future in added:
            future.result(DEADLINE)
    assert _batches(broker) == [1, 2, 3, 4, 5]


def test_a_queue_filled_by_a_failure_is_an_error(broker: MemoryBroker) -> None:
    with Producer(broker.url, Blocks(), producer_id="one", max_blocks=2) as producer:
        broker.fail(lambda message: message.key[1:33] == _hash(1))
        producer.add(_payload(1))
        producer.add(_payload(2))
        with pytest.raises(DeliveryError, match="add it again") as caught:
            producer.add(_payload(3))
        assert caught.value.hash == _hash(1)
        broker.fail(None)
        producer.add(_payload(1)).result(DEADLINE)
        producer.add(_payload(3)).result(DEADLINE)


def test_no_message_of_an_oversize_block_is_sent(broker: MemoryBroker, producer: Producer) -> None:
    before = broker.records()
    for path in ("a/big", "inside-big"):
        with pytest.raises(OversizeError):
            producer.add(Payload(1, _hash(1), _hash(0), 1, {"a/1": b"1", path: bytes(10_001)}))
    with pytest.raises(SplitError):
        producer.add(Payload(1, _hash(1), _hash(0), 1, {"x": b"1"}, frozenset({"x"})))
    assert [record for record in broker.records() if record.key[:1] != b"\xff"] == [
        record for record in before if record.key[:1] != b"\xff"
    ]
    producer.add(_payload(1)).result(DEADLINE)


def test_a_block_in_flight_is_not_added_twice(broker: MemoryBroker, producer: Producer) -> None:
    broker.hold()
    future = producer.add(_payload(1))
    with pytest.raises(LocalProtocolError, match="already"):
        producer.add(_payload(1))
    broker.release()
    future.result(DEADLINE)
    producer.add(_payload(1)).result(DEADLINE)  # and once more, later, it may go


def test_a_producer_pings_with_the_digest_of_its_id(broker: MemoryBroker) -> None:
    with Producer(broker.url, Blocks(), producer_id="höhe-1", ping_seconds=0.01):
        deadline = threading.Event()
        pings: list[Ping] = []
        for _ in range(200):
            pings = [m for r in broker.records("block") if isinstance(m := decode(r.key, r.value), Ping)]
            if len(pings) >= 3 or deadline.wait(0.05):
                break
    assert len(pings) >= 3
    assert {ping.producer_id for ping in pings} == {hashlib.sha256("höhe-1".encode()).digest()} == {ping_id("höhe-1")}


def test_closing_fails_unsealed_blocks_and_refuses_new_ones(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cardinal.producer._CLOSE_SECONDS", 0.05)
    producer = Producer(broker.url, Blocks(), producer_id="one")
    broker.hold()
    future = producer.add(_payload(1))
    producer.close()
    producer.close()
    with pytest.raises(DeliveryError, match="closed"):
        future.result(DEADLINE)
    with pytest.raises(TransportError, match="closed"):
        producer.add(_payload(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"redundancy": "some"},
        {"producer_id": ""},
        {"max_blocks": 0},
        {"max_bytes": 0},
        {"ping_seconds": 0.0},
        {"redundancy": "standby", "standby_step": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(broker: MemoryBroker, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Producer(broker.url, Blocks(), **{"producer_id": "one", **wrong})  # type: ignore[arg-type] # wrong on purpose


def test_an_unknown_memory_broker_is_named() -> None:
    with pytest.raises(UnreachableError, match="nowhere"):
        Producer("memory://nowhere", Blocks(), producer_id="one")


def test_bytes_in_flight_are_bounded_and_a_larger_block_is_sent_alone(broker: MemoryBroker) -> None:
    with Producer(broker.url, Blocks(), producer_id="one", max_bytes=1000) as producer:
        broker.hold()
        first = producer.add(Payload(1, _hash(1), _hash(0), 1, {"a/1": bytes(5000)}))
        waiting = threading.Thread(target=producer.add, args=(_payload(2),))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        broker.release()
        first.result(DEADLINE)
        waiting.join(DEADLINE)
        assert not waiting.is_alive()
        producer.flush(DEADLINE)
    assert _batches(broker) == [1, 2]


def test_a_sub_batch_at_a_path_that_no_expression_matches_is_delivered(broker: MemoryBroker) -> None:
    """It travels on the default topic; a consumer that is given no expressions follows it."""
    sub_batch = {bytes([7]) * 32: SubBatch("z/1", {"z/1/x": b"y"})}
    app, (first, *_) = blocks.Blocks(), blocks.line(1, 1)
    with Producer(broker.url, app, producer_id="one") as producer:
        producer.add(replace(first, sub_batches=sub_batch)).result(DEADLINE)
    with Consumer(broker.url, app, idle_timeout=DEADLINE) as consumer:
        added = next(iter(consumer)).added[0]
    assert isinstance(added, Payload)
    assert added.updates["z/1/x"] == b"y"
