"""A consumer without content reads Batches only, while these name the ranges of their content."""

from __future__ import annotations

import pytest
from kafka_streams import DEADLINE, a_block, a_chain, everything_on, named, small_stream

from cardinal import HeaderOnly
from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams import ChainUpdate, Payload, split
from cardinal.protocols.streams.types import BlockRef, Record
from cardinal.protocols.streams.wire.messages import BATCH
from cardinal.protocols.streams.wire.ranges import RANGES_HEADER, ranges_of
from cardinal.transports import open_sink
from cardinal.transports.written import Written
from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TRANSACTIONS = "?transactional=update"


def url_of(broker: EmbeddedKafka) -> str:
    return f"kafka://{broker.bootstrap}"


def publish_forks(url: str, app: Application) -> list[Payload]:
    """A chain with a reorg within the threshold, and one through a channel."""
    with Producer(url, app, producer_id="one") as producer:
        first = a_chain(" ".join(f"{number}a" for number in range(1, 30)))
        side = a_chain("27b 28b 29b 30b", root="26a")
        deep = a_chain(" ".join(f"{number}c" for number in range(9, 33)), root="8a")
        for payload in first:
            producer.add(payload)
        producer.reorg(BlockRef(26, named("26a")), side).result(DEADLINE)
        producer.reorg(BlockRef(8, named("8a")), deep).result(DEADLINE)
        producer.add(a_block("33c", "32c")).result(DEADLINE)
    return [*first, *side, *deep, a_block("33c", "32c")]


def send_unsealed(url: str, app: Application, *blocks: Payload) -> None:
    """As a producer of another release does: nothing says where the content lies."""
    sink = open_sink(url, app, producer_id="two")
    for block in blocks:
        *content, batch = split(block, app.topics, app.default_topic)
        sink.send(content, batch).result(DEADLINE)
    sink.close()


def steps(updates: list[ChainUpdate]) -> list[tuple[list[bytes], list[bytes]]]:
    return [([block.hash for block in each.removed], [block.hash for block in each.added]) for each in updates]


def read(url: str, app: Application, start: str = "earliest") -> tuple[list[ChainUpdate], set[str]]:
    """The updates of a consumer that leaves the content where it is, and the topics that it reads in the end."""
    with Consumer(url, app, start=start, content="ranges", until="end", max_update=1) as consumer:
        updates = list(consumer)
        return updates, {topic for topic, _ in consumer.positions}


def need_whole(records: list[Record], payloads: list[Payload], updates: list[ChainUpdate]) -> None:
    """The ranges of every block hold all of its messages."""
    blocks = {payload.hash: payload for payload in payloads}
    app_keys: dict[bytes, set[bytes]] = {}
    for update in updates:
        for block in update.added:
            assert isinstance(block, HeaderOnly)
            keys = app_keys.setdefault(block.hash, set())
            for record in records:
                low, high = block.ranges.get((record.topic, record.partition), (0, 0))
                if record.key[1:33] == block.hash and low <= record.offset < high:
                    keys.add(record.key)
            paths = {key[33:].decode() for key in keys if key[0] != BATCH}
            assert paths == set(blocks[block.hash].updates) - {"inside"}
            assert sum(key[0] == BATCH for key in keys) == 1


@pytest.mark.parametrize("query", ["", TRANSACTIONS], ids=["plain", "transactions"])
def test_batches_that_name_their_ranges_are_all_that_is_read(cardinal_broker: EmbeddedKafka, query: str) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    payloads = publish_forks(url + query, app)
    updates, topics = read(url, app)
    with Consumer(url, app, until="end", max_update=1) as consumer:
        usual = list(consumer)
    assert updates[-1].added[-1].hash == usual[-1].added[-1].hash == named("33c")
    assert topics == {app.default_topic}
    need_whole(everything_on(url, app), payloads, [each for each in updates if not each.removed])


def test_a_batch_that_names_no_range_has_the_content_read_too(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 41)))
    with Producer(url, app, producer_id="one") as producer:
        for payload in chain[:20]:
            producer.add(payload)
    alone, topics = read(url, app)
    assert topics == {app.default_topic}
    send_unsealed(url, app, *chain[20:30])
    with Producer(url, app, producer_id="one") as producer:
        for payload in chain[30:]:
            producer.add(payload).result(DEADLINE)
    everything, topics = read(url, app)
    assert topics == set(app.all_topics)
    assert steps(everything) == [([], [payload.hash]) for payload in chain]
    need_whole(everything_on(url, app), chain, everything)
    for before in (alone[-1], everything[4], everything[24], everything[34]):
        rest, _ = read(url, app, start=str(before.cursor))
        at = [payload.hash for payload in chain].index(before.added[-1].hash) + 1
        assert steps(rest) == [([], [payload.hash]) for payload in chain[at:]]
        assert [each.seq for each in rest] == list(range(at + 1, 41))
        need_whole(everything_on(url, app), chain, rest)


