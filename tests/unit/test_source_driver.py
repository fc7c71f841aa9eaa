"""The source without Spark: a development chain on a broker in memory, planned batch by batch and read again."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

from cardinal import apps
from cardinal.apps.evm import payload_from_rpc
from cardinal.errors import ConfigurationError, CursorExpiredError, CursorMismatchError, MissingPayloadError
from cardinal.producer import Producer
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import BlockRef, Routed
from cardinal.testing.memory import MemoryBroker
from cardinal_connectors.dev import DevChain, DevSettings
from cardinal_spark.lake.ledger import EventRow
from cardinal_spark.lake.query import LastCommitted
from cardinal_spark.rows import AppSpec, weight_bytes
from cardinal_spark.source.driver import Driver, Limit
from cardinal_spark.source.final import final_chain
from cardinal_spark.source.options import SourceOptions, Stream
from cardinal_spark.source.starting import Starting
from cardinal_spark.source.tasks import grouped, read_blocks, wanted
from cardinal_spark.source.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardinal.protocols.streams import Payload
    from cardinal_spark.source.state import PlannedBlock

CHAIN_ID = 7
THRESHOLD = 8
SPEC = {"chain_id": CHAIN_ID, "reorg_threshold": THRESHOLD}
NAMES = count()


class Topics:
    """A broker, two producers, and a development chain to publish step by step."""

    def __init__(self, *, blocks: int = 30, seed: int = 3) -> None:
        seconds = count(1_600_000_000)  # no two records at the same time: their order is known
        self.broker = MemoryBroker(f"source-{next(NAMES)}", clock=lambda: float(next(seconds)))
        self.app = apps.get("evm", **SPEC)
        self.stream = Stream(self.broker.url, AppSpec("evm", SPEC).text(), 0.0)
        self.producers = [Producer(self.broker.url, self.app, producer_id=name) for name in ("a", "b")]
        self.steps = DevChain(DevSettings(seed=seed, blocks=blocks, reorg_rate=0.4, chain_id=CHAIN_ID, transactions=2))
        self.names: dict[str, Payload] = {}
        self.payloads: dict[bytes, Payload] = {}
        self.chain: list[bytes] = []

    def publish(self, steps: int = 10_000, *, one_by_one: bool = False) -> None:
        """Publish so many steps of the chain; ``one_by_one``: no block before the one before it is on the topics."""
        for step in islice(self.steps, steps):
            for block in step.mined:
                payload = payload_from_rpc(block.block, block.receipts, chain_id=CHAIN_ID)
                self.names[block.plan.name] = payload
                self.payloads[payload.hash] = payload
                for producer in self.producers:
                    producer.add(payload)
                    if one_by_one:
                        producer.flush()
            if step.move.removed:
                del self.chain[-len(step.move.removed) :]
            self.chain += [self.names[name].hash for name in step.move.added]
        for producer in self.producers:
            producer.flush()

    def window(self) -> Window:
        return Window(self.stream.open, self.stream.digester(), patience=0.0)

    def driver(self) -> Driver:
        return Driver(self.stream.settings, self.window())

    def starting(self) -> Starting:
        return Starting(self.stream.settings, self.window(), self.app.default_topic)

    def close(self) -> None:
        for producer in self.producers:
            producer.close()
        self.broker.close()


@pytest.fixture
def topics() -> Iterator[Topics]:
    made = Topics()
    yield made
    made.close()


def batches(driver: Driver, start: dict[str, Any], limit: Limit) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The batches that AvailableNow would run."""
    driver.freeze()
    while (end := driver.next_offset(start, limit)) != start:
        yield start, end
        start = end


def replayed(rows: Sequence[PlannedBlock]) -> list[bytes]:
    chain: list[bytes] = []
    for seq, row in enumerate(rows, 1):
        assert row.seq == seq
        if row.change == 1:
            chain.append(row.block.header.hash)
        else:
            assert chain.pop() == row.block.header.hash
    return chain


