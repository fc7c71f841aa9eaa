"""`cardinal serve`: records and bytes a second, CPU of server and client for each MB, bytes on the wire, latency.

Run: python tests/benchmarks/serving.py [--clients 4] [--blocks 400] [--runs 3]

A server of its own process serves a file log of generated blocks; one client and several read it from its start, with
and without compression in turn. Given are medians; CPU time is what other work on the machine blurs least. The latency
is that of a record from the sink's acknowledgement to a client at the head.
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
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.apps import get
from cardinal.protocols.streams.types import Routed
from cardinal.transports import open_sink, open_source
from cardinal_devkit.testing.proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = get("evm", chain_id=31337)
DEADLINE = 120.0


@dataclass(frozen=True)
class Measured:
    """All clients together: records and MB a second. For each MB: ms of CPU of the server and of the clients."""

    records: float
    megabytes: float
    server: float
    client: float


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


def read(url: str) -> int:
    """Read everything that is retained now; returns the number of records."""
    source = open_source(url, APP)
    marks = source.watermarks()
    source.assign({tp: low for tp, (low, _) in marks.items()})
    count = 0
    while any(at < marks[tp][1] for tp, at in source.positions().items()):
        count += len(source.poll(2_000, 1.0))
    source.close()
    return count


def measure(server: int, port: int, clients: int, size: int) -> Measured:
    """Read with all clients at once."""
    before, process, began = _cpu(server), time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        count = sum(pool.map(read, [f"ws://127.0.0.1:{port}"] * clients))
    seconds, megabytes = time.perf_counter() - began, clients * size / 1e6
    cpu = (_cpu(server) - before) * 1e3, (time.process_time() - process) * 1e3
    return Measured(count / seconds, megabytes / seconds, cpu[0] / megabytes, cpu[1] / megabytes)


def wire(port: int, size: int) -> float:
    """Bytes on the wire for each byte of keys and values."""
    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        read(f"ws://{proxy.address}")
        return proxy.stats.down / size


def latency(log: str, port: int, records: int = 200) -> float:
    """Median of the milliseconds until a client at the head has a record."""
    sink, source = open_sink(log, APP, producer_id="b"), open_source(f"ws://127.0.0.1:{port}", APP)
    source.assign({tp: high for tp, (_, high) in source.watermarks().items()})
    seconds = []
    for number in range(records):
        sink.send([Routed(APP.default_topic, b"\x03" + number.to_bytes(32, "big"), bytes(200))], None).result(DEADLINE)
        began = time.perf_counter()
        while not source.poll(10, 1.0):
            pass
        seconds.append(time.perf_counter() - began)
    source.close()
    sink.close()
    return statistics.median(seconds) * 1e3


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def serving(log: str, compression: str, clients: int) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its pid and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cardinal", "serve", "--from", log, "--chain-id", "31337"]
    options = ["--listen", f"127.0.0.1:{port}", "--max-catch-up", str(clients), "--compression", compression]
    server = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE
        while not _listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield server.pid, port
    finally:
        server.terminate()
        server.wait(DEADLINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    found: dict[tuple[str, int], list[Measured]] = {}
    wires: dict[str, float] = {}
    waits: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = f"file://{folder}/log?fsync=never"
        size = fill(log, given.blocks)
        for _ in range(given.runs):
            for compression in ("none", "snappy"):
                with serving(log, compression, given.clients) as (server, port):
                    wires[compression] = wire(port, size)
                    for clients in (1, given.clients):
                        found.setdefault((compression, clients), []).append(measure(server, port, clients, size))
        for compression in wires:
            with serving(log, compression, given.clients) as (_, port):
                waits[compression] = latency(log, port)
    _print(found, wires, waits, f"{size / 1e6:.1f} MB of records for each client, medians of {given.runs}")


def _print(
    found: dict[tuple[str, int], list[Measured]], wires: dict[str, float], waits: dict[str, float], title: str
) -> None:
    columns = ("records/s", "MB/s", "server ms/MB", "client ms/MB", "wire/records", "latency ms")
    lines = [title, f"{'compression':12}{'clients':>8}" + "".join(f"{column:>14}" for column in columns)]
    for (compression, clients), runs in found.items():
        numbers = [statistics.median(getattr(run, field.name) for run in runs) for field in fields(Measured)]
        numbers += [wires[compression], waits[compression]]
        lines.append(f"{compression:12}{clients:8}" + "".join(f"{number:14.2f}" for number in numbers))
    print("\n".join(lines))  # noqa: T201 - a table is what it is for


if __name__ == "__main__":
    main()
