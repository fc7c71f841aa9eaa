"""`cardinal cluster init` and `reconfigure` on a real broker: what members find in the claim log afterwards."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from clusters import TestCluster
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_streams import DEADLINE, a_chain, named

from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError, TopicError, TopicSettingError
from cardinal.metrics import CollectorRegistry, Endpoint, GaugeMetricFamily
from cardinal.producer import Producer
from cardinal.protocols.replication import NO_HASH, Close, decode_record
from cardinal.server.ingest.cluster.admin import Begun, Signer, begin_cluster, reconfigure_cluster
from cardinal.server.ingest.cluster.config import load_cluster
from cardinal.server.ingest.cluster.log_state import cluster_before
from cardinal.server.ingest.cluster.promoting import Agreed, PromotionWriter
from cardinal.server.ingest.cluster.topics import ClusterTopics, claims_topic, promoted_topic
from cardinal.server.topics import delete_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> TestCluster:
    return TestCluster(f"kafka://{cardinal_broker.bootstrap}", tmp_path)


def init(cluster: TestCluster, file: Path, start: int | None = None, by: str = "a") -> Begun:
    signer = Signer(by, cluster.key(by))
    return begin_cluster(find_url(cluster.url), cluster.app, load_cluster(file), signer, start)


def reconfigure(cluster: TestCluster, old: Path, new: Path, by: str = "a") -> Begun:
    signer = Signer(by, cluster.key(by))
    return reconfigure_cluster(find_url(cluster.url), cluster.app, load_cluster(old), load_cluster(new), signer)


def publish(cluster: TestCluster, spec: str) -> None:
    with Producer(cluster.url, cluster.app, producer_id="one") as producer:
        for block in a_chain(spec):
            producer.add(block)
        producer.flush(DEADLINE)


def chain(first: int, last: int) -> str:
    return " ".join(f"{number}a" for number in range(first, last + 1))


# --- init -------------------------------------------------------------------------------------------------------------


def test_a_cluster_begins_once_with_the_first_block_that_is_given(cluster: TestCluster) -> None:
    file = cluster.file("ab")
    with pytest.raises(ConfigurationError, match=r"the topics are empty: give the number .* \(--start\)"):
        init(cluster, file)
    begun = init(cluster, file, 7)
    assert (begun.head, begun.start, begun.already) == (None, 7, False)
    assert "2 members tolerate no more failures than 1" in begun.warnings[0]
    record, state = cluster.opened(file)
    assert (record.name, record.epoch, record.previous, record.id) == ("main", 0, NO_HASH, "a")
    assert (record.start, record.window, record.max_blocks) == (7, cluster.app.reorg_threshold, 500)
    assert (state.num, state.highest, dict(state.ring)) == (0, 6, {})
    values, _ = cluster.claims(file, state, [chain(7, 9)], "b")
    cluster.append(values)
    with pytest.raises(ConfigurationError, match="has records, so a cluster has begun"):
        init(cluster, file, 7)
    assert len(cluster.values()) == 2


def test_the_newest_blocks_of_topics_in_use_are_the_first_state(cluster: TestCluster) -> None:
    """As deep as the reorg threshold. A block above them is agreed by the first claim."""
    publish(cluster, chain(1, 40))
    file = cluster.file()
    with pytest.raises(ConfigurationError, match=r"the topics end with block 40, .*: leave out --start"):
        init(cluster, file, 1)
    begun = init(cluster, file)
    assert (begun.head, begun.start) == ((40, named("40a"), 40), 41)
    record, state = cluster.opened(file)
    assert (state.head, state.highest, record.start) == (begun.head, 40, 41)
    assert dict(state.ring) == {named(f"{number}a"): number for number in range(24, 41)}
    assert cluster.claims(file, state, ["41a"], "c")[1].head.number == 41


@pytest.mark.slow
def test_a_cluster_that_follows_another_one_on_its_topics_counts_on(cluster: TestCluster) -> None:
    """Without the old markers the headers on the topics count: batches with lower numbers would be left out."""
    file, blocks = cluster.file(), a_chain("1a 2a 3a")
    init(cluster, file, 1)

    async def promote() -> None:
        topic = cluster.app.default_topic
        markers = ClusterTopics(cluster.url, topic).ensure_promoted()
        writer = PromotionWriter(cluster.url, cluster.app, cluster="main", key=topic.encode(), markers=markers)
        assert await writer.take() is None
        await writer.write([(Agreed(num, 0), block) for num, block in enumerate(blocks, 5)], b"\x80")
        await writer.close()

    asyncio.run(promote())
    topics = [claims_topic(cluster.app.default_topic, 0), promoted_topic(cluster.app.default_topic)]
    delete_topics(find_url(cluster.url), topics[:1])
    with pytest.raises(ConfigurationError, match="something else writes to it"):
        init(cluster, file)
    cluster.promote(file, 7, 1, "a")
    with pytest.raises(ConfigurationError, match=r"restore its claim log; to begin another .*, delete both topics"):
        init(cluster, file)
    delete_topics(find_url(cluster.url), topics)
    begun = init(cluster, file)
    assert begun.head == (3, named("3a"), 3)
    assert cluster.opened(file)[1].num == 7


def test_who_is_no_member_of_epoch_0_does_not_begin_it(cluster: TestCluster) -> None:
    file = cluster.file()
    with pytest.raises(ConfigurationError, match="d is no member of epoch 0: sign as one of a, b, c"):
        init(cluster, file, 0, by="d")
    with pytest.raises(ConfigurationError, match="the key is not that of a in epoch 0"):
        begin_cluster(find_url(cluster.url), cluster.app, load_cluster(file), Signer("a", cluster.key("b")), 0)
    with pytest.raises(ConfigurationError, match="has epoch 1: set epoch = 0, or run `cardinal cluster reconfigure`"):
        init(cluster, cluster.file(epoch=1), 0)
    with pytest.raises(TopicError):
        cluster.values()


# --- reconfigure ------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(cluster: TestCluster) -> tuple[TestCluster, Path]:
    """A cluster that has agreed on the blocks 1 to 20 in three batches."""
    file = cluster.file()
    init(cluster, file, 1)
    batches = [chain(1, 2), chain(3, 3), chain(4, 20)]
    values, cluster.state = cluster.claims(file, cluster.opened(file)[1], batches, "abc")
    cluster.append(values)
    return cluster, file


class Member:
    """Metrics of a member; ``scraped`` is called before they are read."""

    def __init__(self, unagreed: int, scraped: Callable[[], object] = lambda: None) -> None:
        self.unagreed = unagreed
        self.scraped = scraped

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.scraped()
        yield GaugeMetricFamily("cardinal_ingest_ready", "", value=1)
        yield GaugeMetricFamily("cardinal_ingest_cluster_unagreed_blocks", "", value=self.unagreed)


@contextmanager
def served(member: Member) -> Iterator[str]:
    """The address of a member's metrics."""
    registry = CollectorRegistry()
    registry.register(member)  # type: ignore[arg-type] # a collector by its methods
    with Endpoint("127.0.0.1:0", registry, lambda: "") as endpoint:
        yield endpoint.address


