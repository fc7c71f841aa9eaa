"""Promotion on a real broker: fenced, each block once and in order, the marker last and decisive."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from cluster_promoters import promoter, run_of, taken, write
from confluent_kafka import Producer as RawProducer
from kafka_streams import DEADLINE, a_block, child, everything_on, named, small_stream

from cardinal.config.url import parse_url
from cardinal.errors import (
    ClientStoppedError,
    ConfigurationError,
    FencedError,
    LocalProtocolError,
    OversizeError,
    TransportError,
)
from cardinal.producer import Producer, ping_id
from cardinal.protocols.streams import Completed, Reassembler, decode
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER
from cardinal.protocols.streams.wire.messages import BATCH, PING, Ping
from cardinal.transports.kafka import delete_topics
from cardinal.transports.kafka.admin import Cluster
from cardinal.transports.kafka.settings import kafka_settings
from cardinal_ingest.cluster.promotion_writer import AGREED_HEADER, Agreed
from cardinal_ingest.cluster.reading import LogReader
from cardinal_ingest.cluster.topics import promoted_topic
from looping import on_loop

if TYPE_CHECKING:
    import subprocess

    from cardinal.apps import Application
    from cardinal.protocols.streams import Record
    from cardinal_devkit.kafka import EmbeddedKafka
    from cardinal_ingest.cluster.promotion_writer import PromotionWriter

pytestmark = pytest.mark.broker

PROMOTE = """
import asyncio, random, sys
from cluster_promoters import promoter, write
from kafka_streams import small_stream
url, stem, seed = sys.argv[1:]
async def main():
    dice = random.Random(int(seed))
    writer = promoter(url, small_stream(stem))
    print("ready", flush=True)
    sys.stdin.readline()
    at = int(await writer.take() or 0)
    print(at, flush=True)
    while True:
        count = dice.randint(1, 5)
        await write(writer, at, count)
        at += count
        print(at, flush=True)
