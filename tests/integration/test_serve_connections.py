"""Connections that break, peers that fall silent, answers that come late, links that are slow."""

from __future__ import annotations

import itertools
import random
import re
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import (
    CardinalError,
    RefusedError,
    TopicError,
    TransportError,
    UnreachableError,
)
from cardinal.transports import open_source
from cardinal_devkit import ChainGenerator, MemoryBroker
from cardinal_devkit.kafka import free_port
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_devkit.testing.proxy import Link, TcpProxy
from cardinal_relay.server import streams
from cardinal_relay.transport.protocol import Failed, FindTime, Read, Reason, decode_frame
from damaged_logs import COUNT, middle, recording
from scripted_server import TP, Scripted, begin, grant, join
from serving import APP, DEADLINE, fill, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.server import ServerConnection

    from cardinal.protocols.streams.types import Partition, Record
    from cardinal_relay.transport.protocol import Request


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def test_a_server_that_is_unreachable_or_silent_is_named_at_opening() -> None:
    with pytest.raises(UnreachableError, match="cardinal serve") as caught:
        open_source(f"ws://127.0.0.1:{free_port()}", APP)
    assert caught.value.retriable
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}?cardinal.connect.timeout.ms=300"
        with pytest.raises(UnreachableError, match="no answer within"):
            open_source(url, APP)


