"""Several transports as one: migration, producing to all, members that fail or are unreachable."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, hash_of, line, publish, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.consuming import channels
from cardinal.consuming.reader import Reader
from cardinal.errors import ConfigurationError, CursorExpiredError, DeliveryError, TopicError, UnreachableError
from cardinal.producer import Producer
from cardinal.producing.survey.mux import common_chain
from cardinal.protocols.streams import BlockRef, Payload, Rejected, ReorgAbandoned, Routed, split
from cardinal.protocols.streams.types import SEALED_HEADER, Partition
from cardinal.server.produce import ProduceService
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal.transports import open_sink, open_source
from cardinal.transports.mux import MuxSource
from cardinal_devkit.testing.memory import MemoryBroker
from file_logs import APP, DEADLINE, block, fill
from serving import Served, from_start, serving
from serving import until as wait_until

if TYPE_CHECKING:
    from cardinal.protocols.streams import Record


Brokers = tuple[MemoryBroker, MemoryBroker]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with MemoryBroker(f"old-{uuid.uuid4().hex}") as old, MemoryBroker(f"new-{uuid.uuid4().hex}", partitions=3) as new:
        yield old, new


def mux(*members: MemoryBroker | Served) -> str:
    return "mux:" + ",".join(member.url for member in members)


def opened(url: str) -> MuxSource:
    source = from_start(open_source(url, Blocks()))
    assert isinstance(source, MuxSource)
    return source


def test_a_consumer_moves_from_one_cluster_to_another_over_both(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 3))
    with Consumer(old.url, Blocks()) as consumer:
        updates = updates_until(consumer, "3a")
    publish(old, line(4, 5))
    # The producer moves: the old cluster ends with block 5, the new one begins at 4 (both have 4 and 5).
    publish(new, line(4, 9))
    with Consumer(mux(old, new), Blocks(), start=updates[-1].cursor) as consumer:
        more = updates_until(consumer, "9a")
        assert steps(more) == [f"+{number}a" for number in range(4, 10)]
        assert more[0].first_seq == updates[-1].seq + 1
    # ... and a cursor of both goes on with both, wherever their URLs stand.
    publish(new, line(10, 11))
    with Consumer(f"mux:0={old.url},64={new.url}", Blocks(), start=more[-1].cursor) as consumer:
        assert steps(updates_until(consumer, "11a")) == ["+10a", "+11a"]


def test_a_member_that_is_left_out_too_early_is_missed_by_name(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 3))
    publish(new, line(3, 5))
    with Consumer(mux(old, new), Blocks()) as consumer:
        cursor = updates_until(consumer, "5a")[-1].cursor
    with pytest.raises(CursorExpiredError, match=r"missing from a\[0\].* a mux was left out too early") as caught:
        Consumer(f"mux:64={new.url}", Blocks(), start=cursor)
    assert {number for _, number in caught.value.missing} <= set(range(64))


def test_a_member_that_was_read_to_its_end_may_be_left_out_after_the_threshold(
    brokers: Brokers,
) -> None:
    """16 blocks below 21a is 5a; a cursor's floor is looked up some records before, a few blocks of this size."""
    old, new = brokers
    publish(old, line(1, 5))
    publish(new, line(6, 21))
    cursors = {}
    with Consumer(mux(old, new), Blocks()) as consumer:
        for number in range(21, 26):
            publish(new, line(number, number))
            cursors[number] = updates_until(consumer, f"{number}a")[-1].cursor
    with pytest.raises(CursorExpiredError, match="a mux was left out too early"):  # 16 blocks back is block 5
        Consumer(f"mux:64={new.url}", Blocks(), start=cursors[21])
    publish(new, line(25, 27, "b", below="24a", weight=1))
    for cursor in (cursors[25], str(cursors[25])):
        with Consumer(f"mux:64={new.url}", Blocks(), start=cursor) as consumer:
            more = updates_until(consumer, "27b")
        assert steps(more) == ["-25a", "+25b", "+26b", "+27b"]
        assert more[0].first_seq == cursors[25].seq + 1


def test_a_reorg_whose_sides_lie_in_different_clusters_is_one_update(
    brokers: Brokers,
) -> None:
    old, new = brokers
    publish(old, line(1, 4))
    publish(new, line(3, 5, "b", below="2a", weight=1))
    with Consumer(mux(old, new), Blocks()) as consumer:
        found = steps(updates_until(consumer, "5b"))
    assert found[-1] == "+5b"
    chain = []
    for step in found:
        if step[0] == "+":
            chain.append(step[1:])
        else:
            assert chain.pop() == step[1:]
    assert chain == ["1a", "2a", "3b", "4b", "5b"]


