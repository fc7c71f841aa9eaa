"""Clients of one server: fast, slow, old, and such that accept nothing; topics and channels that change under them."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from commands import fresh_chain_id
from websockets.asyncio.client import connect as asyncio_connect

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import CursorExpiredError, TopicError
from cardinal.protocols.streams.types import Routed
from cardinal.transports import list_topics, open_sink, open_source
from cardinal_devkit import ChainGenerator, MemoryBroker
from cardinal_relay.transport.protocol import SUBPROTOCOL, GetWatermarks, encode_message
from scripted_server import begin, grant, greedy, join
from serving import APP, DEADLINE, Served, fill, from_start, publish, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardinal.protocols.streams import ChainUpdate, Payload, Record
    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal_devkit.kafka import EmbeddedKafka


MAKER = ChainGenerator(seed=11)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def heaviest(payloads: list[Payload]) -> Payload:
    return max(payloads, key=lambda payload: payload.weight)


def follow(url: str, head: bytes, *, start: str = "earliest", pause: float = 0.0) -> list[ChainUpdate]:
    """Updates until this block is the head; ``pause`` seconds of work for each of them."""
    work = threading.Event()
    updates = []
    with Consumer(url, APP, start=start, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            updates.append(update)
            if update.added and update.added[-1].hash == head:
                return updates
            work.wait(pause)
    raise AssertionError(f"{url}: {len(updates)} updates, and not to the end")


def chain_of(updates: list[ChainUpdate]) -> list[bytes]:
    """The chain that these updates build; each removes what stands on top, and the numbers go on."""
    chain: list[bytes] = []
    seq = updates[0].first_seq
    for update in updates:
        assert update.first_seq == seq
        seq = update.seq + 1
        for block in update.removed:
            assert chain.pop() == block.hash
        chain += [block.hash for block in update.added]
    return chain


def content_of(updates: list[ChainUpdate]) -> dict[bytes, object]:
    return {block.hash: block for update in updates for block in update.added}


def test_a_consumer_over_websocket_equals_one_over_memory_and_their_cursors_are_interchangeable(
    broker: MemoryBroker,
) -> None:
    payloads = MAKER.payloads(60)
    parts = [payloads[:20], payloads[20:40], payloads[40:]]
    heads = [heaviest(payloads[:end]).hash for end in (20, 40, None)]
    with serving(broker.url, APP) as served:
        # Each of these reads a third with the first of its URLs, the next with the second, and so on.
        ways: dict[tuple[str, ...], list[ChainUpdate]] = {
            (broker.url, broker.url, broker.url): [],
            (served.url, served.url, served.url): [],
            (broker.url, served.url, broker.url): [],
            (served.url, broker.url, served.url): [],
        }
        for turn, (part, head) in enumerate(zip(parts, heads, strict=True)):
            publish(broker.url, APP, part)
            for urls, updates in ways.items():
                updates.extend(follow(urls[turn], head, start=str(updates[-1].cursor) if updates else "earliest"))
    (expected, *others) = ways.values()
    for updates in others:
        assert chain_of(updates) == chain_of(expected)
        assert all(content_of(updates)[name] == content_of(expected)[name] for name in chain_of(expected))


def test_the_stream_is_found_by_name_and_nothing_else_is_shown(broker: MemoryBroker) -> None:
    broker.create("another")
    channel = f"{APP.default_topic}-re-{'ab' * 32}"
    with serving(broker.url, APP) as served:
        broker.create(channel, partitions=1)
        assert list_topics(served.url) == {*APP.all_topics, channel}
        for topics in (["another"], [channel, APP.default_topic]):
            with pytest.raises(TopicError):
                open_source(served.url, APP, topics=topics)
        source = from_start(open_source(served.url, APP, topics=[channel]))
        assert source.partitions() == ((channel, 0),)
        assert len(read(source, 1)) == 1
        source.close()


def test_partitions_that_are_added_are_served(broker: MemoryBroker) -> None:
    topic = APP.default_topic
    with serving(broker.url, APP) as served:
        source = from_start(open_source(served.url, APP))
        broker.widen(topic, 5)
        until(lambda: (topic, 4) in source.partitions())
        source.assign(source.positions() | {(topic, 3): 0, (topic, 4): 0})
        seen = []
        until(lambda: seen.extend(source.poll(100, 0.1)) or {(topic, 3), (topic, 4)} <= {one[:2] for one in seen})
        source.close()


def test_a_client_that_stops_reading_holds_no_more_than_its_window_and_loses_nothing(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, buffer_bytes=100_000) as served:
        source = from_start(open_source(f"{served.url}?window.bytes=50000", APP))
        fill(broker, 3_000, 1_000)
        until(lambda: served.status.read_records_total >= 3_000)
        sent = served.status.sent_bytes_total
        assert sent < 50_000 + 2 * (256 << 10)
        assert served.status.ring_bytes <= 100_000
        found = read(source, len(broker.records()))
        assert sorted(found) == broker.records()
        source.close()


@pytest.mark.slow
def test_a_client_that_leaves_without_reading_its_answers_is_released(broker: MemoryBroker) -> None:
    request = encode_message(GetWatermarks(1, tuple(APP.all_topics)))

    async def leave(url: str) -> None:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        plain.connect(("127.0.0.1", served.port))
        plain.settimeout(0)
        client = await asyncio_connect(url, sock=plain, subprotocols=[SUBPROTOCOL], compression=None, proxy=None)
        client.transport.pause_reading()
        while not served.status.unsent_bytes:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.send(request)
        client.transport.abort()

    with serving(broker.url, APP) as served:
        asyncio.run(leave(served.url))
        until(lambda: served.status.clients == 0)


def test_one_in_the_ring_that_takes_nothing_is_left_alone(broker: MemoryBroker) -> None:
    with (
        serving(broker.url, APP, slow_timeout=0.1) as served,
        join(served.url) as socket,
    ):
        begin(socket, APP.default_topic, 1)
        fill(broker, 100, 1_000)
        with pytest.raises(TimeoutError):
            socket.recv(1.0)
        grant(socket, 1_000)
        assert isinstance(socket.recv(DEADLINE), bytes)


def test_records_that_expire_under_a_slow_client_are_named(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, buffer_bytes=20_000) as served:
        source = from_start(open_source(f"{served.url}?window.bytes=10000", APP))
        fill(broker, 2_000, 1_000)
        until(lambda: served.status.read_records_total >= 2_000)
        low = min(high for _, high in (source.watermarks()[APP.default_topic, n] for n in range(3))) - 5
        for number in range(3):
            broker.trim(APP.default_topic, number, low)
        with pytest.raises(CursorExpiredError, match="retention") as caught:
            read(source, 2_000)
        (where, (position, limit)), *_ = caught.value.missing.items()
        assert position == source.positions()[where]
        assert limit == low
        source.assign(dict.fromkeys(caught.value.missing, low))
        assert source.poll(1, DEADLINE)
        source.close()


def test_a_stalled_client_does_not_keep_others_from_catching_up(broker: MemoryBroker) -> None:
    fill(broker, 3_000, 1_000)
    with serving(broker.url, APP, buffer_bytes=20_000, catch_up_max=1) as served:
        stalled = [from_start(open_source(f"{served.url}?window.bytes=5000", APP)) for _ in range(3)]
        until(lambda: served.status.catch_up_clients)
        with ThreadPoolExecutor(6) as pool:
            total = len(broker.records())
            others = [pool.submit(_read_all, served, total) for _ in range(6)]
            assert {other.result(60) for other in others} == {total}
        for source in stalled:
            assert len(read(source, total)) == total
            source.close()


def _read_all(served: Served, total: int) -> int:
    source = from_start(open_source(served.url, APP))
    try:
        return len({one[:3] for one in read(source, total)})
    finally:
        source.close()


CLIENTS, ROUNDS, RECORDS = 100, 10, 60


@pytest.mark.slow
def test_a_hundred_clients_of_which_a_third_is_slow_all_get_everything_once_and_in_order() -> None:
    found: dict[int, list[Record]] = {number: [] for number in range(CLIENTS)}
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker, ExitStack() as stack:
        sink = broker.sink(APP, producer_id="a")
        # A ring of a tenth of all records: who is slow has to be caught up from the source, four at a time.
        served = stack.enter_context(serving(broker.url, APP, buffer_bytes=40_000, catch_up_max=4))
        sources: list[Source] = []
        for number in range(CLIENTS):
            source = open_source(served.url + ("?window.bytes=2000" if number % 3 == 0 else ""), APP)
            stack.callback(source.close)
            sources.append(from_start(source))
        assert served.status.clients == CLIENTS
        for turn in range(ROUNDS):
            keys = (b"\x03" + (turn * RECORDS + n).to_bytes(32, "big") for n in range(RECORDS))
            sink.send([Routed(APP.default_topic, key, random.Random(turn).randbytes(500)) for key in keys], None)
            sink.flush(20)
            for number, source in enumerate(sources):
                if number % 3:  # the slow ones take nothing until all is written
                    found[number] += source.poll(1_000, 0.0)
        sink.close()
        total = len(broker.records())

        def everybody_has_everything() -> bool:
            for number, source in enumerate(sources):
                if len(found[number]) < total:
                    found[number] += source.poll(1_000, 0.0)
            return all(len(records) >= total for records in found.values())

        until(everybody_has_everything, 60)
        status = served.status
        expected = broker.records()
    assert all(sorted(records) == expected for records in found.values())
    for records in found.values():
        for where in {record[:2] for record in records}:
            offsets = [record.offset for record in records if record[:2] == where]
            assert offsets == sorted(offsets)
    assert (status.slow_clients_closed_total, status.protocol_errors_total) == (0, 0)
    assert status.ring_bytes <= 40_000


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such bound")
def test_the_system_takes_little_for_a_client_that_takes_nothing() -> None:
    app = ChainGenerator().application
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, ExitStack() as stack:
        sink = broker.sink(app, producer_id="a")
        sink.send([Routed(app.default_topic, _key(0, n), bytes(10_000)) for n in range(1_000)], None).result(DEADLINE)
        served = stack.enter_context(serving(broker.url, app, compression="none"))
        plain = stack.enter_context(socket.socket())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)  # its own side's buffers are no matter here
        plain.connect(("127.0.0.1", served.port))
        greedy(stack, served.url, app.default_topic, 0, plain)
        until(lambda: served.status.unsent_bytes)
        assert served.status.sent_bytes_total < 2 << 20
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system takes all of it for the client")
def test_a_client_that_takes_nothing_of_what_it_has_credit_for_is_closed_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker, ExitStack() as stack:
        sink = broker.sink(APP, producer_id="a")
        sink.send([Routed(APP.default_topic, _key(0, n), bytes(10_000)) for n in range(1_000)], None).result(DEADLINE)
        served = stack.enter_context(serving(broker.url, APP, compression="none", slow_timeout=0.2))
        plain = stack.enter_context(socket.socket())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        plain.connect(("127.0.0.1", served.port))
        greedy(stack, served.url, APP.default_topic, 0, plain)
        until(lambda: served.status.slow_clients_closed_total == 1 and not served.status.clients)
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING" and one.name == "cardinal.serve"]
    assert [text.partition(" is closed: ")[2] for text in said] == ["it accepted nothing for 0.2 s"]


def _key(block: int, number: int) -> bytes:
    return b"\x03" + (block * 1_000 + number).to_bytes(32, "big")


CHANNEL = f"{APP.default_topic}-re-ab"


class Broker(MemoryBroker):
    """A broker in memory, one of whose topics may be deleted for a while."""

    deleted = ""

    def read(self, positions: Mapping[Partition, int], limit: int, timeout: float) -> list[Record]:
        if any(topic == self.deleted for topic, _ in positions):
            raise TopicError(f"the topic {self.deleted} is gone", topic=self.deleted)
        return super().read(positions, limit, timeout)


@pytest.fixture
def channels() -> Iterator[Broker]:
    with Broker(uuid.uuid4().hex, partitions=1) as channels:
        channels.sink(APP, producer_id="a").close()
        yield channels


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system buffers all of it for the slow one")
def test_a_catch_up_read_of_a_slow_client_that_has_credit_ends_while_others_wait(channels: Broker) -> None:
    sink = channels.sink(APP, producer_id="a")
    sink.send([Routed(APP.default_topic, b"\x03%032d" % n, bytes(10_000)) for n in range(2_000)], None).result(DEADLINE)
    with ExitStack() as stack:
        served = stack.enter_context(
            serving(channels.url, APP, buffer_bytes=50_000, catch_up_max=1, compression="none")
        )
        plain = stack.enter_context(socket.socket())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        plain.connect(("127.0.0.1", served.port))
        greedy(stack, served.url, APP.default_topic, 0, plain)
        until(lambda: served.status.unsent_bytes and served.status.catch_up_clients)
        other = from_start(open_source(served.url, APP, topics=[APP.default_topic]))
        stack.callback(other.close)
        total = len(channels.records(APP.default_topic))
        assert len(read(other, total)) == total
        assert served.status.slow_clients_closed_total == 0
        assert served.status.sent_records_total < 2 * total, "the slow one has everything too"
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()


def test_a_client_that_leaves_a_deleted_channel_leaves_the_recreated_one_to_the_others(channels: Broker) -> None:
    sink = channels.sink(APP, producer_id="a")
    sink.open_channel(CHANNEL)
    sink.close()
    with serving(channels.url, APP) as served, ExitStack() as stack:
        old, new, late = (stack.enter_context(join(served.url)) for _ in range(3))
        begin(old, CHANNEL, 0)
        channels.deleted = CHANNEL
        assert "topic" in str(old.recv(DEADLINE)).lower()
        channels.deleted = ""
        begin(new, CHANNEL, 0)
        old.close()
        until(lambda: served.status.clients == 2 and _readers() == 2)  # of the application's topics, and of the channel
        begin(late, CHANNEL, 0)
        assert _readers() == 2, "the channel is read twice"


def _readers() -> int:
    return sum(thread.name == "cardinal-serve-read" for thread in threading.enumerate())


def _poll(source: Source) -> None:
    """Until it raises."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        source.poll(10, 0.2)


