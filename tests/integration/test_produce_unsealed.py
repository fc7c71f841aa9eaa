"""A producer that is told to stop while its stream takes nothing says what is not sealed, and does not end with 0."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

from commands import COMMAND, DEADLINE, limited

from cardinal import Consumer

FILE_BYTES = 100_000
"""How long a file may be for the producer: its first segment is full long before the chain ends."""


def test_blocks_that_could_not_be_sealed_are_counted_and_sent_the_next_time(tmp_path: Path) -> None:
    stream, said = f"file://{tmp_path}/log", tmp_path / "said"
    node = "dev://?seed=9&blocks=300&reorg-rate=0"
    args = ["produce", "--producer-id", "a", "--from", node, "--to", stream]
    began = time.monotonic()
    with said.open("w") as log:
        producer = subprocess.Popen([*limited(FILE_BYTES), *args], stderr=log)
    try:
        while "is replaced: " not in said.read_text():
            assert producer.poll() is None, said.read_text()
            assert time.monotonic() - began < DEADLINE
            time.sleep(0.05)
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
