"""A standby producer that is told to stop: what it waits for another to send is no failure of its own."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from commands import DEADLINE, Processes, fresh_chain_id

from cardinal import apps
from cardinal.transports import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker


def test_standby_producer_that_is_told_to_stop_ends_with_0(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    chain_id, stream = fresh_chain_id(), f"kafka://{cardinal_broker.bootstrap}"
    node = f"dev://?seed=5&chain-id={chain_id}&blocks=4000&rate=50&reorg-rate=0"
    args = ("produce", "--from", node, "--to", stream, "--redundancy", "standby", "--producer-id")
    with Processes(tmp_path) as processes:
        first = processes.start(*args, "one")
        _grows(stream, chain_id, by=200)
        second = processes.start(*args, "two")
        _says(tmp_path / "1.err", "continues after block")
        _grows(stream, chain_id, by=2000)  # from here on it follows, and waits for the other one to send
        second.send_signal(signal.SIGTERM)
        status, _, said = processes.end(second)
        first.send_signal(signal.SIGTERM)
        assert processes.end(first)[0] == 0
    assert status == 0, said
    assert "blocks left to other producers" in said


def _says(log: Path, text: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


def _grows(stream: str, chain_id: int, by: int) -> None:
    source = open_source(stream, apps.get("evm", chain_id=chain_id), wait=DEADLINE)
    try:
        deadline, before = time.monotonic() + DEADLINE, sum(high for _, high in source.watermarks().values())
        while sum(high for _, high in source.watermarks().values()) < before + by:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        source.close()