def _cut(broker: MemoryBroker, kept: int) -> None:
    """Every partition loses its newest records, as where a broker that lacked them leads, or topics are made anew."""
    with broker._changed:
        for log in broker._logs.values():
            del log.records[kept:]
        broker._changed.notify_all()


@pytest.mark.parametrize("kept", [0, 3])
def test_records_that_are_no_longer_there_end_a_reading_as_they_end_a_direct_one(
    broker: MemoryBroker, kept: int
) -> None:
    """Also that of a client which had paused, whose offsets are filled with other records by the time it goes on."""
    fill(broker, 20)
    with serving(broker.url, APP) as served:
        direct = from_start(open_source(broker.url, APP))
        source, paused = (from_start(open_source(served.url, APP)) for _ in range(2))
        for each in (direct, source, paused):
            read(each, len(broker.records()))
        paused.pause(paused.positions())
        stood = source.positions()
        _cut(broker, kept)
        for each in (direct, source):
            with pytest.raises(CursorExpiredError) as caught:
                _poll(each)
            assert all(stood[where] == at for where, (at, _) in caught.value.missing.items())
            assert caught.value.missing
        fill(broker, 100)
        paused.pause(())
        with pytest.raises(CursorExpiredError):
            _poll(paused)
        assert served.status.upstream_connected
        for each in (source, paused):  # and both may begin again
            assert sorted(read(from_start(each), len(broker.records()))) == broker.records()
            each.close()