@pytest.mark.slow
def test_a_deep_reorg_is_one_update_wherever_it_is_written(brokers: Brokers) -> None:
    """By a producer that writes both members, by one of the second one, and with the first one left out."""
    app = Blocks(reorg_threshold=4)
    old, new = brokers
    open_sink(old.url, app, producer_id="before").close()
    writers = [new.url, mux(old, new), new.url]
    readers = [mux(old, new), mux(old, new), f"mux:64={new.url}"]
    branch, length = "a", 12
    for number, (writes, reads) in enumerate(zip(writers, readers, strict=True)):
        reports: list[object] = []
        with (
            Producer(writes, app, producer_id=f"p{number}") as producer,
            Consumer(reads, app, on_event=reports.append, idle_timeout=DEADLINE) as consumer,
        ):
            if not number:
                publish(new, line(1, length), app=app)
            updates_until(consumer, f"{length}{branch}")
            branch, length = "bcd"[number], length + 1
            producer.reorg(BlockRef(1, hash_of("1a")), line(2, length, branch, "1a")).result(DEADLINE)
            (switch,) = updates_until(consumer, f"{length}{branch}")
            assert (len(switch.removed), len(switch.added)) == (length - 2, length - 1)
        assert not [report for report in reports if isinstance(report, Rejected | ReorgAbandoned)]


def test_a_call_fails_when_one_member_fails_and_may_be_sent_again(brokers: Brokers) -> None:
    old, new = brokers
    sink = open_sink(mux(old, new), Blocks(), producer_id="one")
    new.fail(lambda message: message.topic == "a")
    with Producer(mux(old, new), Blocks(), producer_id="two") as producer:
        payload = line(1, 1)[0]
        with pytest.raises(DeliveryError):
            producer.add(payload).result(DEADLINE)
        new.fail(None)
        producer.add(payload).result(DEADLINE)
    with Consumer(new.url, Blocks()) as consumer:
        assert steps(updates_until(consumer, "1a")) == ["+1a"]
    sink.close()


def test_a_call_is_acknowledged_when_the_last_member_has_acknowledged_it(
    brokers: Brokers,
) -> None:
    old, new = brokers
    sink = open_sink(mux(old, new), APP, producer_id="one")
    new.hold()
    future: Future[None] = sink.send(block(1)[0], None)
    with pytest.raises(TimeoutError):
        future.result(0.05)
    new.release()
    future.result(DEADLINE)
    sink.close()