def test_a_sealed_batch_holds_the_ranges_of_its_block(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    with Producer(url, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g", values=50)).result(DEADLINE)
        producer.add(a_block("2a", "1a", values=0)).result(DEADLINE)
    records = everything_on(url, app)
    for name in ("1a", "2a"):
        own = [record for record in records if record.key[1:33] == named(name)]
        (batch,) = (record for record in own if record.key[0] == BATCH)
        found = ranges_of(batch.headers)
        assert found is not None
        rest = [record for record in own if record is not batch]
        assert found.size == sum(len(record.key) + len(record.value) for record in rest)
        assert found.ranges == {
            where: (min(offsets), max(offsets) + 1)
            for where in {(record.topic, record.partition) for record in rest}
            for offsets in [[each.offset for each in rest if (each.topic, each.partition) == where]]
        }
        assert all(RANGES_HEADER not in dict(record.headers) for record in rest)


def test_what_a_cursor_has_delivered_is_removed_with_its_ranges(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 21)))
    send_unsealed(url, app, *chain[:18])
    with Producer(url, app, producer_id="one") as producer:
        for payload in chain[18:]:
            producer.add(payload).result(DEADLINE)
        before, topics = read(url, app)
        assert topics == set(app.all_topics)
        branch = a_chain("15b 16b 17b 18b 19b 20b 21b", root="14a")
        producer.reorg(BlockRef(14, named("14a")), branch).result(DEADLINE)
        (switch,), _ = read(url, app, start=str(before[-1].cursor))
        assert [block.hash for block in switch.removed] == [payload.hash for payload in reversed(chain[14:])]
        assert all(isinstance(block, HeaderOnly) and block.ranges for block in switch.removed)


def test_a_cursor_of_a_usual_consumer_resumes_with_batches_alone(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 41)))
    with Producer(url, app, producer_id="one") as producer:
        for payload in chain[:30]:
            producer.add(payload)
        producer.flush(DEADLINE)
        with Consumer(url, app, until="end") as consumer:
            (*_, usual) = consumer
        for payload in chain[30:]:
            producer.add(payload)
    assert {topic for topic, _ in usual.cursor.next} == set(app.all_topics)
    rest, topics = read(url, app, start=str(usual.cursor))
    assert topics == {app.default_topic}
    assert steps(rest) == [([], [payload.hash]) for payload in chain[30:]]
    need_whole(everything_on(url, app), chain, rest)


def test_the_oldest_batch_without_ranges_bounds_the_content_that_is_read(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them, in two partitions, and the younger one is read first."""
    monkeypatch.setattr("cardinal.consuming.batches_alone.BEFORE_BATCH_MS", 500)
    app, url = small_stream(), url_of(cardinal_broker)
    chain = a_chain(" ".join(f"{number}a" for number in range(1, 41)))
    written = Written.header
    for at, payload in enumerate(chain):
        monkeypatch.setattr(Written, "header", (lambda *_: None) if at in (6, 7, 30, 31) else written)
        with Producer(url, app, producer_id="one") as producer:
            producer.add(payload).result(DEADLINE)
    updates, _ = read(url, app)
    assert [block.hash for each in updates for block in each.added] == [payload.hash for payload in chain]
    assert all(isinstance(block, HeaderOnly) for each in updates for block in each.added)


def test_records_that_are_copied_name_no_ranges(cardinal_broker: EmbeddedKafka) -> None:
    app, copy, url = small_stream(), small_stream(), url_of(cardinal_broker)
    with Producer(url, app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload).result(DEADLINE)
    sink = open_sink(url, copy, producer_id="copier")
    names = dict(zip(app.all_topics, copy.all_topics, strict=True))
    sink.replay([record._replace(topic=names[record.topic]) for record in everything_on(url, app)]).result(DEADLINE)
    sink.close()
    sealed = [record for record in everything_on(url, copy) if record.key[0] == BATCH]
    assert sealed
    assert all(RANGES_HEADER not in dict(record.headers) for record in sealed)
    updates, topics = read(url, copy)
    assert topics == set(copy.all_topics)
    need_whole(everything_on(url, copy), a_chain("1a 2a 3a"), updates)


def test_with_records_to_skip_everything_is_counted(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    with Producer(url, app, producer_id="one") as producer:
        for payload in a_chain("1a 2a 3a"):
            producer.add(payload).result(DEADLINE)
    own = [record for record in everything_on(url, app) if record.key[1:33] == named("2a")]
    lost = next(record for record in own if record.key[0] != BATCH)
    skip = [(lost.topic, lost.partition, lost.offset)]
    with Consumer(url, app, content="ranges", until="end", max_update=1, skip=skip) as consumer:
        added = [block for update in consumer for block in update.added]
        assert {topic for topic, _ in consumer.positions} == set(app.all_topics)
    assert not any(isinstance(block, HeaderOnly) and block.hash == named("2a") for block in added)


def test_each_block_of_a_transaction_names_its_own_messages(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), url_of(cardinal_broker)
    with Producer(url + TRANSACTIONS, app, producer_id="one") as producer:
        producer.add(a_block("1a", "0g")).result(DEADLINE)
        branch = a_chain("2b 3b 4b 5b", root="1a", values=20)
        producer.reorg(BlockRef(1, named("1a")), branch).result(DEADLINE)
    records = everything_on(url, app)
    for payload in branch:
        own = [record for record in records if record.key[1:33] == payload.hash]
        (batch,) = (record for record in own if record.key[0] == BATCH)
        found = ranges_of(batch.headers)
        assert found is not None
        low = min(record.offset for record in own if record.key[0] != BATCH)
        assert low in {first for first, _ in found.ranges.values()}
        assert sum(last - first for first, last in found.ranges.values()) == len(own) - 1