def test_the_next_epoch_continues_with_the_state_of_the_one_before(running: tuple[TestCluster, Path]) -> None:
    cluster, old = running
    cluster.promote(old, 3, 17, "b")
    new = cluster.file("abd", epoch=1)
    begun = reconfigure(cluster, old, new)
    assert (begun.head, begun.start, begun.already) == ((20, named("20a"), 20), 21, False)
    record, state = cluster.opened(new)
    assert record.previous == load_cluster(old).membership(cluster.app).cluster
    before = [cluster_before(find_url(cluster.url), cluster.app, load_cluster(one)) for one in (old, new)]
    assert before == [NO_HASH, record.previous]
    assert (record.epoch, record.start, [name for name, _ in record.members]) == (1, 21, ["a", "b", "d"])
    assert (state.num, state.highest, len(state.ring)) == (3, 20, cluster.app.reorg_threshold + 1)
    values, after = cluster.claims(new, state, [chain(21, 22)], "d")
    cluster.append(values, epoch=1)
    assert (after.num, after.head.number) == (4, 22)
    assert isinstance(decode_record(cluster.values()[-1]), Close)
    assert reconfigure(cluster, old, new).already
    assert (len(cluster.values()), len(cluster.values(1))) == (5, 2)
    with pytest.raises(ConfigurationError, match="with another cluster: its members are a, b, d, not a, b, e"):
        reconfigure(cluster, old, cluster.file("abe", epoch=1))


