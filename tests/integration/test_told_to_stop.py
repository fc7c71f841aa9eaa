"""Commands that are told to stop while nobody has answered them yet."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, Processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = "cardinal.connect.timeout.ms=600000"
NODE = "dev://?chain-id=5&blocks=3"


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE)
        yield listener


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["produce --to {stream} --from " + NODE, "produce --to null:// --from {node}"])
def test_a_producer_that_waits_for_a_stream_or_a_node_ends_with_0(
    silent: socket.socket, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    stream, node = f"kafka://{address}?{PATIENCE}", f"http://{address}"
    _stop(silent, tmp_path, command.format(stream=stream, node=node), number)


def _stop(silent: socket.socket, folder: Path, command: str, number: signal.Signals) -> None:
    with Processes(folder) as processes:
        process = processes.start(*command.split())
        waiting, _ = silent.accept()
        with waiting:
            process.send_signal(number)
            status, out, err = processes.end(process)
    assert status == 0, err
    assert not out
    assert "Traceback" not in err
