"""One broker for several processes: shared while one of them lives, and ended with the last, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cardinal_devkit.errors import EmbeddedBrokerError
from cardinal_devkit.kafka.pidfile import find_broker
from cardinal_devkit.testing.shared_broker import shared_broker
from waiting import until

pytestmark = pytest.mark.broker

DEADLINE = 90.0
USER = """
import sys
from pathlib import Path
from cardinal_devkit.testing.shared_broker import shared_broker
with shared_broker(Path(sys.argv[1])) as broker:
    print(broker.bootstrap, flush=True)
    sys.stdin.read()
"""


def user(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def bootstrap(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until_ended(folder: Path) -> None:
    until(lambda: find_broker(folder / "data") is None, DEADLINE)


@pytest.mark.slow
def test_users_share_a_broker_that_ends_with_the_last_of_them_also_when_they_are_killed(tmp_path: Path) -> None:
    with user(tmp_path) as one, user(tmp_path) as other:
        address = bootstrap(one)
        assert address
        assert bootstrap(other) == address
        running = find_broker(tmp_path / "data")
        one.send_signal(signal.SIGKILL)
        one.wait()
        with user(tmp_path) as third:
            assert bootstrap(third) == address
            third.communicate()
        assert find_broker(tmp_path / "data") == running is not None
        other.send_signal(signal.SIGKILL)
        other.wait()
    until_ended(tmp_path)
    with shared_broker(tmp_path) as broker:  # a user that comes later gets another one
        assert find_broker(tmp_path / "data") != running
        assert broker.client_config() == {"bootstrap.servers": broker.bootstrap}
    until_ended(tmp_path)


def test_a_broker_that_cannot_start_is_an_error_for_its_users(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    with pytest.raises(EmbeddedBrokerError, match="data"), shared_broker(tmp_path):
        pass
