"""Helpers of long runs on real nodes: a producer that is killed repeatedly, and a checked consumer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from commands import DEADLINE, Processes

from cardinal import Consumer, Payload

LIVES = (1.5, 3.0)
"""Bounds of a producer's life, in seconds."""


class Reading:
    """Consumer on a thread of its own, with the chain of its updates."""

    def __init__(self, stream: str, chain_id: int) -> None:
        self.chain: list[Payload] = []
        self.reorgs: list[int] = []
        self.seqs: list[int] = []
        self.failed: BaseException | None = None
        self._stop = threading.Event()
        self._consumer = Consumer(stream, chain_id=chain_id, topics_timeout=DEADLINE)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for update in self._consumer:
                for payload in update.removed:
                    assert self.chain.pop().hash == payload.hash
                for payload in update.added:
                    assert isinstance(payload, Payload)
                    assert not self.chain or payload.parent == self.chain[-1].hash
                    self.chain.append(payload)
                if update.removed:
                    self.reorgs.append(len(update.removed))
                self.seqs += [update.first_seq, update.seq]
                if self._stop.is_set():
                    return
        except BaseException as failed:  # noqa: BLE001 - the test's thread raises it
            self.failed = failed

    async def reaches(self, block_hash: bytes) -> None:
        async with asyncio.timeout(DEADLINE):
            while not (self.chain and self.chain[-1].hash == block_hash):
                if self.failed is not None:
                    raise self.failed
                await asyncio.sleep(0.05)

    def close(self) -> None:
        self._stop.set()
        self._consumer.close()
        self._thread.join(DEADLINE)


@contextmanager
def reading(stream: str, chain_id: int) -> Iterator[Reading]:
    reader = Reading(stream, chain_id)
    try:
        yield reader
    finally:
        reader.close()


async def restarted(processes: Processes, command: list[str], until: asyncio.Event, dice: random.Random) -> int:
    """Run a producer that is killed every few seconds and restarted; returns the number of kills."""
    killed = 0
    while not until.is_set():
        process = processes.start(*command)
        try:
            async with asyncio.timeout(dice.uniform(*LIVES)):
                await until.wait()
        except TimeoutError:
            killed += 1
        process.kill()
        await asyncio.to_thread(process.wait)
    return killed


def assert_no_seq_is_missing(seqs: list[int]) -> None:
    """The numbers of updates, first and last of each, are dense."""
    assert seqs[0] == 1
    assert all(second == first + 1 for first, second in zip(seqs[1::2], seqs[2::2], strict=False))