def facts(rows: Sequence[PlannedBlock]) -> list[object]:
    """Everything of rows but the last copies that were seen of a block, which only the driver needs."""
    return [replace(row, block=replace(row.block, last={})) for row in rows]


@pytest.mark.parametrize("limit", [Limit(), Limit(blocks=3), Limit(bytes=20_000)], ids=["none", "blocks", "bytes"])
def test_every_batch_is_planned_again_alike_and_its_blocks_are_read_whole(topics: Topics, limit: Limit) -> None:
    topics.publish(one_by_one=True)  # what one Batch brings about with others that wait for it is in one batch
    driver = topics.driver()
    rows: list[PlannedBlock] = []
    sizes = []
    for start, end in batches(driver, topics.starting().earliest().json(), limit):
        planned = driver.plan(start, end)
        again = topics.driver().plan(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
        assert facts(again.rows) == facts(planned.rows)
        rows += planned.rows
        sizes.append(Counter(row.update_id for row in planned.rows))
        for group in grouped(planned.rows, 50_000):
            for key, payload in read_blocks(topics.stream, [wanted(row) for row in group]):
                published = topics.payloads[key.hash]
                assert (payload.number, payload.parent, payload.weight) == (key.number, key.parent, key.weight)
                assert (dict(payload.updates), payload.deletes) == (dict(published.updates), published.deletes)
    assert replayed(rows) == topics.chain
    assert any(row.change == -1 for row in rows)
    if limit.blocks is not None:
        # exceeded by one update at most
        assert all(size.total() - max(size.values()) <= limit.blocks for size in sizes)
    if limit != Limit():
        assert len(sizes) > 4


def test_a_stream_that_is_cut_anywhere_goes_on_to_the_same_chain(topics: Topics) -> None:
    """Every run is a new process that knows the last offset only; reorgs cross the cuts."""
    stored = None
    rows: list[PlannedBlock] = []
    while True:
        before = len(topics.payloads)
        topics.publish(3)
        if len(topics.payloads) == before:
            break
        stored = topics.starting().earliest().json() if stored is None else stored
        driver = topics.driver()
        for start, end in batches(driver, stored, Limit()):
            rows += driver.plan(start, end).rows
            stored = end
    assert replayed(rows) == topics.chain


def test_nothing_ready_is_no_new_offset(topics: Topics) -> None:
    """Pings, and a block whose last message is missing, wake nobody."""
    topics.publish(4)
    driver = topics.driver()
    start = driver.next_offset(topics.starting().earliest().json(), Limit())
    assert driver.plan({**topics.starting().earliest().json()}, start).updates
    assert driver.next_offset(start, Limit()) == start
    messages = split(next(iter(topics.payloads.values())), topics.app.topics, topics.app.default_topic)
    other = bytes(32)
    for message in messages[:-1]:
        topics.broker.take(Routed(message.topic, message.key[:1] + other + message.key[33:], message.value), ())
    topics.broker.take(Routed(topics.app.default_topic, b"\xff" + other, b""), ())
    assert driver.next_offset(start, Limit()) == start


def test_an_idle_minute_moves_the_offset_although_nothing_is_ready(topics: Topics) -> None:
    topics.publish(4)
    now = [0.0]
    driver = Driver(topics.stream.settings, topics.window(), clock=lambda: now[0])
    start = driver.next_offset(topics.starting().earliest().json(), Limit())
    for seconds, moves in ((30.0, False), (59.0, False), (95.0, True)):
        now[0] = seconds
        topics.broker.take(Routed(topics.app.default_topic, b"\xff" + bytes(32), b""), ())
        assert (driver.next_offset(start, Limit()) != start) is moves


def test_a_frozen_stream_takes_nothing_new(topics: Topics) -> None:
    topics.publish(5)
    driver = topics.driver()
    driver.freeze()
    seen = len(topics.chain)
    topics.publish(5)
    start = topics.starting().earliest().json()
    end = driver.next_offset(start, Limit())
    assert len(replayed(driver.plan(start, end).rows)) == seen
    assert driver.next_offset(end, Limit()) == end


def test_records_below_the_floor_that_are_gone_are_an_error_with_a_way_out(topics: Topics) -> None:
    topics.publish()
    driver = topics.driver()
    end = driver.next_offset(topics.starting().earliest().json(), Limit())
    for number in range(topics.broker.partitions):
        topics.broker.trim(f"{topics.app.default_topic}-block", number, 100_000)
    with pytest.raises(CursorExpiredError, match="restartFrom=sink"):
        topics.driver().next_offset(end, Limit())


def test_topics_that_were_made_anew_are_noticed(topics: Topics) -> None:
    topics.publish(8)
    driver = topics.driver()
    start = topics.starting().earliest().json()
    end = driver.next_offset(start, Limit())
    other = Topics(seed=99)
    other.publish(40)
    with pytest.raises(CursorMismatchError, match="no longer give the batch"):
        other.driver().plan(start, end)
    other.close()


def test_an_option_that_changes_the_plan_is_refused(topics: Topics) -> None:
    topics.publish(8)
    end = topics.driver().next_offset(topics.starting().earliest().json(), Limit())
    other = Stream(topics.broker.url, AppSpec("evm", {"chain_id": CHAIN_ID, "reorg_threshold": 64}).text(), 0.0)
    with pytest.raises(CursorMismatchError, match="reorg_threshold"):
        Driver(other.settings, Window(other.open, other.digester())).next_offset(end, Limit())


def test_latest_begins_with_the_next_block(topics: Topics) -> None:
    topics.publish(10)
    start = topics.starting().latest().json()
    before = set(topics.payloads)
    topics.publish(10)
    driver = topics.driver()
    rows = [row for low, high in batches(driver, start, Limit()) for row in driver.plan(low, high).rows]
    assert rows
    assert not before & {row.block.header.hash for row in rows}


def test_a_start_by_number_delivers_that_block_first() -> None:
    topics = Topics(blocks=60)
    topics.publish()
    driver, starting = topics.driver(), topics.starting()
    start = starting.block(40).json()
    rows = [row for low, high in batches(driver, start, Limit()) for row in driver.plan(low, high).rows]
    assert replayed(rows) == topics.chain[40:]
    assert rows[0].block.header.number == 40
    with pytest.raises(ConfigurationError, match="their highest is 60"):
        starting.block(61)
    topics.close()


def test_a_lost_checkpoint_goes_on_behind_the_lake(topics: Topics) -> None:
    """What the first stream delivered and what the second one delivers are one gapless ledger."""
    topics.publish(25)
    driver = topics.driver()
    start = topics.starting().earliest().json()
    rows = [row for low, high in batches(driver, start, Limit(blocks=2)) for row in driver.plan(low, high).rows]
    last_updates = sorted({row.update_id for row in rows})[-4:]
    kept = [row for row in rows if row.update_id < last_updates[0]]
    assert kept
    topics.publish()
    again = topics.driver()
    start = topics.starting().behind(last_of(kept)).json()
    more = [row for low, high in batches(again, start, Limit()) for row in again.plan(low, high).rows]
    assert replayed([*kept, *more]) == topics.chain
    assert {row.lineage for row in more} == {row.lineage for row in kept}


def last_of(rows: Sequence[PlannedBlock]) -> LastCommitted:
    """What a lake with these rows says about its end."""
    chain: list[EventRow] = []
    for row in rows:
        header = row.block.header
        if row.change == -1:
            chain.pop()
            continue
        where = (header.number, header.hash, header.parent, weight_bytes(header.weight))
        chain.append(EventRow(row.lineage, row.seq, 1, row.update_id, *where, None, row.block.published_ms * 1000))
    head = BlockRef(chain[-1].number, chain[-1].hash)
    return LastCommitted(rows[-1].lineage, "", rows[-1].seq, head, tuple(chain))


def test_a_lake_that_the_topics_no_longer_hold_is_refused(topics: Topics) -> None:
    topics.publish(10)
    driver = topics.driver()
    start = topics.starting().earliest().json()
    rows = driver.plan(start, driver.next_offset(start, Limit())).rows
    for number in range(topics.broker.partitions):
        topics.broker.trim(topics.app.default_topic, number, 10_000)
    with pytest.raises(CursorExpiredError, match="start a new lake"):
        topics.starting().behind(last_of(rows))
    other = last_of(rows)
    with pytest.raises(CursorMismatchError, match="another chain"):
        topics.starting().behind(LastCommitted("0" * 32, "", other.seq, other.head, other.chain))


def test_a_batch_read_is_the_chain_as_it_stands(topics: Topics) -> None:
    topics.publish()
    window = topics.window()
    ends = {where: high for where, (_, high) in window.marks().items()}
    rows = final_chain(topics.stream.settings, window, topics.starting().earliest(), ends)
    assert [row.block.header.hash for row in rows] == topics.chain
    assert [(row.seq, row.change) for row in rows] == [(seq, 1) for seq in range(1, len(rows) + 1)]


def test_a_batch_read_refuses_a_block_that_is_not_whole(topics: Topics) -> None:
    topics.publish(8)
    payload = topics.payloads[topics.chain[-1]]
    messages = split(payload, topics.app.topics, topics.app.default_topic)
    other = bytes(32)
    topics.broker.take(Routed(messages[-1].topic, messages[-1].key[:1] + other, messages[-1].value), ())
    window = topics.window()
    ends = {where: high for where, (_, high) in window.marks().items()}
    with pytest.raises(MissingPayloadError, match=f"block {payload.number} .0x00000000"):
        final_chain(topics.stream.settings, window, topics.starting().earliest(), ends)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "url"),
        ({"url": "kafka://h", "tabel": "logs"}, "tabel"),
        ({"url": "kafka://h", "table": "nope"}, "table"),
        ({"url": "kafka://h", "startingOffsets": "-1"}, "startingOffsets"),
        ({"url": "kafka://h", "maxBlocksPerTrigger": "0"}, "maxblockspertrigger"),
        ({"url": "kafka://h", "failOnDataLoss": "false"}, "failOnDataLoss"),
        ({"url": "kafka://h", "restartFrom": "sink"}, "sinkPath"),
    ],
)
def test_an_option_that_cannot_work_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SourceOptions.of(options)


def test_no_option_is_shown_that_may_hold_a_password() -> None:
    options = SourceOptions.of({"url": "kafka://user:s3cr3t@h", "storage.key": "s3cr3t", "chainId": "5"})
    assert "s3cr3t" not in repr(options) + repr(Stream.find(options))


def test_without_a_chain_id_the_only_stream_is_taken(topics: Topics) -> None:
    found = Stream.find(SourceOptions.of({"url": topics.broker.url, "topicsTimeout": "0"}))
    assert AppSpec.parse(found.spec) == AppSpec("evm", {"chain_id": CHAIN_ID})
    assert found.app.chain == topics.app.chain


def test_what_travels_to_tasks_comes_back(topics: Topics) -> None:
    """Plain pickle, as Spark uses it, also after the driver's side has been at work."""
    topics.publish(12)
    start = topics.starting().earliest().json()
    rows = topics.driver().plan(start, topics.driver().next_offset(start, Limit())).rows
    stream, first = pickle.loads(pickle.dumps((topics.stream, wanted(rows[0]))))  # noqa: S301 - our own bytes
    ((key, payload),) = read_blocks(stream, [first])
    assert (key.seq, payload.hash) == (1, topics.chain[0])
