"""`Producer.reorg`: deep branches through channels, shallow ones as they are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cardinal.errors import DeliveryError, LocalProtocolError, OversizeError, UnreachableError
from cardinal.producer import Producer
from cardinal.producing import deep_reorg
from cardinal.protocols.streams import (
    Batch,
    Payload,
    Ping,
    Record,
    Reorg,
    ReorgComplete,
    decode,
    encode,
    reorg_topic,
)
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef, Routed
from cardinal_devkit.testing.memory import MemoryBroker
from streams import SCHEMA, TOPIC, WIDTH, block, chain, h, number

DEADLINE = 60.0
THRESHOLD = 3


class Stream:
    default_topic = TOPIC
    topics = SCHEMA
    all_topics = tuple(WIDTH)
    finality_paths: tuple[str, str] | None = None
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


def test_a_deep_branch_is_sent_through_a_channel(broker: MemoryBroker, producer: Producer) -> None:
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


def test_on_a_channel_reorg_complete_is_sent_last(broker: MemoryBroker, producer: Producer) -> None:
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


def test_a_restarted_producer_reads_the_depth_from_the_topics(broker: MemoryBroker, producer: Producer) -> None:
    producer.close()
    with Producer(broker.url, Stream(), producer_id="one") as other:
        other.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == [Reorg(DEEP.hash, 1)]


SHALLOW = BlockRef(3, h("3a"))
BESIDE = [block("4c", "3a"), *chain("5c 6c 7c", root="4c")]


def is_of(name: str, message: Routed) -> bool:
    return message.key[1:33] == h(name)


@pytest.mark.parametrize("lost", ["4c", "5c", "6c", "7c"])
def test_a_failed_short_branch_fails_at_once_and_can_be_sent_again(
    broker: MemoryBroker, producer: Producer, lost: str
) -> None:
    """What is above the lost block waits for it: it is neither waited for nor sent twice."""
    broker.fail(partial(is_of, lost))
    with pytest.raises(DeliveryError) as caught:
        producer.reorg(SHALLOW, BESIDE).result(DEADLINE)
    assert caught.value.hash == h(lost)
    with pytest.raises(DeliveryError):
        producer.reorg(SHALLOW, BESIDE).result(DEADLINE)
    broker.fail(None)
    producer.reorg(SHALLOW, BESIDE).result(DEADLINE)
    producer.flush(DEADLINE)
    assert announcements(broker) == [], "its own blocks, one of them above the old head, do not make it deeper"
    sealed = [record.key[1:] for record in broker.records(TOPIC) if SEALED_HEADER in dict(record.headers)]
    assert {payload.hash for payload in BESIDE} <= set(sealed)
    waited = [payload.hash for payload in BESIDE if payload.number >= number(lost)]
    assert [sealed.count(block_hash) for block_hash in waited] == [1] * len(waited)


def test_a_failed_branch_that_fills_the_queue_can_be_sent_again(broker: MemoryBroker) -> None:
    with Producer(broker.url, Stream(), producer_id="one", max_blocks=2) as producer:
        for payload in MAIN:
            producer.add(payload)
        producer.flush(DEADLINE)
        broker.fail(partial(is_of, "5c"))
        with pytest.raises(DeliveryError, match="add it again") as caught:
            producer.reorg(SHALLOW, BESIDE)
        assert caught.value.hash == h("5c")
        broker.fail(None)
        producer.reorg(SHALLOW, BESIDE).result(DEADLINE)
    assert announcements(broker) == []


def ping(broker: MemoryBroker, times: int) -> None:
    """What producers say while the chain stands still, in all partitions."""
    for at in range(times):
        broker.take(Routed(TOPIC, *encode(Ping(at.to_bytes(32, "big"), at, 0))), ())


@pytest.mark.parametrize("pings", [600, 5_000])
def test_the_depth_is_found_below_many_pings(
    broker: MemoryBroker, producer: Producer, pings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind more than are looked at it is not known: then a channel is the way that consumers take in any case."""
    monkeypatch.setattr(deep_reorg, "_MOST", 1_024)
    producer.close()
    ping(broker, pings)
    with Producer(broker.url, Stream(), producer_id="one") as other:
        other.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == [Reorg(DEEP.hash, 1)]


def test_the_depth_counts_from_the_published_head(broker: MemoryBroker, producer: Producer) -> None:
    producer.close()
    with Producer(broker.url, Stream(), producer_id="one") as other:
        other.add(MAIN[0]).result(DEADLINE)
        other.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == [Reorg(DEEP.hash, 1)]


def test_a_stream_of_pings_alone_has_no_depth(broker: MemoryBroker) -> None:
    with Producer(broker.url, Stream(), producer_id="one") as producer:
        ping(broker, 3_000)
        producer.reorg(BlockRef(0, h("0g")), MAIN).result(DEADLINE)
    assert announcements(broker) == []


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
def test_blocks_that_are_no_branch_of_their_ancestor_are_refused(
    broker: MemoryBroker, producer: Producer, branch: list[Payload]
) -> None:
    before = len(broker.records())
    with pytest.raises(LocalProtocolError):
        producer.reorg(DEEP, branch)
    assert len(broker.records()) == before


def test_no_message_of_an_oversize_branch_is_sent(broker: MemoryBroker, producer: Producer) -> None:
    before = len([record for record in broker.records() if record.key])
    big = Payload(7, h("7b"), h("6b"), 7, {"b/7b/t/0": bytes(10_001)})
    with pytest.raises(OversizeError):
        producer.reorg(DEEP, [*BRANCH[:-1], big])
    with pytest.raises(OversizeError):
        producer.reorg(BlockRef(6, h("6a")), [Payload(7, h("7b"), h("6a"), 7, {"b/7b/t/0": bytes(10_001)})])
    assert len([record for record in broker.records() if record.key]) == before


def test_without_channels_a_deep_branch_is_sent_as_any_other(broker: MemoryBroker, producer: Producer) -> None:
    """For consumers of the Go implementation, which a channel stops."""
    assert producer.stats.blocks == len(MAIN)
    with Producer(broker.url, Stream(), producer_id="two", reorg_channels=False) as plain:
        plain.reorg(DEEP, BRANCH).result(DEADLINE)
    assert announcements(broker) == []
    assert {r.key[1:] for r in broker.records(TOPIC) if r.key[:1] == b"\0"} >= {payload.hash for payload in BRANCH}


class Topics:
    """A sink that does not answer the first queries."""

    def __init__(self, head: int, failures: int) -> None:
        key, value = encode(Batch(h("1a"), head, 1, h("0a")))
        self.record = Record(TOPIC, 0, 0, key, value, 0)
        self.failures = failures

    def recent(self, _limit: int) -> list[Record]:
        if self.failures:
            self.failures -= 1
            raise UnreachableError("the broker starts again", address="broker")
        return [self.record]


def test_without_an_answer_the_depth_is_estimated_and_the_next_branch_queries_again() -> None:
    topics: Any = Topics(head=2_000, failures=2)
    branches, ancestor = deep_reorg.BranchDepth(topics, 128), BlockRef(990, h("ancestor"))
    with pytest.raises(UnreachableError):
        branches.is_deep(ancestor)
    branches.added(1_000)
    assert not branches.is_deep(ancestor)
    assert branches.is_deep(ancestor)