asyncio.run(main())
"""


def markers(url: str, app: Application) -> list[bytes]:
    """All committed markers."""
    return [record.value for record in everything_on(url, app, [promoted_topic(app.default_topic)])]


def open_markers(url: str, app: Application) -> int:
    """Markers of a transaction that is open."""
    cluster, tp = Cluster(kafka_settings(parse_url(url))), (promoted_topic(app.default_topic), 0)
    return cluster.ends([tp], committed=False)[tp] - cluster.ends([tp])[tp]


def promoted(records: list[Record]) -> list[Agreed]:
    """The places of promoted Batches, in their order in one partition."""
    batches = [record for record in records if record.key[0] == BATCH]
    assert all(record.partition == 0 for record in batches)
    return [place for place in map(Agreed.of, batches) if place is not None]


def assert_each_once_and_complete(records: list[Record], count: int) -> None:
    """The first so many blocks, in order, and nothing else but pings."""
    records = [record for record in records if record.key[0] != PING]
    assert promoted(records) == [place for place, _ in run_of(0, count)]
    assert len(records) == len({record.key for record in records})
    events = Reassembler(("a/",), prefixes=("a/",)).receive(records)
    complete = {event.payload.hash for event in events if isinstance(event, Completed)}
    assert complete == {named(f"{number + 1}a") for number in range(count)}


class Halt:
    """Stops the next transaction of a writer when so many of its stages are acknowledged, until it is released."""

    def __init__(self, writer: PromotionWriter, stages: int, patch: pytest.MonkeyPatch) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        owner = writer._owner
        assert owner is not None
        sink: Any = owner.sink
        send, left = sink._send, iter(range(stages - 1, -1, -1))

        def stop_after(stage: object) -> None:
            send(stage)
            if next(left, -1) == 0:
                self.reached.set()
                self.released.wait(DEADLINE)

        patch.setattr(sink, "_send", stop_after)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, DEADLINE)


@on_loop
async def test_a_write_is_sealed_placed_and_followed_by_its_marker(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?partitions=1"
    writer = promoter(url, app)
    assert not writer.usable
    with pytest.raises(LocalProtocolError, match="take promotion"):
        await write(writer, 0)
    assert await writer.take() is None
    follower = LogReader(url, promoted_topic(app.default_topic))
    assert await follower.open_at_last() is None
    await asyncio.gather(*(write(writer, at, 4) for at in (0, 4, 8)))
    records = everything_on(url, app)
    assert_each_once_and_complete(records, 12)
    assert all((PRODUCER_HEADER, b"cluster:c") in record.headers for record in records)
    pings = [decode(record.key, record.value) for record in records if record.key[0] == PING]
    assert [ping.producer_id for ping in pings if isinstance(ping, Ping)] == [ping_id("cluster:c")]
    batch = next(record for record in records if Agreed.of(record) == Agreed(1, 2))
    assert batch.headers[1] == (SEALED_HEADER, b"1")
    assert dict(batch.headers)[AGREED_HEADER] == bytes.fromhex("0000000000000001 00000002")
    assert markers(url, app) == [b"4", b"8", b"12"]
    async with asyncio.timeout(DEADLINE):
        seen: list[bytes] = []
        while len(seen) < 3:
            seen += [marker.value for marker in await follower.read()]  # type: ignore[union-attr] # the log is new
    assert seen == [b"4", b"8", b"12"]
    late = LogReader(url, promoted_topic(app.default_topic))
    last = await late.open_at_last()
    assert last is not None
    assert (last.key, last.value) == (b"eth", b"12")
    assert await promoter(url, app).take() == b"12"
    for one in (follower, late, writer):
        await one.close()


@pytest.mark.parametrize("stages", [1, 2, 3], ids=["content", "Batches", "marker"])
@on_loop
async def test_a_second_promoter_ends_the_first_in_mid_transaction(
    cardinal_broker: EmbeddedKafka, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of it was acknowledged is not visible, the marker decides, and each block is there once."""
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?partitions=1"
    first, second = promoter(url, app), promoter(url, app)
    await first.take()
    await write(first, 0, 2)
    halt = Halt(first, stages, monkeypatch)
    open_ = asyncio.ensure_future(write(first, 2, 2))
    behind = asyncio.ensure_future(write(first, 4, 1))
    await halt.wait()
    assert open_markers(url, app) == (1 if stages == 3 else 0), "the marker is sent when the Batches are acknowledged"
    assert await second.take() == b"2"
    assert_each_once_and_complete(everything_on(url, app), 2)
    await write(second, 2, 3)
    halt.released.set()
    for failed in (open_, behind):
        with pytest.raises(FencedError):
            await failed
    assert not first.usable
    with pytest.raises(FencedError):
        await write(first, 5)
    await write(second, 5)
    assert_each_once_and_complete(everything_on(url, app), 6)
    assert markers(url, app) == [b"2", b"5", b"6"]
    assert await first.take() == b"6", "with a new producer"
    await first.close()
    await second.close()


@on_loop
async def test_aborted_transactions_at_the_end_of_the_log_hide_no_marker(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}"
    writer = promoter(url, app)
    await writer.take()
    await write(writer, 0, 2)
    await writer.close()
    topic = promoted_topic(app.default_topic)
    config = {**cardinal_broker.client_config(), "transactional.id": topic, "log_level": 0}
    other = RawProducer(config)
    other.init_transactions(DEADLINE)
    for number in range(40):
        other.begin_transaction()
        other.produce(topic, f"lost {number}".encode(), b"eth")
        other.flush(DEADLINE)
        other.abort_transaction(DEADLINE)
    other.begin_transaction()
    other.produce(topic, b"open", b"eth")
    other.flush(DEADLINE)
    assert await writer.take() == b"2"
    assert markers(url, app) == [b"2"]
    await writer.close()