def test_topics_that_a_member_gets_later_become_partitions(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    source = open_source(mux(old, new), Blocks())
    assert {number for _, number in source.partitions()} == {0, 1}
    publish(new, line(3, 4))
    assert {number for _, number in source.partitions()} == {0, 1, 64, 65, 66}
    from_start(source)
    found: set[bytes] = set()
    wait_until(lambda: found.update(one.key[1:33] for one in source.poll(100, 0.1)) or hashes(1, 4) <= found)
    source.close()


def test_a_topic_that_no_member_has_is_named(brokers: Brokers) -> None:
    with pytest.raises(TopicError, match="in no member of the mux"):
        open_source(mux(*brokers), Blocks())


def test_positions_that_are_gone_are_named_as_they_are_shown(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    new.trim("block", 1, 1)
    source = open_source(mux(old, new), Blocks())
    with pytest.raises(CursorExpiredError, match=new.url) as caught:
        source.assign({("block", 0): 0, ("block", 65): 0})
    assert list(caught.value.missing) == [("block", 65)]
    source.close()


def test_nothing_that_a_member_gave_is_lost_where_another_one_fails(
    brokers: Brokers,
) -> None:
    """In each round another member is polled first; one's records are returned before the other's error is raised."""
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    source = opened(mux(old, new))
    new.trim("block", 1, 1)
    found: list[Record] = []
    errors: list[str] = []
    for _ in range(4):
        try:
            found += source.poll(1_000, 0.0)
        except CursorExpiredError as error:
            errors += [f"{topic}:{number}" for topic, number in error.missing]
    assert sorted(found) == old.records()
    assert set(errors) == {"block:65"}
    assert len(errors) == 3
    source.close()


def test_an_error_of_positions_that_are_left_is_not_reported(brokers: Brokers) -> None:
    old, new = brokers
    for broker in brokers:
        publish(broker, line(1, 2))
    source = opened(mux(old, new))
    new.trim("block", 1, 1)
    with pytest.raises(CursorExpiredError):
        source.poll(1_000, 0.0)
    assert sorted(source.poll(1_000, 0.0)) == old.records()
    from_start(source)
    assert len(source.poll(1_000, 0.0)) == len(old.records() + new.records())
    source.close()


def test_partitions_that_would_meet_are_refused(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 2))
    publish(new, line(1, 2))
    with pytest.raises(ConfigurationError, match="higher number"):
        open_source(f"mux:0={new.url},2={old.url}", Blocks()).partitions()
    open_source(f"mux:0={old.url},2={new.url}", Blocks()).partitions()


def test_no_member_is_left_behind_by_a_busy_one(tmp_path: Path) -> None:
    busy, quiet = tmp_path / "busy", tmp_path / "quiet"
    for folder, count in ((busy, 200), (quiet, 1)):
        fill(folder, 0, count).close()
    source = from_start(open_source(f"mux:file://{busy},file://{quiet}", APP))
    first = source.poll(20, 1.0) + source.poll(20, 1.0)
    assert {record.partition >= 64 for record in first} == {True, False}
    source.close()


def test_null_members_read_nothing_and_swallow_everything(tmp_path: Path) -> None:
    url = f"mux:null://,file://{tmp_path}"
    sink = open_sink(url, APP, producer_id="one")
    sink.send(*block(1)).result(DEADLINE)
    sink.close()
    source = open_source(url, APP)
    assert {number for _, number in source.partitions()} == {64, 65}
    source.close()
    empty = open_source("mux:null://,null://", APP)
    empty.assign({})
    assert (empty.partitions(), empty.poll(10, 0.02)) == ((), [])
    empty.close()


class Line:
    """A node with one chain from block 1 on."""

    def __init__(self) -> None:
        self.asked_above: BlockRef | None = None

    async def chain_id(self) -> int:
        return 7

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        if published:
            self.asked_above = published[-1]
        for payload in line(published[-1].number + 1 if published else start or 1, until or 0):
            yield payload

    async def close(self) -> None:
        """Nothing is open."""


async def produce(feed: Line, url: str, until: int) -> tuple[int | None, ...]:
    """What was half published, by number; the chain is on the topics then."""
    service = ProduceService(feed, url, Blocks(), producer_id="one", start=1, stop=until)
    await service.prepare()
    half = tuple(one.number for one in service.progress.partial)
    await asyncio.wait_for(service.run(), DEADLINE)
    await service.close()
    return half


def sealed(broker: MemoryBroker) -> set[bytes]:
    return {record.key[1:] for record in broker.records("block") if SEALED_HEADER in dict(record.headers)}


def hashes(first: int, last: int) -> set[bytes]:
    return {payload.hash for payload in line(first, last)}


@pytest.mark.parametrize("lacks", [0, 1])
def test_what_one_member_lacks_after_a_death_is_sent_again(brokers: Brokers, lacks: int) -> None:
    """Killed when one had three seals, and the other the first one's content alone."""
    app = Blocks()
    publish(mux(*brokers), line(1, 10))
    publish(brokers[1 - lacks], line(11, 13))
    *content, _ = split(line(11, 11)[0], app.topics, app.default_topic)
    brokers[lacks].sink(app, producer_id="one").send(content, None).result(DEADLINE)
    feed = Line()
    half = asyncio.run(produce(feed, mux(*brokers), 16))
    assert feed.asked_above == BlockRef(10, hash_of("10a"))
    assert half == (11,)
    assert [sealed(broker) for broker in brokers] == [hashes(1, 16)] * 2


def test_a_member_that_begins_now_is_not_given_what_was_before(brokers: Brokers) -> None:
    old, new = brokers
    publish(old, line(1, 10))
    asyncio.run(produce(Line(), mux(*brokers), 12))
    asyncio.run(produce(Line(), mux(*brokers), 14))
    assert (sealed(old), sealed(new)) == (hashes(1, 14), hashes(11, 14))


def refs(spec: str) -> list[BlockRef]:
    return [BlockRef(int(name[:-1]), hash_of(name)) for name in spec.split()]


@pytest.mark.parametrize(
    ("chains", "common"),
    [
        (["1a 2a 3a 4a", "1a 2a 3a"], "1a 2a 3a"),
        (["1a 2a 3a 4a", "3a 4a"], "1a 2a 3a 4a"),
        (["1a 2a 3a 4a", ""], "1a 2a 3a 4a"),
        (["1a 2a 3a 4a", "1a 2a 3b 4b 5b"], "1a 2a"),
        (["1a 2a 3a 4a", "3b"], "1a 2a"),
        (["8a 9a", "2a 3a"], "2a 3a"),
        (["1a 2a 3a", "2a 3a 4a", "3a 4a 5a"], "1a 2a 3a"),
        (["", ""], ""),
    ],
)
def test_the_chain_that_all_members_have_each_from_where_it_begins(chains: list[str], common: str) -> None:
    for order in (chains, chains[::-1]):
        assert common_chain([refs(chain) for chain in order]) == refs(common)


async def repaired(url: str, first: int, last: int, *, dry_run: bool = False) -> tuple[Repaired, list[int]]:
    sent: list[int] = []
    what = RepairRange(first, last, "one", dry_run)
    return await repair(Line(), url, Blocks(), what, lambda ref: sent.append(ref.number)), sent


def test_repair_completes_what_one_member_lacks(brokers: Brokers) -> None:
    publish(mux(*brokers), line(1, 4))
    publish(brokers[0], line(5, 6))
    publish(mux(*brokers), line(7, 8))
    found, would = asyncio.run(repaired(mux(*brokers), 1, 8, dry_run=True))
    assert (found.complete, len(found.partial), found.missing, would) == (6, 2, (), [5, 6])
    assert asyncio.run(repaired(mux(*brokers), 1, 8))[0].sent == 2
    assert [sealed(broker) for broker in brokers] == [hashes(1, 8)] * 2


def test_transactions_are_refused_before_a_member_is_opened() -> None:
    with pytest.raises(ConfigurationError, match="no transaction") as caught:
        open_sink("mux:null://,kafka://user:s3cr3t@host:1?transactional=update", Blocks(), producer_id="one")
    assert caught.value.setting == "transactional"
    assert "s3cr3t" not in str(caught.value)
    open_sink("mux:null://,null://", Blocks(), producer_id="one").close()


def test_a_standby_over_several_clusters_is_refused(brokers: Brokers) -> None:
    with pytest.raises(ConfigurationError, match="one of the members") as caught:
        Producer(mux(*brokers), Blocks(), producer_id="one", redundancy="standby")
    assert caught.value.setting == "redundancy"
    assert not brokers[0].topics()


CHANNEL = "block-re"


@pytest.fixture
def old() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"old-{uuid.uuid4().hex}", partitions=2) as broker:
        publish(broker, line(1, 3))
        yield broker


