"""Exit status of commands that a signal stops: 0 where they run until they are stopped, else 130 or 143."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import COMMAND, DEADLINE, Processes, fresh_chain_id, limited
from kafka_streams import everything_on

from cardinal import Consumer, apps
from cardinal.consumer import find_application
from cardinal.protocols.streams import Routed
from cardinal.transports import open_sink, open_source
from serving import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal_devkit.kafka import EmbeddedKafka


PATIENCE = "cardinal.connect.timeout.ms=600000"


NODE = "dev://?chain-id=5&blocks=3"


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE)
        yield listener


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["kafka", "ws"])
@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("serve --listen 127.0.0.1:0 --from {url}", signal.SIGTERM),
        ("serve --listen 127.0.0.1:0 --chain-id 5 --from {url}", signal.SIGINT),
        ("tail {url}", signal.SIGINT),
        ("tail --chain-id 5 {url}", signal.SIGTERM),
        ("record --from {url} --to file://{folder}", signal.SIGTERM),
        ("record --chain-id 5 --from {url} --to file://{folder}", signal.SIGINT),
    ],
)
def test_a_command_that_waits_for_a_stream_ends_with_0(
    silent: socket.socket, tmp_path: Path, scheme: str, command: str, number: signal.Signals
) -> None:
    url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}?{PATIENCE}"
    _stop(silent, tmp_path, command.format(url=url, folder=tmp_path / "log"), number)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["produce --to {stream} --from " + NODE, "produce --to null:// --from {node}"])
def test_a_producer_that_waits_for_a_stream_or_a_node_ends_with_0(
    silent: socket.socket, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    stream, node = f"kafka://{address}?{PATIENCE}", f"http://{address}"
    _stop(silent, tmp_path, command.format(stream=stream, node=node), number)


@pytest.mark.process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_repair_that_is_stopped_has_not_done_its_work(
    silent: socket.socket, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    node = f"http://127.0.0.1:{silent.getsockname()[1]}"
    _stop(silent, tmp_path, f"repair --to null:// --from {node} --start 1 --stop 2", number, status)


@pytest.mark.process
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_replay_that_is_stopped_has_not_done_its_work(tmp_path: Path, number: signal.Signals, status: int) -> None:
    recording = f"file://{tmp_path}/log"
    with Processes(tmp_path) as processes:
        assert processes.run("produce", "--from", "dev://?blocks=20", "--to", recording)[0] == 0
        slowly = processes.start("replay", "--from", recording, "--to", f"file://{tmp_path}/copy", "--speed", "1e-9")
        until(lambda: list((tmp_path / "copy").glob("**/*.avro")))
        slowly.send_signal(number)
        found, _, said = processes.end(slowly)
    assert found == status, said
    assert "Traceback" not in said


@pytest.mark.process
def test_a_block_that_was_not_queried_is_not_called_absent(tmp_path: Path) -> None:
    """A producer was killed within block 15, and the next one is stopped before it gets there."""
    node = ("produce", "--start", "0", "--producer-id", "one", "--from")
    whole, partial = f"file://{tmp_path}/whole", f"file://{tmp_path}/partial"
    with Processes(tmp_path) as processes:
        assert processes.run(*node, "dev://?seed=7&blocks=20", "--to", whole)[0] == 0
        app = find_application(whole, "evm")
        records = everything_on(whole, app)
        content = [one for one in records if one.key[:1] == b"\3" and one.topic != app.default_topic]
        sink = open_sink(partial, app, producer_id="one")
        sink.send([Routed(content[-1].topic, content[-1].key, content[-1].value)], None).result(DEADLINE)
        sink.close()
        slow = processes.start(*node, "dev://?seed=7&blocks=20&rate=0.1", "--to", partial)
        until(lambda: "partially published where the topics end" in (tmp_path / "1.err").read_text())
        slow.send_signal(signal.SIGTERM)
        status, _, said = processes.end(slow)
    assert status == 0, said
    assert "1 block left partially published, not completed yet: the next start completes what the node has: 0x" in said
    assert "does not have" not in said


def _stop(silent: socket.socket, folder: Path, command: str, number: signal.Signals, expected: int = 0) -> None:
    with Processes(folder) as processes:
        process = processes.start(*command.split())
        waiting, _ = silent.accept()
        with waiting:
            process.send_signal(number)
            status, out, err = processes.end(process)
    assert status == expected, err
    assert not out
    assert "Traceback" not in err


@pytest.mark.broker
def test_a_stopped_standby_producer_ends_with_0(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    chain_id, stream = fresh_chain_id(), f"kafka://{cardinal_broker.bootstrap}"
    node = f"dev://?seed=5&chain-id={chain_id}&blocks=4000&rate=50&reorg-rate=0"
    args = ("produce", "--from", node, "--to", stream, "--redundancy", "standby", "--producer-id")
    with Processes(tmp_path) as processes:
        first = processes.start(*args, "one")
        _grows(stream, chain_id, by=200)
        second = processes.start(*args, "two")
        until(lambda: "continues after block" in (tmp_path / "1.err").read_text())
        _grows(stream, chain_id, by=2000)  # from here on it follows, and waits for the other one to send
        second.send_signal(signal.SIGTERM)
        status, _, said = processes.end(second)
        first.send_signal(signal.SIGTERM)
        assert processes.end(first)[0] == 0
    assert status == 0, said
    assert "blocks left to other producers" in said


def _grows(stream: str, chain_id: int, by: int) -> None:
    with closing(open_source(stream, apps.get("evm", chain_id=chain_id), wait=DEADLINE)) as source:
        before = sum(high for _, high in source.watermarks().values())
        until(lambda: sum(high for _, high in source.watermarks().values()) >= before + by)


FILE_BYTES = 100_000


"""How long a file may be for the producer: its first segment is full long before the chain ends."""


@pytest.mark.process
def test_blocks_that_could_not_be_sealed_are_counted_and_sent_the_next_time(tmp_path: Path) -> None:
    stream, said = f"file://{tmp_path}/log", tmp_path / "said"
    node = "dev://?seed=9&blocks=300&reorg-rate=0"
    args = ["produce", "--producer-id", "a", "--from", node, "--to", stream]
    with said.open("w") as log:
        producer = subprocess.Popen([*limited(FILE_BYTES), *args], stderr=log)
    try:
        until(lambda: "is replaced: " in said.read_text() or producer.poll() is not None)
        producer.send_signal(signal.SIGTERM)
        assert producer.wait(DEADLINE) == 1
    finally:
        if producer.poll() is None:
            producer.kill()
            producer.wait()
    lines = said.read_text().splitlines()
    found = re.match(r"error: (\d+) blocks were not acknowledged \(the lowest is (\d+)\): start again", lines[-1])
    assert found, lines[-3:]
    assert sum("is sent again: " in line for line in lines) <= 1 + sum("is replaced: " in line for line in lines)
    whole = subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert f"continues after block {int(found[2]) - 1}\n" in whole.stderr
    with Consumer(stream, chain_id=1337, idle_timeout=1.0) as consumer:
        assert [one.number for update in consumer for one in update.added] == list(range(301))
