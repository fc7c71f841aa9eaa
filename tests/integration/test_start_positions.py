"""Start positions of `cardinal tail` and `cardinal record`: a block's number or a time, as in the SDK."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from commands import Processes, run_here

from blocks import Blocks, line, steps, updates_until
from cardinal.consumer import Consumer
from cardinal.copying.recording import Recorder
from cardinal.errors import ConfigurationError
from cardinal.producer import Producer
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_tail_begins_at_a_number_and_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Processes(tmp_path) as processes:
        made = processes.start("produce", "--from", "dev://?blocks=60&reorg-rate=0", "--to", f"file://{tmp_path}/log")
        assert processes.end(made)[0] == 0
        before, after = "2001-01-01", "2999-01-01T00:00:00+02:00"
        began = {
            start: processes.start("tail", f"file://{tmp_path}/log", "--format", "json", "--stop", "60", *start)
            for start in (("--start", "50"), ("--start", before))
        }
        numbers = {}
        for start, process in began.items():
            status, out, said = processes.end(process)
            assert status == 0, said
            numbers[start[1]] = [block["number"] for text in out.splitlines() for block in json.loads(text)["added"]]
        assert numbers == {"50": list(range(50, 61)), before: list(range(61))}
        status, out, said = run_here(capfd, "tail", f"file://{tmp_path}/log", "--start", "5000")
        assert (status, out) == (1, "")
        assert said.startswith("error: the stream does not hold block 5000 yet")
        process = processes.start(
            "record", "--from", f"file://{tmp_path}/log", "--to", f"file://{tmp_path}/no", "--exit-at", "end"
        )
        assert processes.end(process)[0] == 0
        process = processes.start(
            "record",
            "--from",
            f"file://{tmp_path}/log",
            "--to",
            f"file://{tmp_path}/later",
            "--exit-at",
            "end",
            "--start",
            after,
        )
        status, _, said = processes.end(process)
        assert status == 0
        assert " info    0 records, 0.0 MB" in said, "nothing was published from then on"


def _recorded(broker: MemoryBroker, folder: Path, start: int | datetime) -> list[str]:
    """A recording from there on, to the end as it is now; its blocks."""
    recorder = Recorder(broker.url, f"file://{folder}", Blocks(), start=start)
    while not recorder.at_end:
        recorder.step(0.1)
    recorder.close()
    with Consumer(f"file://{folder}", Blocks(), start=start) as consumer:
        return steps(updates_until(consumer, "40a"))


@pytest.mark.parametrize("start", [30, datetime.fromtimestamp(1_000_030, UTC)])
def test_a_recording_holds_what_reading_from_there_needs(tmp_path: Path, start: int | datetime) -> None:
    seconds = 1_000_000.0
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: seconds) as broker:
        with Producer(broker.url, Blocks(), producer_id="one") as producer:
            for payload in line(1, 40):
                seconds = 1_000_000.0 + payload.number
                producer.add(payload).result(60)
        assert _recorded(broker, tmp_path, start) == [f"+{number}a" for number in range(30, 41)]
        # Going on, it begins where it ended, whatever was said.
        again = Recorder(broker.url, f"file://{tmp_path}", Blocks(), start=1)
        assert again.resumed
        assert again.at_end
        again.close()


def test_a_recording_cannot_begin_with_a_block_that_is_not_there(tmp_path: Path) -> None:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        with Producer(broker.url, Blocks(), producer_id="one") as producer:
            for payload in line(1, 4):
                producer.add(payload).result(60)
        with pytest.raises(ConfigurationError, match="does not hold block 9 yet"):
            Recorder(broker.url, f"file://{tmp_path}", Blocks(), start=9)
        with pytest.raises(ConfigurationError, match="needs its time zone"):
            Recorder(broker.url, f"file://{tmp_path}", Blocks(), start=datetime(2026, 1, 1))  # noqa: DTZ001 - what is wrong
        assert not list(tmp_path.glob("*.avro"))  # nothing of where the block was looked for