@pytest.fixture
def new() -> Iterator[MemoryBroker]:
    with MemoryBroker(f"new-{uuid.uuid4().hex}", partitions=3) as broker:
        publish(broker, line(3, 5))
        yield broker


@pytest.fixture
def served(old: MemoryBroker) -> Iterator[Served]:
    with serving(old.url, Blocks()) as served:
        yield served


def answers(source: MuxSource) -> bool:
    try:
        source.watermarks()
    except UnreachableError:
        return False
    return True


def test_a_member_that_is_unreachable_holds_up_no_block_of_the_other(served: Served, new: MemoryBroker) -> None:
    with Consumer(mux(served, new), Blocks(), idle_timeout=60) as consumer:
        updates_until(consumer, "5a")
        served.stop()
        publish(new, line(6, 600))
        updates_until(consumer, "600a")
        for number in range(601, 604):
            publish(new, line(number, number))
            assert steps(updates_until(consumer, f"{number}a")) == [f"+{number}a"]


def test_a_deep_reorg_is_followed_in_one_member_while_the_other_is_unreachable(
    served: Served, new: MemoryBroker
) -> None:
    app = Blocks(reorg_threshold=4)
    with (
        Producer(new.url, app, producer_id="one") as producer,
        Consumer(mux(served, new), app, idle_timeout=60) as consumer,
    ):
        for payload in line(6, 15):
            producer.add(payload)
        producer.flush(DEADLINE)
        updates_until(consumer, "15a")
        served.stop()
        producer.reorg(BlockRef(5, hash_of("5a")), line(6, 16, "b", "5a")).result(DEADLINE)
        (switch,) = updates_until(consumer, "16b")
        assert (len(switch.removed), len(switch.added)) == (10, 11)


