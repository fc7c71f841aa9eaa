"""Connections that break, servers that die, peers that fall silent."""

from __future__ import annotations

import itertools
import random
import signal
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from commands import Processes, fresh_chain_id

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import CardinalError, RefusedError, TransportError, UnreachableError
from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.types import Routed
from cardinal.server.serve import streams
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.testing._memory_source import MemorySource
from cardinal.testing.proxy import Link, TcpProxy
from cardinal.transports import open_source
from serving import DEADLINE, from_start, page, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.protocols.streams.types import Partition, Record

APP = ChainGenerator().application


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _fill(broker: MemoryBroker, first: int, count: int) -> None:
    sink = broker.sink(APP, producer_id="a")
    block = [
        Routed(APP.default_topic, b"\x03" + (first + index).to_bytes(32, "big"), bytes(100)) for index in range(count)
    ]
    sink.send(block, None).result(DEADLINE)
    sink.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- opening -----------------------------------------------------------------------------------------------------


def test_nobody_there_is_said_at_once_at_opening() -> None:
    with pytest.raises(UnreachableError, match="cardinal serve") as caught:
        open_source(f"ws://127.0.0.1:{_free_port()}", APP)
    assert caught.value.retriable


def test_the_next_server_is_tried(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        source = from_start(open_source(f"ws://127.0.0.1:{_free_port()},127.0.0.1:{served.port}", APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        source.close()


def test_one_that_takes_connections_and_says_nothing_is_unreachable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}?cardinal.connect.timeout.ms=300"
        with pytest.raises(UnreachableError, match="no answer within"):
            open_source(url, APP)


# --- connections -------------------------------------------------------------------------------------------------


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
            _fill(broker, first, 200)
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
    with serving(broker.url, APP) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?ping.interval.ms=150", APP))
        read(source, len(broker.records()))
        accepted = proxy.stats.accepted
        proxy.impair(Link(blackhole=True))
        _fill(broker, 0, 10)
        until(lambda: proxy.stats.accepted > accepted)
        proxy.heal()
        read(source, 10)
        source.close()
    said = [record.getMessage() for record in caplog.records if record.name == "cardinal.websocket"]
    assert "stopped answering" in said[0]
    assert any("is back after" in text for text in said)
    assert all(record.name == "cardinal.websocket" for record in caplog.records if "websocket" in record.name)


def test_a_silent_client_is_noticed_by_the_server(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, ping_interval=0.2) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = open_source(f"ws://{proxy.address}", APP)
        until(lambda: served.status.clients == 1)
        proxy.impair(Link(blackhole=True))
        until(lambda: served.status.clients == 0)
        proxy.heal()
        source.close()


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


def test_while_the_server_is_away_reading_waits_and_questions_say_so(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        port = served.port
        source = from_start(open_source(served.url, APP))
        total = len(broker.records())
        read(source, total)
        known = source.partitions()
        served.stop()
        assert source.poll(10, 0.3) == []
        with pytest.raises(UnreachableError, match="is away"):
            source.watermarks()
        assert source.partitions() == known
        _fill(broker, 0, 50)
    with serving(broker.url, APP, port=port):
        assert len(read(source, 50)) == 50
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


@pytest.mark.parametrize(
    "status", ["404 Not Found", "408 Request Timeout", "421 Misdirected Request", "429 Too Many Requests", "200 OK"]
)
def test_what_a_balancer_says_while_the_server_is_away_is_waited_out(broker: MemoryBroker, status: str) -> None:
    with serving(broker.url, APP) as served:
        port = served.port
        source = from_start(open_source(served.url, APP))
        read(source, len(broker.records()))
    with _balancer(port, status) as came:
        until(lambda: len(came) >= 2)
        assert source.poll(1, 0.0) == []
    _fill(broker, 0, 5)
    with serving(broker.url, APP, port=port):
        read(source, 5)
        source.close()


@pytest.mark.parametrize("status", ["408 Request Timeout", "425 Too Early", "429 Too Many Requests"])
def test_what_passes_is_said_to_be_so_at_opening_too(status: str) -> None:
    port = _free_port()
    with _balancer(port, status), pytest.raises(UnreachableError, match=f"HTTP status {status[:3]}"):
        open_source(f"ws://127.0.0.1:{port}", APP)


@pytest.mark.parametrize("status", ["404 Not Found", "204 No Content"])
def test_what_is_no_server_of_ours_is_refused_at_opening(status: str) -> None:
    port = _free_port()
    with _balancer(port, status), pytest.raises(RefusedError, match=f"not `cardinal serve`: HTTP status {status[:3]}"):
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


def test_a_client_that_reconnects_while_the_stream_is_away_reads_on_when_it_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its READ fails, because its position is older than the ring; it is repeated until the stream answers."""
    _fill(broker, 0, 1_000)
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
        until(lambda: proxy.stats.accepted >= 4)
        with pytest.raises(UnreachableError):
            source.watermarks()
        Refusing.away = False
        total = len(broker.records())
        until(lambda: found.extend(source.poll(1_000, 0.1)) or len(found) >= total)
        assert sorted(found) == broker.records()
        assert served.status.protocol_errors_total == 0
        source.close()


class Refusing(MemorySource):
    """Its server refuses connections while it is away."""

    away = False

    def poll(self, limit: int, timeout: float) -> list[Record]:
        self._check()
        return super().poll(limit, timeout)

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        self._check()
        return super().watermarks()

    def _check(self) -> None:
        if self.away:
            raise UnreachableError("the broker is away", address="broker")


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


def test_a_server_stops_within_seconds_while_what_it_serves_does_not_answer(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading, a question, a client that catches up and one on a channel all wait then."""
    channel = f"{APP.default_topic}-re-{'ab' * 32}"
    broker.create(channel, partitions=1)
    _fill(broker, 0, 2_000)
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


# --- processes ---------------------------------------------------------------------------------------------------


def _line(app: Application, first: int, last: int) -> list[Payload]:
    chain = int(app.chain.rpartition(":")[2])
    blocks = []
    for number in range(first, last + 1):
        name = number.to_bytes(32, "big")
        prefix = f"c/{chain:x}/b/{name.hex()}"
        updates = {f"{prefix}/t/{index}": b"tx%d" % index for index in range(4)} | {f"{prefix}/h": b"header"}
        blocks.append(Payload(number, name, (number - 1).to_bytes(32, "big"), number, updates))
    return blocks


def _publish(url: str, app: Application, payloads: list[Payload]) -> None:
    with Producer(url, app, producer_id="a") as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(DEADLINE)


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_is_read_on_from(tmp_path: Path) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    chain_id = app.chain.rpartition(":")[2]
    log = f"file://{tmp_path / 'log'}"
    _publish(log, app, _line(app, 1, 30))
    port = _free_port()
    arguments = ("serve", "--from", log, "--listen", f"127.0.0.1:{port}", "--chain-id", chain_id, "--buffer-mb", "1")
    with Processes(tmp_path) as processes:
        server = processes.start(*arguments)
        until(lambda: _listens(port), 60)
        with Consumer(f"ws://127.0.0.1:{port}", "evm", idle_timeout=DEADLINE) as consumer:
            assert consumer.app == app
            chain, seqs = [], []
            updates = iter(consumer)
            for goal in (30, 60, 90, 120):
                while not chain or chain[-1].number < goal:
                    update = next(updates)
                    assert not update.removed
                    chain += update.added
                    seqs.append((update.first_seq, update.seq))
                server.kill()
                server.wait(DEADLINE)
                _publish(log, app, _line(app, goal + 1, goal + 30))
                server = processes.start(*arguments)
        assert [block.number for block in chain] == list(range(1, len(chain) + 1))
        assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(seqs))
        until(lambda: _listens(port), 60)
        server.send_signal(signal.SIGTERM)
        status, _, err = processes.end(server)
        assert status == 0
        assert f"at ws://127.0.0.1:{port}" in err


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_stream_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    folder = tmp_path / "log"
    folder.mkdir()
    port, probe = _free_port(), f"127.0.0.1:{_free_port()}"
    with Processes(tmp_path) as processes:
        server = processes.start(
            "serve", "--from", f"file://{folder}", "--listen", f"127.0.0.1:{port}", "--metrics", probe
        )
        until(lambda: _listens(int(probe.rpartition(":")[2])), 60)
        assert page(probe, "/readyz") == (503, "the stream does not exist yet\n")
        _publish(f"file://{folder}", app, _line(app, 1, 5))
        until(lambda: _listens(port), 60)
        source = from_start(open_source(f"ws://127.0.0.1:{port}", app))
        assert source.poll(1, DEADLINE)
        source.close()
        server.send_signal(signal.SIGTERM)
        status, _, err = processes.end(server)
    assert status == 0
    assert err.count("waiting for the stream") == 1


@pytest.mark.slow
def test_what_cannot_be_served_is_said_in_one_sentence(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        log = f"file://{tmp_path / 'log'}"
        app = apps.get("evm", chain_id=5)
        _publish(log, app, [])
        for arguments, says in (
            (("--listen", "nowhere:port"), "HOST:PORT"),
            (("--listen", f"127.0.0.1:{port}"), "cannot listen on"),
            (("--token-file", "/does/not/exist"), "token-file"),
            (("--cert-file", "/does/not/exist"), "certificate"),
            (("--chain-id", "6", "--from", "ws://127.0.0.1:1"), "no stream is served"),
        ):
            status, _, err = processes.run("serve", "--from", log, "--chain-id", "5", *arguments)
            assert status == 1
            assert err.startswith("error: ")
            assert says in err
            assert err.count("\n") == 1
