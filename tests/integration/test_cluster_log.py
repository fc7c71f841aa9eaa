"""Topics of an ingest cluster on a real broker: settings, and the claim log in offset order across kills."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.config.url import parse_url
from cardinal.errors import ConfigurationError, TopicError, TransportError, UnreachableError
from cardinal.transports.kafka import delete_topics
from cardinal.transports.kafka.admin import Cluster, TopicAdmin
from cardinal.transports.kafka.settings import kafka_settings
from cardinal_devkit.kafka import EmbeddedCluster
from cardinal_ingest.cluster.claims import ClaimWriter
from cardinal_ingest.cluster.reading import LogBounds, LogReader, LogRecord, OutOfRange
from cardinal_ingest.cluster.topics import ClusterTopics, claims_topic, promoted_topic
from cardinal_ingest.errors import TopicSettingError
from looping import on_loop

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.transports.kafka.admin import TopicState
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker

DEADLINE = 60.0
CLAIMS = {"retention.ms": "-1", "cleanup.policy": "delete"}
PROMOTED = {"cleanup.policy": "compact"}


def fresh() -> str:
    """The default topic of a stream that no other test has."""
    return f"{uuid.uuid4().hex[:12]}-block"


def state_of(url: str, topic: str) -> TopicState | None:
    settings = kafka_settings(parse_url(url))
    return TopicAdmin(settings, Cluster(settings)).state(topic)


def create(broker: EmbeddedKafka, topic: str, config: dict[str, str], partitions: int = 1) -> None:
    admin = AdminClient({**broker.client_config(), "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(DEADLINE)


def test_the_names_are_those_of_the_default_topic() -> None:
    assert claims_topic("eth-block", 3) == "eth-block-claims-3"
    assert promoted_topic("eth-block") == "eth-block-promoted"


def test_topics_are_created_once_and_a_single_broker_is_a_warning(
    cardinal_broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    topics = ClusterTopics(url, stem)
    with caplog.at_level(logging.WARNING, "cardinal.ingest"):
        claims = topics.create_claims(0)
        promoted = topics.ensure_promoted()
    assert [text.count("created with 1 of 3 replicas") for text in caplog.messages] == [1, 1]
    found, marked = state_of(url, claims), state_of(url, promoted.name)
    assert found is not None
    assert marked is not None
    assert (found.partitions, found.replicas, marked.partitions) == (1, 1, 1)
    expected = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}
    assert expected.items() <= found.config.items()
    assert marked.config["cleanup.policy"] == "compact"
    assert {one.config["unclean.leader.election.enable"] for one in (found, marked)} == {"false"}
    caplog.clear()
    assert topics.create_claims(0) == topics.check_claims(0) == claims
    assert topics.ensure_promoted() == promoted
    assert not caplog.messages


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        ({"retention.ms": "604800000"}, "retention.ms"),
        ({"retention.bytes": "1073741824"}, "retention.bytes"),
        ({"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_claims_that_could_be_lost_are_refused_by_name(
    cardinal_broker: EmbeddedKafka, config: dict[str, str], setting: str
) -> None:
    stem = fresh()
    topic = claims_topic(stem, 0)
    create(cardinal_broker, topic, {**CLAIMS, **config})
    topics = ClusterTopics(f"kafka://{cardinal_broker.bootstrap}", stem)
    for check in (topics.create_claims, topics.check_claims):
        with pytest.raises(TopicSettingError) as caught:
            check(0)
        error = caught.value
        found = config[setting]
        assert (error.topic, error.setting, error.found) == (topic, setting, found)
        assert f"the topic {topic} has {setting}={found}, and an ingest cluster needs {error.needed}" in str(error)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        ({"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_markers_that_could_be_lost_are_refused_by_name(
    cardinal_broker: EmbeddedKafka, config: dict[str, str], setting: str
) -> None:
    stem = fresh()
    create(cardinal_broker, promoted_topic(stem), {**PROMOTED, **config})
    with pytest.raises(TopicSettingError) as caught:
        ClusterTopics(f"kafka://{cardinal_broker.bootstrap}", stem).ensure_promoted()
    assert (caught.value.topic, caught.value.setting) == (promoted_topic(stem), setting)


def test_a_second_partition_and_missing_replicas_are_refused_by_name(cardinal_broker: EmbeddedKafka) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    create(cardinal_broker, claims_topic(stem, 0), CLAIMS, partitions=2)
    create(cardinal_broker, claims_topic(stem, 1), CLAIMS)
    with pytest.raises(TopicSettingError, match="has partitions=2, and an ingest cluster needs 1: "):
        ClusterTopics(url, stem).check_claims(0)
    assert ClusterTopics(url, stem).check_claims(1) == claims_topic(stem, 1)
    with pytest.raises(TopicSettingError, match=r"has replication\.factor=1, and an ingest cluster needs 3 at least"):
        ClusterTopics(f"{url}?replication=3", stem).check_claims(1)


def test_a_missing_claim_log_is_not_created_where_one_is_expected(cardinal_broker: EmbeddedKafka) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    with pytest.raises(TopicError, match="cluster init") as caught:
        ClusterTopics(url, stem).check_claims(7)
    assert caught.value.topic == claims_topic(stem, 7)
    assert state_of(url, claims_topic(stem, 7)) is None


def test_another_transport_cannot_agree() -> None:
    with pytest.raises(ConfigurationError, match="memory:// is another transport"):
        ClusterTopics("memory://here", "eth-block")


@pytest.mark.slow
def test_three_brokers_hold_three_replicas_and_the_loss_of_one_is_borne(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stem = fresh()
    with EmbeddedCluster(tmp_path) as brokers:
        url = f"kafka://{brokers.bootstrap}"
        topics = ClusterTopics(url, stem)
        with caplog.at_level(logging.WARNING, "cardinal.ingest"):
            states = [state_of(url, topics.create_claims(0)), state_of(url, topics.ensure_promoted().name)]
        assert not caplog.messages
        assert [(one.replicas, one.config["min.insync.replicas"]) for one in states if one] == [(3, "2")] * 2
        create(brokers.node(1), claims_topic(stem, 1), CLAIMS)
        with pytest.raises(TopicSettingError, match=r"replication\.factor=1"):
            topics.check_claims(1)
        writer = ClaimWriter(url, claims_topic(stem, 0))
        assert writer.append(b"eth", b"0").result(DEADLINE) == 0
        brokers.node(3).kill()
        assert writer.append(b"eth", b"1").result(DEADLINE) in (1, None)
        writer.close()


# --- the claim log --------------------------------------------------------------------------------------------------


class ClaimLog:
    """A claim log of its own, and what is read of it."""

    def __init__(self, broker: EmbeddedKafka, options: str = "") -> None:
        self.url = f"kafka://{broker.bootstrap}{options}"
        self.topics = ClusterTopics(self.url, f"{uuid.uuid4().hex[:12]}-block")
        self.topic = self.topics.create_claims(0)
        self.writer = ClaimWriter(self.url, self.topic)
        self.reader = LogReader(self.url, self.topic)

    def append(self, *values: str) -> list[int | None]:
        sent = [self.writer.append(b"eth", value.encode()) for value in values]
        return [one.result(DEADLINE) for one in sent]

    async def read(self, count: int) -> list[LogRecord]:
        """So many records at least."""
        found: list[LogRecord] = []
        async with asyncio.timeout(DEADLINE):
            while len(found) < count:
                records = await self.reader.read()
                assert not isinstance(records, OutOfRange)
                found += records
        return found

    async def close(self) -> None:
        await self.reader.close()
        await asyncio.to_thread(self.writer.close)


def claims(low: int, high: int) -> list[LogRecord]:
    return [LogRecord(offset, b"eth", str(offset).encode()) for offset in range(low, high)]


@on_loop
async def test_claims_are_read_in_order_from_an_offset_on_and_as_they_come(
    cardinal_broker: EmbeddedKafka,
) -> None:
    log = ClaimLog(cardinal_broker)
    assert log.append(*map(str, range(300))) == list(range(300))
    assert await log.reader.open(0) == LogBounds(0, 300)
    assert await log.read(300) == claims(0, 300)
    assert await log.reader.open(297) == LogBounds(0, 300)
    waiting = asyncio.ensure_future(log.read(5))
    assert await asyncio.to_thread(log.append, "300", "301") == [300, 301]
    assert await waiting == claims(297, 302)
    await log.close()


@on_loop
async def test_a_read_that_is_cancelled_loses_nothing(cardinal_broker: EmbeddedKafka) -> None:
    log = ClaimLog(cardinal_broker)
    assert await log.reader.open(0) == LogBounds(0, 0)
    found: list[LogRecord] = []
    async with asyncio.timeout(DEADLINE):
        while len(found) < 30:
            reading = asyncio.ensure_future(log.read(1))
            await asyncio.to_thread(log.append, str(len(found)))
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found += await reading
                continue
            found += await log.read(1)
    assert found == claims(0, 30)
    await log.close()


@on_loop
async def test_an_offset_that_the_log_does_not_have_is_a_value(cardinal_broker: EmbeddedKafka) -> None:
    log = ClaimLog(cardinal_broker)
    assert await log.reader.open(0) == LogBounds(0, 0)
    assert await log.reader.open(1) == OutOfRange(1, LogBounds(0, 0))
    log.append(*map(str, range(10)))
    before = TopicPartition(log.topic, 0, 6)
    admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
    await asyncio.to_thread(admin.delete_records([before])[TopicPartition(log.topic, 0)].result, DEADLINE)
    assert await log.reader.open(5) == OutOfRange(5, LogBounds(6, 10))
    assert await log.reader.open(6) == LogBounds(6, 10)
    assert await log.read(4) == claims(6, 10)
    assert await log.reader.open(10) == LogBounds(6, 10), "all is read, and more may come"
    assert await log.reader.open(11) == OutOfRange(11, LogBounds(6, 10))
    await log.close()


@pytest.mark.slow
@on_loop
async def test_a_reader_and_a_writer_outlive_their_broker(cardinal_killable_broker: EmbeddedKafka) -> None:
    log = ClaimLog(cardinal_killable_broker, "?message.timeout.ms=3000")
    log.append(*map(str, range(5)))
    assert await log.reader.open(3) == LogBounds(0, 5)
    assert await log.read(2) == claims(3, 5)
    waiting = asyncio.ensure_future(log.read(1))
    cardinal_killable_broker.kill()
    with pytest.raises(UnreachableError, match="while appending a claim"):
        await asyncio.to_thread(log.append, "lost")
    await asyncio.to_thread(cardinal_killable_broker.start)
    async with asyncio.timeout(DEADLINE):
        while True:  # the caller's retries
            try:
                await asyncio.to_thread(log.append, "5")
            except UnreachableError:
                continue
            break
    (first, *_) = await waiting
    assert first == LogRecord(5, b"eth", b"5"), "the next one, and none twice"
    await log.close()


@on_loop
async def test_a_deleted_log_ends_the_reader(cardinal_broker: EmbeddedKafka) -> None:
    log = ClaimLog(cardinal_broker)
    log.append("0")
    await log.reader.open(1)
    delete_topics(parse_url(log.url), [log.topic])
    with pytest.raises(TopicError) as caught:
        async with asyncio.timeout(DEADLINE):
            await log.reader.read()
    assert caught.value.topic == log.topic
    await log.close()


@on_loop
async def test_a_claim_that_no_broker_takes_fails_alone(cardinal_broker: EmbeddedKafka) -> None:
    log = ClaimLog(cardinal_broker, "?cardinal.max.message.bytes=2000")
    with pytest.raises(TransportError, match="while appending a claim"):
        log.writer.append(b"eth", bytes(4_000)).result(DEADLINE)
    assert log.append("0") == [0]
    log.writer.close()
    with pytest.raises(TransportError, match="closed"):
        log.writer.append(b"eth", b"1")
    await log.close()
