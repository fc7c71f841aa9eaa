"""Who sends faster than the disk takes waits: what is under way in a file sink is bounded in bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from file_logs import DEADLINE, block, everything, sink_of
from serving import until

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
        until(lambda: len(futures) >= 20_000 // (2 * SIZE))
        sender.join(0.2)  # it would end where nothing is bounded
        assert sender.is_alive(), "all of it was taken, and nothing written"
        assert len(futures) < 20_000 // SIZE + 3
        assert not any(future.done() for future in futures)
    sender.join(DEADLINE)
    for future in futures:
        future.result(DEADLINE)
    sink.close()
    seals = [record.key[1:33] for record in everything(tmp_path) if record.topic == "block"]
    assert seals == [number.to_bytes(32, "big") for number in range(CALLS)]
