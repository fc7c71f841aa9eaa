"""The claim log of an ingest cluster on a real broker: appended, read in offset order, across a broker's death."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cardinal.config.url import parse_url
from cardinal.errors import TopicError, TransportError, UnreachableError
from cardinal.server.ingest.cluster.claims import ClaimWriter
from cardinal.server.ingest.cluster.reading import LogBounds, LogReader, LogRecord, OutOfRange
from cardinal.server.ingest.cluster.topics import ClusterTopics
from cardinal.transports.kafka import delete_topics
from looping import on_loop

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker

DEADLINE = 60.0


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
    assert await log.reader.bounds() == LogBounds(0, 302)
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
