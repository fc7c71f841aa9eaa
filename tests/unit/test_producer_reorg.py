"""`Producer.reorg`: deep branches through channels, shallow ones as they are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cardinal.errors import DeliveryError, LocalProtocolError, OversizeError
from cardinal.producer import Producer
from cardinal.protocols.streams import Batch, Payload, Record, Reorg, ReorgComplete, decode, reorg_topic
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef
from cardinal.testing.memory import MemoryBroker
from streams import SCHEMA, TOPIC, WIDTH, block, chain, h

DEADLINE = 10.0
THRESHOLD = 3


class Stream:
    default_topic = TOPIC
    topics = SCHEMA
    all_topics = tuple(WIDTH)
    reorg_threshold = THRESHOLD


MAIN = chain("1a 2a 3a 4a 5a 6a")
DEEP = BlockRef(1, h("1a"))
BRANCH = [block("2b", "1a"), *chain("3b 4b 5b 6b 7b", root="2b")]


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, max_message_bytes=10_000) as broker:
        yield broker


@pytest.fixture
def producer(broker: MemoryBroker) -> Iterator[Producer]:
    with Producer(broker.url, Stream(), producer_id="one") as producer:
        for payload in MAIN:
            producer.add(payload)
        producer.flush(DEADLINE)
        yield producer


def on_channel(broker: MemoryBroker) -> list[Record]:
    return [record for record in broker.records(reorg_topic(TOPIC, DEEP.hash)) if record.key]


def announcements(broker: MemoryBroker) -> list[Reorg]:
    return [m for r in broker.records(TOPIC) if isinstance(m := decode(r.key, r.value), Reorg)]


def test_a_deep_branch_goes_through_a_channel_that_opens_with_reorg_and_ends_with_reorg_complete(
    broker: MemoryBroker, producer: Producer
) -> None:
    before = producer.stats
    producer.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == [Reorg(DEEP.hash, 1)]
    records = on_channel(broker)
    assert {record.partition for record in records} == {0}
    first, last = (decode(record.key, record.value) for record in (records[0], records[-1]))
    assert (first, last) == (Reorg(DEEP.hash, 1), ReorgComplete(DEEP.hash, 1))
    batches = [r for r in records if isinstance(decode(r.key, r.value), Batch)]
    assert [record.key[1:] for record in batches] == [payload.hash for payload in BRANCH]
    assert all(SEALED_HEADER in dict(record.headers) for record in batches)
    assert not [record for record in broker.records(TOPIC) if record.key == b"\0" + h("3b")]
    assert producer.stats.blocks == before.blocks + len(BRANCH)


def test_a_batch_on_the_channel_waits_for_its_block_and_reorg_complete_for_everything(
    broker: MemoryBroker, producer: Producer
) -> None:
    seen: list[str] = []

    def lose(message: object) -> bool:
        if message.topic.startswith(f"{TOPIC}-re-"):  # type: ignore[attr-defined] # a Routed
            seen.append(type(decode(*message[1:])).__name__)  # type: ignore[index] # the same
        return message.key == b"\3" + h("4b") + b"b/4b/l/0"  # type: ignore[attr-defined] # the same

    broker.fail(lose)
    failed = producer.reorg(DEEP, BRANCH)
    with pytest.raises(DeliveryError):
        failed.result(DEADLINE)
    assert "ReorgComplete" not in seen
    assert seen.count("Batch") == len(BRANCH) - 1
    child = producer.add(block("8b", "7b"))
    assert not child.done()
    broker.fail(None)
    producer.reorg(DEEP, BRANCH).result(DEADLINE)
    child.result(DEADLINE)
    kinds = [type(decode(record.key, record.value)).__name__ for record in on_channel(broker)]
    assert kinds.count("Reorg") == 2, "each attempt opens anew"
    assert kinds[-1] == "ReorgComplete"
    assert kinds.count("ReorgComplete") == 1


def test_a_branch_within_the_threshold_needs_no_channel(broker: MemoryBroker, producer: Producer) -> None:
    ancestor = BlockRef(3, h("3a"))
    producer.reorg(ancestor, [block("4c", "3a"), *chain("5c 6c 7c", root="4c")]).result(DEADLINE)
    assert announcements(broker) == []
    assert not [topic for topic in broker.topics() if "-re-" in topic]
    hashes = {record.key[1:] for record in broker.records(TOPIC) if SEALED_HEADER in dict(record.headers)}
    assert {h("4c"), h("7c")} <= hashes


def test_a_producer_that_starts_anew_knows_the_depth_from_what_is_published(
    broker: MemoryBroker, producer: Producer
) -> None:
    producer.close()
    with Producer(broker.url, Stream(), producer_id="one") as other:
        other.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == [Reorg(DEEP.hash, 1)]


@pytest.mark.parametrize(
    "branch",
    [
        [],
        [block("3b", "2b")],
        [block("2b", "1a"), block("4b", "2b")],
        [block("2b", "1a"), block("3b", "2a")],
        [Payload(2, h("2b"), h("1a"), 2, {"x": b"1"}, sub_batches={h("s"): None})],
    ],
    ids=["empty", "elsewhere", "a hole", "two branches", "announced content"],
)
def test_what_is_no_branch_above_its_ancestor_is_refused(
    broker: MemoryBroker, producer: Producer, branch: list[Payload]
) -> None:
    before = len(broker.records())
    with pytest.raises(LocalProtocolError):
        producer.reorg(DEEP, branch)
    assert len(broker.records()) == before


def test_nothing_of_a_branch_is_sent_that_cannot_be_carried_whole(broker: MemoryBroker, producer: Producer) -> None:
    before = len([record for record in broker.records() if record.key])
    big = Payload(7, h("7b"), h("6b"), 7, {"b/7b/t/0": bytes(10_001)})
    with pytest.raises(OversizeError):
        producer.reorg(DEEP, [*BRANCH[:-1], big])
    with pytest.raises(OversizeError):
        producer.reorg(BlockRef(6, h("6a")), [Payload(7, h("7b"), h("6a"), 7, {"b/7b/t/0": bytes(10_001)})])
    assert len([record for record in broker.records() if record.key]) == before