@on_loop
async def test_without_markers_the_highest_agreed_header_replaces_them(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?partitions=3"
    writer = promoter(url, app)
    await writer.take()
    await write(writer, 0, 2)
    await write(writer, 2, 3)
    await writer.close()
    delete_topics(parse_url(url), [promoted_topic(app.default_topic)])
    with Producer(url, app, producer_id="direct") as direct:
        for number in range(6, 100):
            direct.add(a_block(f"{number}a", f"{number - 1}a", values=1))
    writer = promoter(url, app)
    assert await writer.take() == Agreed(1, 1)
    await write(writer, 5)
    assert await writer.take() == b"6"
    await writer.close()


@on_loop
async def test_a_block_that_cannot_be_written_leaves_the_promoter_usable(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?partitions=1&max.message.bytes=2000"
    writer = promoter(url, app)
    await writer.take()
    with pytest.raises(OversizeError):
        await writer.write([(Agreed(0, 0), a_block("1a", "0a", size=2000))], b"1")
    with pytest.raises(OversizeError):
        await writer.write(run_of(0, 1), bytes(2000))
    assert writer.usable
    await write(writer, 0)
    assert_each_once_and_complete(everything_on(url, app), 1)
    await writer.close()
    with pytest.raises(ConfigurationError, match=r"leave transactional\.id out"):
        promoter(f"{url}&transactional.id=mine", app)


@pytest.mark.slow
@on_loop
async def test_a_producer_that_met_a_failure_or_lost_a_connection_is_never_used_again(
    cardinal_killable_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = small_stream()
    url = f"kafka://{cardinal_killable_broker.bootstrap}?partitions=1"
    writer = promoter(f"{url}&transaction.timeout.ms=20000", app)
    await writer.take()
    await write(writer, 0)
    # The broker is restarted within a transaction: whether it commits, the marker says, also where no answer came.
    # The producer is discarded in any case.
    halt = Halt(writer, 3, monkeypatch)
    restarted = asyncio.ensure_future(write(writer, 1))
    behind = asyncio.ensure_future(write(writer, 2))
    await halt.wait()
    cardinal_killable_broker.kill()
    await asyncio.to_thread(cardinal_killable_broker.start)
    halt.released.set()
    (end,) = await asyncio.gather(restarted, return_exceptions=True)
    assert not writer.usable
    with pytest.raises(ClientStoppedError):
        await behind
    at = await taken(writer)
    assert at == 2 or (at == 1 and end is not None), "what was acknowledged is committed"
    # A message is not acknowledged: nothing is committed, and the producer is discarded.
    await writer.close()
    impatient = promoter(f"{url}&transaction.timeout.ms=1500", app)
    assert await taken(impatient) == at
    halt = Halt(impatient, 1, monkeypatch)
    failing = asyncio.ensure_future(write(impatient, at, 2))
    await halt.wait()
    cardinal_killable_broker.pause()
    halt.released.set()
    with pytest.raises(TransportError):
        await failing
    assert not impatient.usable
    cardinal_killable_broker.resume()
    assert await taken(impatient) == at
    await write(impatient, at, 2)
    assert_each_once_and_complete(everything_on(url, app), at + 2)
    await impatient.close()


def killed_at_random(process: subprocess.Popen[str], dice: random.Random) -> int:
    """Let a process promote, kill it anywhere, and return the number of blocks that it knew of as promoted."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(dice.uniform(0.2, 1.4))  # the kill is to hit anything, also what nobody thought of
    process.kill()
    return max(map(int, process.stdout.read().split("\n")[:-1]), default=0)


@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.soak)])
def test_promoters_killed_anywhere_leave_each_block_once_in_order(cardinal_broker: EmbeddedKafka, kills: int) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?partitions=1"
    stem, dice, seen = app.default_topic.removesuffix("-block"), random.Random(kills), 0
    with ExitStack() as opened:
        following = opened.enter_context(child(PROMOTE, url, stem, "0"))
        for seed in range(1, kills + 1):
            busy, following = following, opened.enter_context(child(PROMOTE, url, stem, str(seed)))
            count = killed_at_random(busy, dice)
            assert count == 0 or count >= seen, "whoever takes promotion knows all that was promoted"
            seen = max(seen, count)

    async def take_over() -> int:
        writer = promoter(url, app)
        count = await taken(writer)
        await write(writer, count)
        await writer.close()
        return count + 1

    count = asyncio.run(take_over())
    assert count > seen > 0
    assert_each_once_and_complete(everything_on(url, app), count)
    numbers = [int(value) for value in markers(url, app)]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count