def test_an_epoch_does_not_end_by_wrong_files_nor_before_all_that_it_agreed_on_is_promoted(
    running: tuple[TestCluster, Path],
) -> None:
    cluster, old = running
    new, before = cluster.file("abd", epoch=1), cluster.values()
    with pytest.raises(ConfigurationError, match=r'set name = "main" and epoch = 1 in the new file'):
        reconfigure(cluster, old, cluster.file("abd", epoch=2))
    with pytest.raises(ConfigurationError, match="c is no member of epoch 1"):
        reconfigure(cluster, old, cluster.file("abd", epoch=1), by="c")
    with pytest.raises(ConfigurationError, match="is of another cluster: its members are a, b, c, not a, b, e"):
        reconfigure(cluster, cluster.file("abe"), cluster.file("abd", epoch=1))
    for marker, waiting in ((None, 3), ((1, 2), 2), ((3, 16), 1)):
        if marker is not None:
            cluster.promote(old, *marker, "b")
        with pytest.raises(ConfigurationError, match=f"^{waiting} agreed batches, up to 3, are not on the topics"):
            reconfigure(cluster, old, new)
    assert cluster.values() == before
    with pytest.raises(TopicError):
        cluster.values(1)


@pytest.mark.slow
def test_an_epoch_does_not_end_while_a_member_reports_blocks_that_are_not_agreed(
    running: tuple[TestCluster, Path],
) -> None:
    cluster, plain = running
    cluster.promote(plain, 3, 17, "b")
    member = Member(2)
    with served(member) as address:
        old = cluster.file(metrics={"b": address, "c": "127.0.0.1:1"})
        with pytest.raises(ConfigurationError, match="b has 2 acknowledged blocks that are not agreed: stop the publi"):
            reconfigure(cluster, old, cluster.file("abd", epoch=1))
        member.unagreed = 0
        begun = reconfigure(cluster, old, cluster.file("abd", epoch=1))
    assert begun.warnings == ("not checked for acknowledged blocks that are not agreed: a, c",)


@pytest.mark.slow
def test_a_batch_that_is_agreed_before_the_close_is_in_the_next_epoch(running: tuple[TestCluster, Path]) -> None:
    """It comes when the log was read already: the Close names the state before it, and counts for nothing."""
    cluster, plain = running
    cluster.promote(plain, 3, 17, "b")
    values, state = cluster.claims(plain, cluster.state, [chain(21, 21)], "c")
    member, new = Member(0, lambda: cluster.append(values)), cluster.file("abd", epoch=1)
    with served(member) as address:
        old = cluster.file(metrics={"b": address})
        with pytest.raises(ConfigurationError, match="a batch was agreed meanwhile: stop the publishers, and repeat"):
            reconfigure(cluster, old, new)
        member.scraped = lambda: None
        with pytest.raises(ConfigurationError, match=r"^1 agreed batches, up to 4, are not on the topics"):
            reconfigure(cluster, old, new)
        cluster.promote(plain, 4, 1, "b")
        assert reconfigure(cluster, old, new).head == state.head
    assert cluster.opened(new)[1].num == 4


@pytest.mark.slow
def test_a_reconfiguration_that_was_interrupted_is_continued(running: tuple[TestCluster, Path]) -> None:
    """Between the Close and the next Epoch: here the next log cannot be created."""
    cluster, old = running
    cluster.promote(old, 3, 17, "b")
    new, log = cluster.file("abd", epoch=1), claims_topic(cluster.app.default_topic, 1)
    broker = AdminClient({"bootstrap.servers": cluster.url.removeprefix("kafka://")})
    broker.create_topics([NewTopic(log, 2, 1)])[log].result(DEADLINE)
    with pytest.raises(TopicSettingError, match="partitions=2"):
        reconfigure(cluster, old, new)
    closed = cluster.values()
    assert isinstance(decode_record(closed[-1]), Close)
    delete_topics(find_url(cluster.url), [log])
    assert not reconfigure(cluster, old, new, by="b").already
    assert cluster.values() == closed
    assert cluster.opened(new)[0].id == "b"
