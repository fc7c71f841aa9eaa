"""`cardinal serve` as a process: kills, a real Kafka, memory, mistakes."""

from __future__ import annotations

import itertools
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Processes, fresh_chain_id

from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import Routed
from cardinal.transports import open_sink, open_source
from cardinal_devkit.kafka import free_port
from scripted_server import greedy
from serving import DEADLINE, from_start, line, listens, metrics, page, publish, read, serving, until

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams import ChainUpdate
    from cardinal_devkit.kafka import EmbeddedKafka


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_is_read_on_from(tmp_path: Path) -> None:
    app = apps.get("blob", chain_id=fresh_chain_id())
    chain_id = app.chain.rpartition(":")[2]
    log = f"file://{tmp_path / 'log'}"
    publish(log, app, line(app, 1, 30))
    port = free_port()
    arguments = ("serve", "--from", log, "--listen", f"127.0.0.1:{port}", "--chain-id", chain_id, "--app", "blob")
    with Processes(tmp_path) as processes:
        server = processes.start(*arguments)
        until(lambda: listens(port), 60)
        with Consumer(f"ws://127.0.0.1:{port}", "blob", idle_timeout=DEADLINE) as consumer:
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
                publish(log, app, line(app, goal + 1, goal + 30))
                server = processes.start(*arguments)
        assert [block.number for block in chain] == list(range(1, len(chain) + 1))
        assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(seqs))
        until(lambda: listens(port), 60)
        server.send_signal(signal.SIGTERM)
        status, _, err = processes.end(server)
        assert status == 0
        assert f"at ws://127.0.0.1:{port}" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("absent", "says"), [("stream", "start `cardinal produce` first"), ("server", "no stream is served at 127.0.0.1:")]
)
def test_a_stream_that_does_not_exist_yet_or_is_unreachable_is_waited_for(
    tmp_path: Path, absent: str, says: str
) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    (tmp_path / "log").mkdir()
    log = f"file://{tmp_path / 'log'}"
    away, port, probe = free_port(), free_port(), f"127.0.0.1:{free_port()}"
    url = log if absent == "stream" else f"ws://127.0.0.1:{away}?token=s3cr3t"
    with Processes(tmp_path) as processes, ExitStack() as stack:
        server = processes.start("serve", "--from", url, "--listen", f"127.0.0.1:{port}", "--metrics", probe)
        until(lambda: listens(int(probe.rpartition(":")[2])), 60)
        until(lambda: says in page(probe, "/readyz")[1])
        assert page(probe, "/readyz")[0] == 503
        publish(log, app, line(app, 1, 5))
        if absent == "server":
            stack.enter_context(serving(log, app, port=away))
        until(lambda: listens(port), 60)
        source = from_start(open_source(f"ws://127.0.0.1:{port}", app))
        assert source.poll(1, DEADLINE)
        source.close()
        server.send_signal(signal.SIGTERM)
        status, _, err = processes.end(server)
    assert status == 0
    assert err.count("waiting for the stream") == 1
    assert "s3cr3t" not in err


def _to(url: str, app: Application, last: int, start: str = "earliest") -> list[ChainUpdate]:
    updates: list[ChainUpdate] = []
    with Consumer(url, app, start=start, idle_timeout=3 * DEADLINE) as consumer:
        for update in consumer:
            updates.append(update)
            if update.added[-1].number >= last:
                break
    return updates


@pytest.mark.broker
def test_a_served_stream_equals_kafkas_and_survives_its_restart(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    kafka = f"kafka://{cardinal_killable_broker.bootstrap}"
    publish(kafka, app, line(app, 1, 40))
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    with Processes(tmp_path) as processes:
        processes.start("serve", "--from", kafka, "--listen", f"127.0.0.1:{port}")
        until(lambda: listens(port), 3 * DEADLINE)
        served, direct = _to(url, app, 40), _to(kafka, app, 40)
        blocks = [[block for update in updates for block in update.added] for updates in (served, direct)]
        assert blocks[0] == blocks[1]
        with Consumer(url, "evm", start=str(direct[-1].cursor), idle_timeout=3 * DEADLINE) as consumer:
            updates = iter(consumer)
            publish(kafka, app, line(app, 41, 50))
            before = [next(updates)]
            while before[-1].added[-1].number < 50:
                before.append(next(updates))
            cardinal_killable_broker.kill()
            cardinal_killable_broker.start()
            publish(kafka, app, line(app, 51, 70))
            while before[-1].added[-1].number < 70:
                before.append(next(updates))
        assert before[0].first_seq == direct[-1].seq + 1
        assert [block.number for update in before for block in update.added] == list(range(41, 71))
        rest = _to(kafka, app, 70, start=str(served[-1].cursor))
        assert [block.number for update in rest for block in update.added] == list(range(41, 71))


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
    port = free_port()
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
        until(lambda: listens(port), 60)
        for client in range(CLIENTS):
            greedy(stack, f"ws://127.0.0.1:{port}", app.default_topic, client % 2)
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


def _key(block: int, number: int) -> bytes:
    return b"\x03" + (block * 1_000 + number).to_bytes(32, "big")


@pytest.mark.slow
@pytest.mark.broker
def test_a_broker_that_dies_is_one_sentence_for_the_log_the_probe_and_a_client_that_connects(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    kafka = f"kafka://{cardinal_killable_broker.bootstrap}?cardinal.connect.timeout.ms=2000"
    publish(kafka, app, line(app, 1, 10))
    port, probe = free_port(), f"127.0.0.1:{free_port()}"
    url = f"ws://127.0.0.1:{port}"
    with Processes(tmp_path) as processes:
        server = processes.start("serve", "--from", kafka, "--listen", f"127.0.0.1:{port}", "--metrics", probe)
        until(lambda: _ready(probe), 2 * DEADLINE)
        source = from_start(open_source(url, app))
        until(lambda: metrics(probe)["clients"] == 1)
        cardinal_killable_broker.kill()
        with pytest.raises(UnreachableError, match="what it reads from does not"):
            open_source(f"{url}?cardinal.connect.timeout.ms=60000", app)
        until(lambda: page(probe, "/readyz")[0] == 503, 3 * DEADLINE)
        assert page(probe, "/healthz")[0] == 200
        assert metrics(probe)["upstream_connected"] == 0
        until(lambda: metrics(probe)["upstream_errors_total"] >= 1, 3 * DEADLINE)
        cardinal_killable_broker.start()
        until(lambda: _ready(probe), 3 * DEADLINE)
        publish(kafka, app, line(app, 11, 12))
        until(lambda: any(record.key[1:33] == (12).to_bytes(32, "big") for record in source.poll(1_000, 0.2)))
        source.close()
        server.terminate()
        status, _, log = processes.end(server)
    assert status == 0
    assert "Traceback" not in log
    assert log.count("the stream cannot be read") == log.count("the stream is read again") == 1


def _ready(probe: str) -> bool:
    try:
        return page(probe, "/readyz")[0] == 200
    except OSError:
        return False
