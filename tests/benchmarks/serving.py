"""What permessage-deflate costs and saves: CPU of server and client for each MB of records, bytes on the wire.

Run: python tests/benchmarks/serving.py [--clients 4] [--blocks 400] [--runs 3]

A server of its own process serves a file log of generated blocks; clients read it from its start, first without
compression, then with it, and again. Measured is CPU time (medians), which other work on the machine does not blur.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cardinal.apps import get
from cardinal.protocols.streams.types import Routed
from cardinal.testing.proxy import TcpProxy
from cardinal.transports import open_sink, open_source

APP = get("evm", chain_id=31337)
DEADLINE = 120.0


@dataclass(frozen=True)
class Measured:
    """For each client: seconds of CPU of the server and of the client for each MB of records, bytes on the wire."""

    server: float
    client: float
    wire: float


def fill(url: str, blocks: int) -> int:
    """Records like a chain's: hashes and signatures that no compression helps, numbers and zeros that it does."""
    sink = open_sink(url, APP, producer_id="a")
    size = 0
    maker = random.Random(1)
    for number in range(blocks):
        content = [
            Routed(
                APP.all_topics[index % len(APP.all_topics)],
                b"\x03" + number.to_bytes(32, "big") + b"c/7a69/b/%064x/t/%d" % (number, index),
                maker.randbytes(96) + bytes(60) + index.to_bytes(32, "big") + maker.randbytes(20) + bytes(70),
            )
            for index in range(60)
        ]
        sink.send(content, None).result(DEADLINE)
        size += sum(len(message.key) + len(message.value) for message in content)
    sink.close()
    return size


def read(url: str) -> None:
    """Everything there is now."""
    source = open_source(url, APP)
    marks = source.watermarks()
    source.assign({where: low for where, (low, _) in marks.items()})
    while any(at < marks[where][1] for where, at in source.positions().items()):
        source.poll(2_000, 1.0)
    source.close()


def measure(server: int, port: int, options: str, clients: int, size: int) -> Measured:
    """All clients at once."""
    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        read(f"ws://{proxy.address}{options}")
        wire = proxy.stats.down
    before, began = _cpu(server), time.process_time()
    threads = [threading.Thread(target=read, args=(f"ws://127.0.0.1:{port}{options}",)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    megabytes = clients * size / 1e6
    return Measured((_cpu(server) - before) / megabytes, (time.process_time() - began) / megabytes, wire / size)


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = f"file://{folder}/log?fsync=never"
        size = fill(log, given.blocks)
        command = [sys.executable, "-m", "cardinal", "serve", "--from", log, "--chain-id", "31337"]
        server = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}", "--catch-up", str(given.clients)], stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + DEADLINE
            while not _listens(port) and time.monotonic() < deadline:
                time.sleep(0.05)
            found: dict[str, list[Measured]] = {"none": [], "deflate": []}
            for _ in range(given.runs):
                for name, runs in found.items():
                    runs.append(measure(server.pid, port, f"?compression={name}", given.clients, size))
        finally:
            server.terminate()
            server.wait(DEADLINE)
    print(f"{given.clients} clients, {size / 1e6:.1f} MB of records each, medians of {given.runs}")  # noqa: T201 - a table is what it is for
    print(f"{'compression':12} {'server ms/MB/client':>20} {'client ms/MB':>14} {'wire/records':>14}")  # noqa: T201 - a table is what it is for
    for name, runs in found.items():
        server_ms, client_ms = (
            statistics.median(getattr(run, part) for run in runs) * 1e3 for part in ("server", "client")
        )
        print(f"{name:12} {server_ms:20.1f} {client_ms:14.1f} {statistics.median(run.wire for run in runs):14.2f}")  # noqa: T201 - a table is what it is for


if __name__ == "__main__":
    main()
