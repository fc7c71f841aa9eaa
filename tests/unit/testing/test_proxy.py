"""The proxy between two sockets of this process: what each impairment does to a connection, and undoes."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cardinal.errors import ConfigurationError, UnreachableError
from cardinal_devkit.testing.proxy import Link, TcpProxy
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE = 60.0


class Echo:
    """A server that sends back what it hears, and counts who came."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,))
            self._threads.append(thread)
            thread.start()

    @staticmethod
    def _serve(peer: socket.socket) -> None:
        try:
            while data := peer.recv(65536):
                peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(DEADLINE)  # afterwards no peer is added
        self._listener.close()
        for peer in self._open:
            peer.close()
        for thread in self._threads[1:]:
            thread.join(DEADLINE)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(echo.address) as proxy:
        yield proxy


def connect(proxy: TcpProxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), DEADLINE)


def exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


def seconds(do: Callable[[], object]) -> float:
    begun = time.monotonic()
    do()
    return time.monotonic() - begun


def round_trip(peer: socket.socket, data: bytes) -> None:
    peer.sendall(data)
    assert exactly(peer, len(data)) == data


def test_bytes_pass_unchanged_both_ways_and_an_end_is_passed_on(proxy: TcpProxy) -> None:
    sent = os.urandom(1 << 20)

    def send() -> None:
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)

    with connect(proxy) as peer:
        writing = threading.Thread(target=send)
        writing.start()
        assert exactly(peer, len(sent)) == sent
        assert peer.recv(1) == b"", "the server ended its side after ours"
        writing.join(DEADLINE)
    until(lambda: proxy.stats.open == 0)
    assert proxy.stats == (1, 0, 0, 0, len(sent), len(sent))


def test_latency_is_added_to_each_direction_and_ends_when_healed(proxy: TcpProxy) -> None:
    with connect(proxy) as peer:
        round_trip(peer, b"warm")
        proxy.impair(Link(latency=0.15), Link(latency=0.05))
        assert seconds(lambda: round_trip(peer, b"slow")) >= 0.2
        proxy.impair(Link(latency=3600.0))
        peer.sendall(b"held")
        until(lambda: proxy.stats.up == 8)
        proxy.heal()
        assert exactly(peer, 4) == b"held"


@pytest.mark.slow
def test_latency_holds_up_bytes_and_does_not_thin_them_out(proxy: TcpProxy) -> None:
    """Pieces in flight travel beside each other: twenty take one latency, not twenty, which are the deadline."""
    with connect(proxy) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.impair(Link(latency=DEADLINE / 20), Link())
        peer.sendall(b"x" * 100_000)
        assert seconds(lambda: exactly(peer, 100_000)) < DEADLINE


def test_bandwidth_is_bounded(proxy: TcpProxy) -> None:
    with connect(proxy) as peer:
        proxy.impair(Link(bytes_per_second=100_000), Link())
        assert seconds(lambda: round_trip(peer, bytes(30_000))) >= 0.25


def test_a_blackhole_swallows_nothing_and_answers_nobody(proxy: TcpProxy) -> None:
    with connect(proxy) as old:
        round_trip(old, b"warm")
        proxy.impair(Link(blackhole=True))
        with connect(proxy) as new:
            old.sendall(b"old")
            new.sendall(b"new")
            for peer in (old, new):
                peer.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    peer.recv(1)
                peer.settimeout(DEADLINE)
            proxy.heal()
            assert (exactly(old, 3), exactly(new, 3)) == (b"old", b"new")


def test_one_direction_may_be_a_blackhole(proxy: TcpProxy) -> None:
    with connect(proxy) as peer:
        proxy.impair(Link(), Link(blackhole=True))
        peer.sendall(b"heard")
        until(lambda: proxy.stats.up == 5)
        assert proxy.stats.down == 0
        proxy.heal()
        assert exactly(peer, 5) == b"heard"


@pytest.mark.parametrize("size", [0, 1, 1000, 40_000])
def test_a_connection_is_cut_after_so_many_bytes(proxy: TcpProxy, size: int) -> None:
    proxy.impair(Link(), Link(cut_after=size))
    with connect(proxy) as peer:
        peer.sendall(bytes(size + 1))
        with pytest.raises(ConnectionResetError):
            exactly(peer, size + 1)
    assert proxy.stats.down == size
    until(lambda: proxy.stats.cut == 1)
    proxy.heal()
    with connect(proxy) as peer:
        round_trip(peer, b"again")


def test_reset_ends_what_is_open_and_takes_what_comes(proxy: TcpProxy) -> None:
    peers = [connect(proxy) for _ in range(3)]
    for peer in peers:
        round_trip(peer, b"warm")
    assert proxy.reset() == 3
    for peer in peers:
        with pytest.raises(ConnectionResetError):
            exactly(peer, 1)
        peer.close()
    until(lambda: proxy.stats.open == 0)
    assert proxy.reset() == 0
    with connect(proxy) as peer:
        round_trip(peer, b"again")
    assert proxy.stats.cut == 3


def test_reset_ends_what_a_blackhole_holds(proxy: TcpProxy) -> None:
    proxy.impair(Link(blackhole=True))
    with connect(proxy) as peer:
        peer.sendall(b"lost")
        until(lambda: proxy.stats.open == 1)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            peer.recv(1)


def test_without_a_target_clients_are_reset_until_it_is_there() -> None:
    with closing(Echo()) as gone:
        address = gone.address
    with TcpProxy(address) as proxy:
        # The reset may come before the client knows that it is connected.
        with pytest.raises(ConnectionResetError), connect(proxy) as peer:
            peer.recv(1)
        assert proxy.stats.refused == 1


def test_a_stopped_proxy_refuses_and_starts_at_the_same_address(echo: Echo) -> None:
    proxy = TcpProxy(echo.address).start()
    address = proxy.address
    with connect(proxy) as peer:
        round_trip(peer, b"warm")
        proxy.stop()
        with pytest.raises(ConnectionResetError):
            exactly(peer, 1)
    proxy.stop()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    with proxy, connect(proxy) as peer:
        assert proxy.address == address
        round_trip(peer, b"again")


def test_a_port_that_somebody_has_is_one_sentence(proxy: TcpProxy) -> None:
    taken = int(proxy.address.split(":")[1])
    with pytest.raises(UnreachableError, match=str(taken)):
        TcpProxy("127.0.0.1:1", port=taken).start()


@pytest.mark.parametrize(
    "wrong",
    [{"latency": -0.1}, {"bytes_per_second": 0}, {"cut_after": -1}],
)
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Link(**wrong)  # type: ignore[arg-type] # wrong on purpose
    assert caught.value.setting in wrong


def test_a_target_is_an_address() -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        TcpProxy("localhost")