def test_the_next_server_is_tried(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        source = from_start(open_source(f"ws://127.0.0.1:{free_port()},127.0.0.1:{served.port}", APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        source.close()


@pytest.mark.slow
@pytest.mark.parametrize("ring_bytes", [1 << 20, 5_000])
def test_connections_that_break_again_and_again_lose_nothing_and_double_nothing(
    broker: MemoryBroker, ring_bytes: int
) -> None:
    with (
        serving(broker.url, APP, buffer_bytes=ring_bytes) as served,
        TcpProxy(f"127.0.0.1:{served.port}") as proxy,
    ):
        source = from_start(open_source(f"ws://{proxy.address}?window.bytes=20000", APP))
        found = []
        held = itertools.cycle([[], [(APP.default_topic, 0)], [], [(APP.default_topic, 1)]])
        for first in range(0, 4_000, 200):
            fill(broker, 200, first=first)
            found += source.poll(150, 0.2)
            source.pause(next(held))
            proxy.reset()
            found += source.poll(150, 0.2)
        source.pause(())
        total = len(broker.records())
        until(lambda: found.extend(source.poll(1_000, 0.1)) or len(found) >= total)
        assert sorted(found) == broker.records()
        assert proxy.stats.accepted > 10
        source.close()


def test_a_silent_server_is_noticed_by_the_client(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="cardinal.websocket")
    with serving(broker.url, APP) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?ping.interval.ms=150", APP))
        read(source, len(broker.records()))
        accepted = proxy.stats.accepted
        proxy.impair(Link(blackhole=True))
        fill(broker, 10)
        until(lambda: proxy.stats.accepted > accepted)
        proxy.heal()
        read(source, 10)
        source.close()
    said = [record.getMessage() for record in caplog.records if record.name == "cardinal.websocket"]
    assert "stopped answering" in said[0]
    assert any("is back after" in text for text in said)
    assert all(record.name == "cardinal.websocket" for record in caplog.records if "websocket" in record.name)


def test_a_silent_client_is_noticed_by_the_server(broker: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    with serving(broker.url, APP, ping_interval=0.2) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = open_source(f"ws://{proxy.address}", APP)
        until(lambda: served.status.clients == 1)
        proxy.impair(Link(blackhole=True))
        until(lambda: served.status.clients == 0)
        proxy.heal()
        source.close()
    (said,) = [
        one.getMessage() for one in caplog.records if one.levelname == "WARNING" and one.name == "cardinal.serve"
    ]
    assert re.fullmatch(r"the client 127\.0\.0\.1:\d+ is closed: it answered no ping for 0.6 s", said)


def test_pings_and_new_connections_do_not_use_the_global_random_generator(broker: MemoryBroker) -> None:
    """A program may have seeded it; and Hypothesis reports whatever uses it while an example is drawn."""
    state = random.getstate()
    with serving(broker.url, APP, ping_interval=0.1) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?ping.interval.ms=100", APP))
        read(source, len(broker.records()))
        passed = proxy.stats
        until(lambda: min(proxy.stats.up - passed.up, proxy.stats.down - passed.down) > 50)  # bytes of pings, answers
        proxy.reset()
        until(lambda: proxy.stats.accepted > passed.accepted)
        source.close()
    assert random.getstate() == state


@pytest.mark.slow
def test_while_the_server_is_unreachable_reading_waits_and_questions_say_so(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        port = served.port
        source = from_start(open_source(served.url, APP))
        total = len(broker.records())
        read(source, total)
        known = source.partitions()
        served.stop()
        assert source.poll(10, 0.3) == []
        with pytest.raises(UnreachableError, match="is unreachable"):
            source.watermarks()
        assert source.partitions() == known
        fill(broker, 50)
    with serving(broker.url, APP, port=port):
        assert len(read(source, 50)) == 50
        source.close()


@pytest.mark.slow
def test_a_damaged_log_ends_the_reading_and_the_client_is_notified(tmp_path: Path) -> None:
    url = recording(tmp_path, APP, ChainGenerator().payloads(4 * COUNT))
    middle(tmp_path)
    with serving(url, APP) as served:
        source = from_start(open_source(served.url, APP))
        with pytest.raises(TransportError, match="its log has the reason"):
            read(source, 100_000)
        source.close()


@contextmanager
def _balancer(port: int, status: str) -> Iterator[list[float]]:
    """Answers whoever comes with this HTTP status; when somebody came."""
    came: list[float] = []
    with socket.create_server(("127.0.0.1", port)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(10_000)
                        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
                    came.append(time.monotonic())

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield came
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["404 Not Found", "429 Too Many Requests", "200 OK"])
def test_answers_of_a_balancer_while_the_server_is_unreachable_are_waited_out(
    broker: MemoryBroker, status: str
) -> None:
    with serving(broker.url, APP) as served:
        port = served.port
        source = from_start(open_source(served.url, APP))
        read(source, len(broker.records()))
    with _balancer(port, status) as came:
        until(lambda: len(came) >= 2)
        assert source.poll(1, 0.0) == []
    fill(broker, 5)
    with serving(broker.url, APP, port=port):
        read(source, 5)
        source.close()


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        ("408 Request Timeout", UnreachableError, "HTTP status 408"),
        ("425 Too Early", UnreachableError, "HTTP status 425"),
        ("429 Too Many Requests", UnreachableError, "HTTP status 429"),
        ("404 Not Found", RefusedError, "not `cardinal serve`: HTTP status 404"),
        ("204 No Content", RefusedError, "not `cardinal serve`: HTTP status 204"),
    ],
)
def test_an_http_status_at_opening_is_temporary_or_a_refusal(
    status: str, error: type[TransportError], says: str
) -> None:
    port = free_port()
    with _balancer(port, status), pytest.raises(error, match=says):
        open_source(f"ws://127.0.0.1:{port}", APP)


def test_closing_ends_a_poll_that_waits_in_another_thread(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        source = from_start(open_source(served.url, APP))
        read(source, len(broker.records()))
        closer = threading.Timer(0.1, source.close)
        closer.start()
        with pytest.raises(TransportError, match="closed"):
            source.poll(1, 10 * DEADLINE)
        closer.join()


@pytest.mark.parametrize("way", ["accepted", "not accepted"])
def test_closing_ends_one_that_is_connecting(broker: MemoryBroker, way: str) -> None:
    """To one that accepts the connection and says nothing; to one that does not even accept it."""
    before = set(threading.enumerate())
    with serving(broker.url, APP) as served:
        port = served.port
        source = open_source(served.url, APP)
        (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "cardinal-websocket"]
    with (
        socket.create_server(("127.0.0.1", port), backlog=16 if way == "accepted" else 0) as silent,
        ExitStack() as stack,
    ):
        if way == "accepted":
            stack.enter_context(silent.accept()[0])
        else:
            for _ in range(8):  # so many wait to be accepted that the next has to wait for its connection
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0)
                waiting.connect_ex(("127.0.0.1", port))
        assert thread.is_alive()
        source.close()
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_a_request_whose_connection_is_reset_is_sent_again_on_the_next_one(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = open_source(f"ws://{proxy.address}", APP)
        expected = source.watermarks()
        for _ in range(30):
            proxy.reset()
            assert source.watermarks() == expected
        source.close()


def test_a_client_that_reconnects_while_the_stream_is_unreachable_reads_on_when_it_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its READ fails, because its position is older than the ring; it is repeated until the stream answers."""
    fill(broker, 1_000)
    Refusing.away = False
    monkeypatch.setattr(streams, "open_source", lambda _url, _app, *, topics: Refusing(broker, topics))
    with (
        serving(broker.url, APP, buffer_bytes=1_000, compression="none") as served,
        TcpProxy(f"127.0.0.1:{served.port}") as proxy,
    ):
        source = from_start(open_source(f"ws://{proxy.address}?window.bytes=5000", APP))
        found = source.poll(1, DEADLINE)
        Refusing.away = True
        proxy.reset()
        with pytest.raises(UnreachableError):
            source.watermarks()
        Refusing.away = False
        total = len(broker.records())
        until(lambda: found.extend(source.poll(1_000, 0.1)) or len(found) >= total)
        assert sorted(found) == broker.records()
        assert served.status.protocol_errors_total == 0
        source.close()


def test_an_error_of_what_is_served_ends_a_reading_and_is_not_the_clients(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    Refusing.away = False
    monkeypatch.setattr(streams, "open_source", lambda _url, _app, *, topics: Refusing(broker, topics))
    with serving(broker.url, APP) as served:
        source = from_start(open_source(served.url, APP))
        read(source, len(broker.records()))
        monkeypatch.setattr(Refusing, "error", RefusedError("no permission"))
        Refusing.away = True
        with pytest.raises(TransportError, match="its log has the reason"):
            source.poll(1, DEADLINE)
        with pytest.raises(TransportError, match="its log has the reason"):
            source.watermarks()
        with pytest.raises(RefusedError, match="no permission"):
            served.do(served.service.run())
        assert served.status.protocol_errors_total == 0
        source.close()


class Refusing(MemorySource):
    """It fails while its server is unreachable."""

    away = False
    error: CardinalError = UnreachableError("the broker is unreachable", address="broker")

    def poll(self, limit: int, timeout: float) -> list[Record]:
        self._check()
        return super().poll(limit, timeout)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        self._check()
        return super().watermarks()

    def _check(self) -> None:
        if self.away:
            raise self.error


@pytest.mark.slow
def test_a_server_is_not_ready_while_what_it_serves_does_not_answer(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a poll nor a query has returned, with an error or without."""
    monkeypatch.setattr(streams, "open_source", lambda _url, _app, *, topics: Away(broker, topics))
    Away.away.clear()
    Away.back.clear()
    with serving(broker.url, APP) as served:
        assert not served.service.waits_for
        Away.away.set()
        until(lambda: served.service.waits_for)
        assert "has not answered for" in served.service.waits_for
        assert not served.status.upstream_connected
        Away.back.set()
        Away.away.clear()
        until(lambda: not served.service.waits_for)


class Away(MemorySource):
    """Its server does not answer any more, until it is back."""

    away = threading.Event()
    back = threading.Event()

    def _wait(self) -> None:
        if self.away.is_set():
            self.back.wait(2 * DEADLINE)

    def poll(self, limit: int, timeout: float) -> list[Record]:
        self._wait()
        return super().poll(limit, timeout)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        self._wait()
        return super().watermarks()


@pytest.mark.slow
def test_a_server_stops_within_seconds_while_what_it_serves_does_not_answer(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading, a question, a client that catches up and one on a channel all wait then."""
    channel = f"{APP.default_topic}-re-{'ab' * 32}"
    broker.create(channel, partitions=1)
    fill(broker, 2_000)
    monkeypatch.setattr(streams, "open_source", lambda _url, _app, *, topics: Away(broker, topics))
    Away.away.clear()
    Away.back.clear()
    with (
        serving(broker.url, APP, buffer_bytes=1_000, compression="none") as served,
        ThreadPoolExecutor(1) as pool,
    ):
        old = from_start(open_source(f"{served.url}?window.bytes=5000", APP))
        old.poll(1, DEADLINE)
        other = from_start(open_source(served.url, APP, topics=[channel]))
        until(lambda: served.status.catch_up_clients)
        Away.away.set()
        asked = pool.submit(old.watermarks)
        until(lambda: any(thread.name == "cardinal-serve-query" for thread in threading.enumerate()))
        served.stop()
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("cardinal-serve"))
        Away.back.set()
        old.close()
        other.close()
        assert isinstance(asked.exception(DEADLINE), CardinalError)
        until(lambda: not [one for one in threading.enumerate() if one.name.startswith("cardinal-serve")])


def test_a_reading_that_fails_after_a_reconnection_is_raised_and_the_connection_stays() -> None:
    class Deleted(Scripted):
        def on(self, socket: ServerConnection, request: Request) -> None:
            match request:
                case Read() if len(self.reads) == 1:
                    self.answer(socket, request)
                    socket.close()
                case Read(number, _) if len(self.reads) == 2:
                    self.say(socket, Failed(0, Reason.TOPIC, TP[0], read=number))
                case _:
                    self.answer(socket, request)

    server = Deleted()
    with server.running() as url:
        source = open_source(url, APP)
        source.assign({TP: 0})
        found = source.poll(5, DEADLINE)
        with pytest.raises(TopicError, match=TP[0]):
            source.poll(1, DEADLINE)
        source.pause({TP})
        source.pause(())
        source.assign({TP: len(found)})
        assert source.poll(1, DEADLINE)[0].offset == len(found)
        assert server.connections == 2
        source.close()


def test_a_question_that_was_given_up_and_fails_late_leaves_the_connection_alone() -> None:
    class Late(Scripted):
        gave_up = threading.Event()

        def on(self, socket: ServerConnection, request: Request) -> None:
            if isinstance(request, FindTime):
                assert self.gave_up.wait(DEADLINE)
                self.say(socket, Failed(request.id, Reason.UNAVAILABLE))
            else:
                self.answer(socket, request)

    server = Late()
    with server.running() as url:
        source = open_source(f"{url}?cardinal.connect.timeout.ms=300", APP)
        source.assign({TP: 0})
        with pytest.raises(UnreachableError, match="did not answer a request for offsets by time"):
            source.offsets_for_time(0)
        server.gave_up.set()
        with pytest.raises(UnreachableError, match="what it reads from does not"):
            source.offsets_for_time(0)
        assert len(read(source, 5)) == 5
        assert server.connections == 1
        source.close()


PING_SECONDS = 0.4


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(1, 3_000_000), (2_500, 1_000)])
def test_a_client_behind_a_slow_link_is_sent_everything_on_one_connection(
    broker: MemoryBroker, count: int, size: int
) -> None:
    fill(broker, count, size)
    with (
        serving(broker.url, APP, ping_interval=PING_SECONDS, compression="none") as served,
        TcpProxy(f"127.0.0.1:{served.port}") as proxy,
    ):
        # Five times as long as either side waits for a sign of life, which a busy machine may keep back for a moment.
        proxy.impair(Link(), Link(bytes_per_second=750_000))
        source = from_start(open_source(f"ws://{proxy.address}?ping.interval.ms={PING_SECONDS * 1000:.0f}", APP))
        assert sorted(read(source, len(broker.records()))) == broker.records()
        assert proxy.stats.accepted == 1
        source.close()


def test_a_large_frame_comes_in_fragments_between_which_pings_get_through(broker: MemoryBroker) -> None:
    fill(broker, 1, 1_000_000)
    with (
        serving(broker.url, APP, compression="none") as served,
        join(served.url) as socket,
    ):
        begin(socket, APP.default_topic, 0)
        grant(socket, 10_000_000)
        size = 0
        while size < 1_000_000:
            fragments = list(socket.recv_streaming())
            assert max(map(len, fragments)) <= 64 << 10
            _, chunks = decode_frame(b"".join(part for part in fragments if isinstance(part, bytes)))
            size += sum(len(chunk.content) for chunk in chunks)


@pytest.mark.slow
def test_a_client_that_takes_nothing_holds_nothing_up_when_the_server_stops(broker: MemoryBroker) -> None:
    fill(broker, 1_500, 10_000)
    with (
        serving(broker.url, APP, compression="none") as served,
        join(served.url, max_queue=1, close_timeout=0.1) as socket,
    ):
        begin(socket, APP.default_topic, 0)
        grant(socket, 100_000_000)
        until(lambda: served.status.unsent_bytes)
        served.stop()
        until(lambda: not [one for one in threading.enumerate() if one.name.startswith("cardinal-serve")])
        assert served.status.clients == 0
