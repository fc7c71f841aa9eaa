"""Many clients of one server: fast, slow, old, and such that accept nothing."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect as asyncio_connect
from websockets.sync.client import connect

from cardinal.consumer import Consumer
from cardinal.errors import CursorExpiredError, TopicError
from cardinal.producer import Producer
from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import list_topics, open_source
from cardinal.transports.websocket.protocol import SUBPROTOCOL, GetWatermarks, encode_message
from scripted_server import begin, grant, greedy
from serving import APP, DEADLINE, Served, fill, from_start, publish, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.protocols.streams import ChainUpdate, Payload, Record
    from cardinal.transports import Source

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


@pytest.mark.parametrize("ring_bytes", [8 << 20, 10_000])
def test_twenty_clients_of_any_speed_get_the_same_chain(broker: MemoryBroker, ring_bytes: int) -> None:
    payloads = MAKER.payloads(60)
    head = heaviest(payloads).hash
    publish(broker.url, APP, payloads[:20])
    with serving(broker.url, APP, buffer_bytes=ring_bytes, catch_up_max=3) as served, ThreadPoolExecutor(20) as pool:
        options = ("?window.bytes=3000", "", "?window.bytes=1000000", "?window.bytes=20000")
        readers = [
            pool.submit(follow, served.url + options[index % 4], head, pause=(0.0, 0.001, 0.004)[index % 3])
            for index in range(20)
        ]
        for first in range(20, len(payloads), 10):
            publish(broker.url, APP, payloads[first : first + 10])
        expected = follow(broker.url, head)
        results = [reader.result(60) for reader in readers]
        status = served.status
    assert {tuple(chain_of(updates)) for updates in results} == {tuple(chain_of(expected))}
    assert content_of(results[0])[head] == content_of(expected)[head]
    assert status.protocol_errors_total == status.slow_clients_closed_total == 0


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


def test_a_reorg_deeper_than_the_threshold_comes_through_its_channel() -> None:
    app = APP.model_copy(update={"reorg_threshold": 4})
    line = MAKER.fork("1a 2a 3a 4a 5a 6a 7a 8a 9a 10a 11a 12a")
    branch = MAKER.fork("2b 3b 4b 5b 6b 7b 8b 9b 10b 11b 12b 13b", root="1a")
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(app, producer_id="a").close()
        with (
            serving(broker.url, app) as served,
            Consumer(served.url, app, idle_timeout=DEADLINE) as consumer,
            Producer(broker.url, app, producer_id="a") as producer,
        ):
            for payload in line:
                producer.add(payload)
            producer.flush(DEADLINE)
            updates = []
            seen = iter(consumer)
            while not updates or updates[-1].added[-1].hash != line[-1].hash:
                updates.append(next(seen))
            producer.reorg(line[0].ref, branch).result(DEADLINE)
            update = next(seen)
    assert [block.hash for block in update.removed] == [payload.hash for payload in reversed(line[1:])]
    assert [block.hash for block in update.added] == [payload.hash for payload in branch]


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


def _total(broker: MemoryBroker) -> int:
    return len(broker.records())


def test_a_client_that_stops_reading_holds_no_more_than_its_window_and_loses_nothing(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, buffer_bytes=100_000) as served:
        source = from_start(open_source(f"{served.url}?window.bytes=50000", APP))
        fill(broker, 3_000, 1_000)
        until(lambda: served.status.read_records_total >= 3_000)
        sent = served.status.sent_bytes_total
        assert sent < 50_000 + 2 * (256 << 10)
        assert served.status.ring_bytes <= 100_000
        found = read(source, _total(broker))
        assert sorted(found) == broker.records()
        source.close()


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
        connect(served.url, subprotocols=[SUBPROTOCOL], proxy=None) as socket,
    ):
        begin(socket, APP.default_topic, 1)
        fill(broker, 100, 1_000)
        with pytest.raises(TimeoutError):
            socket.recv(1.0)
        grant(socket, 1_000)
        assert isinstance(socket.recv(DEADLINE), bytes)


def test_what_retention_removed_under_a_slow_client_is_named(broker: MemoryBroker) -> None:
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
            total = _total(broker)
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


CLIENTS = 100


ROUNDS = 10


RECORDS = 60


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


MB = 1 << 20


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
        greedy(stack, served.port, app.default_topic, 0, plain)
        until(lambda: served.status.unsent_bytes)
        assert served.status.sent_bytes_total < 2 * MB
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()


def _key(block: int, number: int) -> bytes:
    return b"\x03" + (block * 1_000 + number).to_bytes(32, "big")
