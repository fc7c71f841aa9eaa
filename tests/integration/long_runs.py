"""Helpers of long runs on real nodes: a producer that is killed repeatedly, and a checked consumer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from commands import DEADLINE, Processes

from cardinal import Consumer, Payload
from waiting import until_async

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams import ChainUpdate

LIVES = (1.5, 3.0)
"""Bounds of a producer's life, in seconds."""


class CheckedChain:
    """The chain that a consumer's updates build; their numbers are dense."""

    def __init__(self) -> None:
        self.chain: list[Payload] = []
        self.reorgs: list[int] = []
        self.seq = 0

    def apply(self, update: ChainUpdate) -> None:
        assert update.first_seq == self.seq + 1
        self.seq = update.seq
        for removed in update.removed:
            assert self.chain.pop().hash == removed.hash
        for added in update.added:
            assert isinstance(added, Payload)
            assert not self.chain or added.parent == self.chain[-1].hash
            self.chain.append(added)
        if update.removed:
            self.reorgs.append(len(update.removed))


class Reading(CheckedChain):
    """A consumer on a thread of its own, and the chain of its updates."""

    def __init__(self, changed: threading.Condition | None = None) -> None:
        super().__init__()
        self.failed: BaseException | None = None
        self._changed = changed or threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._thread.start()

    def _run(self) -> None:
        try:
            for update in self._consumer:
                with self._changed:
                    self.apply(update)
                    self._changed.notify_all()
        except BaseException as failed:  # noqa: BLE001 - the test's thread raises it
            self.failed = failed
            with self._changed:
                self._changed.notify_all()

    async def reaches(self, block_hash: bytes) -> None:
        await until_async(lambda: self.failed or (self.chain and self.chain[-1].hash == block_hash), DEADLINE)
        if self.failed is not None:
            raise self.failed

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(DEADLINE)


def consumed(url: str, app: Application, head: bytes) -> list[Payload]:
    """The chain that a consumer's updates build, up to this head."""
    checked = CheckedChain()
    with Consumer(url, app, idle_timeout=3 * DEADLINE) as consumer:
        for update in consumer:
            checked.apply(update)
            if checked.chain[-1].hash == head:
                break
    return checked.chain


def reading_of(stream: str, chain_id: int) -> Reading:
    reading = Reading()
    reading.begin(Consumer(stream, chain_id=chain_id, topics_timeout=DEADLINE))
    return reading


@contextmanager
def reading(stream: str, chain_id: int) -> Iterator[Reading]:
    reader = reading_of(stream, chain_id)
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