def test_a_channel_is_read_in_the_other_member_when_that_is_back(
    served: Served, old: MemoryBroker, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    for broker in (old, new):
        sink = open_sink(broker.url, Blocks(), producer_id="one")
        sink.open_channel(CHANNEL)
        sink.send([Routed(CHANNEL, b"\x03" + bytes(32) + b"p", broker.url.encode())], None).result(DEADLINE)
        sink.close()
    reader = Reader(mux(served, new), Blocks(), wait=0.0)
    from_start(reader.main)
    port = served.port
    served.stop()
    found: dict[int, bytes] = {}

    def read() -> int:
        reader.channels.follow([CHANNEL])
        found.update({row[1]: row[4] for row in reader.poll() if row[0] == CHANNEL and row[3]})
        return len(found)

    wait_until(lambda: read() == 1)
    assert found == {64: new.url.encode()}
    reader.request_ends()
    assert reader.answered_ends() is None
    with serving(old.url, Blocks(), port=port):
        wait_until(lambda: read() == 2)
        assert found == {0: old.url.encode(), 64: new.url.encode()}
        reader.close()


def test_a_channel_that_is_gone_when_it_is_looked_for_elsewhere_is_let_go(
    served: Served, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    sink = open_sink(new.url, Blocks(), producer_id="one")
    sink.open_channel(CHANNEL)
    sink.close()
    reader = Reader(mux(served, new), Blocks(), wait=0.0)

    def gone(_: MuxSource) -> tuple[Partition, ...]:
        raise TopicError("it was deleted", topic=CHANNEL)

    def read() -> bool:
        reader.channels.follow([CHANNEL])
        return (CHANNEL, 64) in reader.positions()

    wait_until(read)
    monkeypatch.setattr(MuxSource, "partitions", gone)

    def let_go() -> bool:
        reader.channels.follow([CHANNEL])
        return CHANNEL not in {topic for topic, _ in reader.positions()}

    wait_until(let_go)
    reader.close()


def test_a_topic_that_only_the_member_that_is_unreachable_may_have_is_not_reported_as_missing(
    served: Served, new: MemoryBroker
) -> None:
    with pytest.raises(TopicError):
        open_source(mux(served, new), Blocks(), topics=(CHANNEL,))
    served.stop()
    with pytest.raises(UnreachableError):
        open_source(mux(served, new), Blocks(), topics=(CHANNEL,))


def test_a_channel_of_unknown_existence_counts_as_unread(
    served: Served, old: MemoryBroker, new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is unreachable may have it: until that is known it counts as not read to its end."""
    monkeypatch.setattr(channels, "LOOK_SECONDS", 0.01)
    reader = Reader(mux(served, new), Blocks(), wait=0.0)
    from_start(reader.main)
    port = served.port

    def nowhere() -> bool:
        reader.channels.follow([CHANNEL])
        return (CHANNEL, 0) not in reader.positions()

    wait_until(nowhere)
    reader.channels.follow([])
    served.stop()
    reader.channels.follow([CHANNEL])
    assert reader.positions()[CHANNEL, 0] == 0
    reader.request_ends()
    assert reader.channels.watermarks_after(0.0) is None
    with serving(old.url, Blocks(), port=port):

        def known() -> bool:
            reader.channels.follow([CHANNEL])
            return (CHANNEL, 0) not in reader.positions()

        wait_until(known)
        wait_until(lambda: reader.answered_ends() is not None)
        reader.close()


@pytest.mark.slow
def test_what_is_to_prove_something_is_never_of_before(served: Served, old: MemoryBroker, new: MemoryBroker) -> None:
    source = opened(mux(served, new))
    before = source.watermarks()
    port = served.port
    served.stop()
    publish(new, line(6, 6))
    for _ in range(2):
        with pytest.raises(UnreachableError):
            source.watermarks()
    assert {number // 64 for _, number in source.at_end()} == {0}, "nothing is to be had of it"
    publish(old, line(4, 6))
    with serving(old.url, Blocks(), port=port):
        wait_until(lambda: answers(source))
        assert not source.at_end()
        assert any(source.watermarks()[where] != before[where] for where in before if where[1] < 64)
        source.close()


def test_a_look_that_is_to_prove_something_shows_topics_that_a_member_got_since(new: MemoryBroker) -> None:
    with MemoryBroker(f"late-{uuid.uuid4().hex}") as late:
        source = opened(f"mux:{new.url},{late.url}")
        publish(late, line(6, 6))
        assert {number // 64 for _, number in source.positions()} == {0}
        assert {number // 64 for _, number in source.partitions()} == {0, 1}
        assert {number // 64 for _, number in source.watermarks()} == {0, 1}
        source.close()


def test_a_source_that_names_what_it_knows_of_a_server_that_is_unreachable_does_not_make_it_present(
    new: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kafka source names the partitions that it knows, whether its broker answers or not."""
    source = opened(f"mux:{new.url}")
    assert not source.at_end()

    def away(_: object) -> None:
        raise UnreachableError("away", address="new")

    with monkeypatch.context() as outage:
        outage.setattr("cardinal_devkit.testing._memory_source.MemorySource.watermarks", away)
        with pytest.raises(UnreachableError):
            source.watermarks()
        source.partitions()
        assert source.at_end() == source.positions().keys(), "nothing is to be had of it"
    source.close()
