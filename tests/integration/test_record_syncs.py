"""Syncs of a recording: ``fsync=always`` immediately, ``never`` at its end."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish
from cardinal.copying.recording import Recorder
from cardinal.testing.memory import MemoryBroker
from cardinal.transports.file import writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT = "000000000001.avro"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        publish(broker, line(1, 5))
        yield broker


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the segment had at each call."""
    sizes: list[int] = []
    monkeypatch.setattr(writer, "_sync_data", lambda fd: sizes.append(os.fstat(fd).st_size))
    return sizes


def step_until_recorded(recorder: Recorder, broker: MemoryBroker) -> None:
    deadline = time.monotonic() + DEADLINE
    while recorder.progress.records < len(broker.records()):
        assert time.monotonic() < deadline
        recorder.step(0.01)


def test_sync_always_syncs_after_every_step(broker: MemoryBroker, tmp_path: Path, synced: list[int]) -> None:
    recorder = Recorder(broker.url, f"file://{tmp_path}?fsync=always", Blocks())
    for number in range(6, 9):
        step_until_recorded(recorder, broker)
        assert synced[-1] == (tmp_path / SEGMENT).stat().st_size
        publish(broker, line(number, number))
    recorder.close()


def test_sync_never_syncs_when_closed(broker: MemoryBroker, tmp_path: Path, synced: list[int]) -> None:
    recorder = Recorder(broker.url, f"file://{tmp_path}?fsync=never", Blocks())
    step_until_recorded(recorder, broker)
    assert synced == []
    recorder.close()
    assert synced[-1] == (tmp_path / SEGMENT).stat().st_size
