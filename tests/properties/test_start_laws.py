"""A consumer that begins above a stream's start follows the chain, whatever leaves below its first block."""

from __future__ import annotations

import random
import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal_devkit.testing.generator import ChainGenerator
from cardinal_devkit.testing.memory import MemoryBroker
from examples import few

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.protocols.streams import BlockRef, ChainUpdate
    from cardinal_devkit.testing.generator import ChainMove

IDLE_SECONDS = 0.4
ATTEMPTS = 50


class Reading:
    """A consumer's chain, checked update by update."""

    def __init__(self) -> None:
        self.chain: list[BlockRef] = []
        self.seq = 0
        self.cursor: str | None = None

    def take(self, updates: Iterable[ChainUpdate]) -> None:
        for update in updates:
            assert update.first_seq == self.seq + 1
            self.seq, self.cursor = update.seq, str(update.cursor)
            for block in update.removed:
                assert self.chain.pop() == block.ref
            for block in update.added:
                assert not self.chain or self.chain[-1].number + 1 == block.number
                self.chain.append(block.ref)


@pytest.mark.parametrize("seed", few(1, range(60)))
def test_a_consumer_that_begins_anywhere_and_restarts_anywhere_has_the_chain(seed: int) -> None:
    dice = random.Random(seed)
    generator = ChainGenerator(seed, size=2)
    app = generator.application
    moves = generator.moves(30, reorg_rate=dice.choice([0.3, 0.5]), max_depth=dice.choice([2, 5]))
    chain: list[BlockRef] = []

    def publish(producer: Producer, several: list[ChainMove]) -> None:
        for move in several:
            for payload in move.mined:
                producer.add(payload)
            del chain[len(chain) - len(move.removed) :]
            chain.extend(move.added)
        producer.flush(60)

    opened = dice.randrange(3, 20)
    ends = [*sorted(dice.sample(range(opened + 1, len(moves)), 3)), len(moves)]
    reading = Reading()
    with (
        MemoryBroker(uuid.uuid4().hex, partitions=dice.choice([1, 3])) as broker,
        Producer(broker.url, app, producer_id="one") as producer,
    ):
        publish(producer, moves[:opened])
        start = dice.choice(["latest", max(1, chain[-1].number - dice.randrange(3))])
        unread = {payload.hash for move in moves[:opened] for payload in move.mined} if start == "latest" else set()
        consumer = Consumer(broker.url, app, start=start, idle_timeout=IDLE_SECONDS)
        for begin, end in zip([opened, *ends], ends, strict=False):
            publish(producer, moves[begin:end])
            reading.take(consumer)
            if reading.cursor is not None and dice.random() < 0.5:
                consumer.close()
                consumer = Consumer(broker.url, app, start=reading.cursor, idle_timeout=IDLE_SECONDS)
        with closing(consumer):
            for _ in range(ATTEMPTS):
                if consumer.ready and reading.chain and reading.chain[-1] == chain[-1]:
                    break
                reading.take(consumer)
                if unread.intersection(one.block for one in consumer.awaited):
                    return  # the chain came back to a block that was published before latest: it is named
            assert reading.chain == chain[-len(reading.chain) :]
            assert start in ("latest", reading.chain[0].number)
            assert consumer.ready
