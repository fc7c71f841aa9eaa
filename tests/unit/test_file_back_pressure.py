"""Who sends faster than the disk takes waits: what is under way in a file sink is bounded in bytes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from file_logs import DEADLINE, block, everything, sink_of

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

CALLS = 60
SIZE = 2_000


def test_sending_waits_while_the_disk_stands_still_and_then_everything_is_written_in_order(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, "fsync=never&cardinal.queue.bytes=20000")
    futures: list[Future[None]] = []

    def send() -> None:
        for number in range(CALLS):
            futures.append(sink.send(*block(number, messages=1, size=SIZE)))  # noqa: PERF401 - it is looked at meanwhile

    sender = threading.Thread(target=send)
    with sink._committer.writing:  # what the writer's thread needs for every write
        sender.start()
        _wait_until_still(futures)
        assert sender.is_alive(), "all of it was taken, and nothing written"
        assert len(futures) < 20_000 // SIZE + 3
        assert not any(future.done() for future in futures)
    sender.join(DEADLINE)
    for future in futures:
        future.result(DEADLINE)
    sink.close()
    seals = [record.key[1:33] for record in everything(tmp_path) if record.topic == "block"]
    assert seals == [number.to_bytes(32, "big") for number in range(CALLS)]


def _wait_until_still(futures: list[Future[None]]) -> None:
    """Until nothing more was taken for a while."""
    deadline = time.monotonic() + DEADLINE
    seen = -1
    while seen != len(futures) or not futures:
        assert time.monotonic() < deadline
        seen = len(futures)
        time.sleep(0.2)