def test_what_retention_removes_before_the_server_has_read_it_ends_nobody_who_does_not_need_it(
    broker: MemoryBroker,
) -> None:
    with serving(broker.url, APP) as served:
        source = open_source(served.url, APP)
        source.assign({where: high for where, (_, high) in source.watermarks().items()})
        with broker._changed:  # written and removed in one moment
            for topic, number in broker._logs:
                for _ in range(5):
                    broker._append(topic, number, b"k", b"v", ())
                broker.trim(topic, number, 3)
            broker._changed.notify_all()
        with pytest.raises(CursorExpiredError, match="retention"):  # it needs them: it has read 1 of each
            _poll(source)
        low = {where: marks[0] for where, marks in broker.marks(source.partitions()).items()}
        source.assign(low)
        read(source, len(broker.records()))
        fill(broker, 5)
        read(source, 5)
        assert served.status.upstream_connected
        source.close()


@pytest.mark.broker
def test_a_topic_that_is_deleted_under_the_server_ends_the_reading_and_the_server(
    cardinal_broker: EmbeddedKafka,
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this test needs it

    app = apps.get("evm", chain_id=fresh_chain_id())
    url = f"kafka://{cardinal_broker.bootstrap}"
    sink = open_sink(url, app, producer_id="a")
    sink.close()
    with serving(url, app) as served:
        client = from_start(open_source(served.url, app))
        read(client, len(client.partitions()))  # a heartbeat in each
        admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
        for done in admin.delete_topics([app.default_topic]).values():
            done.result(DEADLINE)
        with pytest.raises(TopicError) as caught:
            _poll(client)
        assert caught.value.topic == app.default_topic
        assert str(caught.value).count(". ") == 0
        with pytest.raises(TopicError, match=app.default_topic):  # and `cardinal serve` ends with it
            served.do(served.service.run())
        assert not served.status.upstream_connected
        client.close()
