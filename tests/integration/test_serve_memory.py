"""What a server process, and the system for it, holds in memory when its clients take nothing."""

from __future__ import annotations

import socket
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import Processes, fresh_chain_id
from test_serve_breaks import _free_port, _listens
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from cardinal import apps
from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import open_sink, open_source
from cardinal.transports.websocket.protocol import SUBPROTOCOL
from scripted_server import begin, grant
from serving import DEADLINE, from_start, read, serving, until

MB = 1 << 20
CLIENTS = 20


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_clients_that_ask_for_everything_and_read_nothing_cost_a_bounded_amount(tmp_path: Path) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    log = f"file://{tmp_path / 'log'}?fsync=never"
    sink = open_sink(log, app, producer_id="a")
    port = _free_port()
    with Processes(tmp_path) as processes, ExitStack() as stack:
        server = processes.start(
            "serve",
            "--from",
            log,
            "--listen",
            f"127.0.0.1:{port}",
            "--buffer-mb",
            "4",
            "--max-catch-up",
            "2",
            "--compression",
            "none",
        )
        until(lambda: _listens(port), 60)
        for client in range(CLIENTS):
            _greedy(stack, port, app.default_topic, client % 2)
        before = _resident(server.pid)
        peak = before
        for block in range(60):
            sink.send([Routed(app.default_topic, _key(block, n), bytes(10_000)) for n in range(100)], None).result(60)
            peak = max(peak, _resident(server.pid))
        # One that reads gets everything meanwhile.
        source = from_start(open_source(f"ws://127.0.0.1:{port}", app, topics=[app.default_topic]))
        read(source, 6_000 + len(source.partitions()))
        source.close()
        peak = max(peak, _resident(server.pid))
        assert peak - before < 45 * MB, f"{(peak - before) / MB:.0f} MB for 60 MB of records and {CLIENTS} clients"
    sink.close()


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
        _greedy(stack, served.port, app.default_topic, 0, plain)
        until(lambda: served.status.unsent_bytes)
        assert served.status.sent_bytes_total < 2 * MB
        plain.shutdown(socket.SHUT_RDWR)
    sink.close()


def _key(block: int, number: int) -> bytes:
    return b"\x03" + (block * 1_000 + number).to_bytes(32, "big")


def _greedy(stack: ExitStack, port: int, topic: str, at: int, plain: socket.socket | None = None) -> None:
    """A client that gives all the leave there is, and then does not take what comes; it begins at the start or end."""
    uri = f"ws://127.0.0.1:{port}"
    connection = stack.enter_context(
        connect(
            uri,
            sock=plain,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None if plain else "deflate",
            proxy=None,
            max_queue=1,
            close_timeout=0.1,
        )
    )
    begin(connection, topic, at)
    grant(connection, 2**32 - 1)
