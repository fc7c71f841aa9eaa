"""Recording streams whose partitions end with what is no record: transactions leave marks behind their records."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import Blocks, line, publish, updates_until
from cardinal.consumer import Consumer
from cardinal.copying import recording
from cardinal.copying.recording import Recorder
from cardinal.errors import CursorExpiredError
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_devkit.testing.memory import MemoryBroker
from recordings import records_of
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cardinal.protocols.streams.types import Partition


class _Trailing(MemorySource):
    """Every partition ends with marks, which a reader passes when it has read everything before."""

    marks = 1

    def assign(self, positions: Mapping[Partition, int]) -> None:
        ends = {where: high for where, (_, high) in super().watermarks().items()}
        super().assign({where: min(at, ends.get(where, at)) for where, at in positions.items()})

    def positions(self) -> dict[Partition, int]:
        ends = {where: high for where, (_, high) in super().watermarks().items()}
        return {where: at + self.marks * (at == ends[where]) for where, at in super().positions().items()}

    def watermarks(self) -> dict[Partition, tuple[int, int]]:
        return {where: (low, high + self.marks) for where, (low, high) in super().watermarks().items()}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBroker]:
    monkeypatch.setattr("cardinal_devkit.testing.memory.MemorySource", _Trailing)
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


def _step_until_recorded(recorder: Recorder, count: int) -> None:
    until(lambda: recorder.progress.records >= count, step=lambda: recorder.step(0.05))


def test_transaction_markers_do_not_count_as_lag(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 5))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    _step_until_recorded(recorder, len(broker.records()))
    assert recorder.at_end
    assert recorder.progress.behind == 0
    recorder.close()
    assert recorder.progress.behind == 0


def test_records_held_in_memory_count_as_lag(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 2))
    recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
    publish(broker, line(3, 5))
    recorder.step(0.05)
    waiting = sum(len(queue) for queue in recorder._merge._queues.values())
    assert waiting
    assert recorder.progress.behind >= waiting
    recorder.close()


def test_a_recorder_without_new_records_logs_its_position_and_continues(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor of the live stream stands behind the marks; and whoever kills the recorder now loses nothing."""
    monkeypatch.setattr(recording, "_IDLE_SECONDS", 0.0)
    folder = f"file://{tmp_path}"
    publish(broker, line(1, 5))
    with Consumer(broker.url, Blocks()) as consumer:
        cursor = updates_until(consumer, "5a")[-1].cursor
    recorder = Recorder(broker.url, folder, Blocks())
    count = len(broker.records())
    _step_until_recorded(recorder, count)
    recorder.step(0.0)
    with Consumer(folder, Blocks(), start=cursor, idle_timeout=0.2) as consumer:
        assert list(consumer) == []
    assert sorted(records_of(folder)) == broker.records()
    segments = len(list(tmp_path.glob("*.avro")))
    monkeypatch.setattr(_Trailing, "marks", 2)
    recorder.step(0.0)
    assert len(list(tmp_path.glob("*.avro"))) == segments  # each time costs one, so not each time
    monkeypatch.setattr(recording, "_DECLARE_SECONDS", 0.0)
    recorder.step(0.0)
    assert len(list(tmp_path.glob("*.avro"))) == segments + 1
    recorder.close()
    assert sorted(records_of(folder)) == broker.records()


def test_an_idle_partition_is_reported_as_read(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorder of a busy stream always hears something: its folder refused the cursor until the next record there."""
    monkeypatch.setattr(recording, "_IDLE_SECONDS", math.inf)
    folder = f"file://{tmp_path}"
    publish(broker, line(1, 5))
    with Consumer(broker.url, Blocks()) as consumer:
        cursor = updates_until(consumer, "5a")[-1].cursor
    recorder = Recorder(broker.url, folder, Blocks())
    _step_until_recorded(recorder, len(broker.records()))
    with pytest.raises(CursorExpiredError, match="wait for the recording"):
        Consumer(folder, Blocks(), start=cursor, idle_timeout=0.2)
    monkeypatch.setattr(recording, "_DECLARE_SECONDS", 0.0)
    recorder.step(0.0)
    with Consumer(folder, Blocks(), start=cursor, idle_timeout=0.2) as consumer:
        assert list(consumer) == []
    recorder.close()
