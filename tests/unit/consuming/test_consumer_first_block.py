"""With which block a consumer begins that was there before the stream had one."""

from __future__ import annotations

import string
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish, steps
from cardinal.consumer import Consumer
from cardinal.consuming import partition_sync
from cardinal.testing.memory import MemoryBroker
from cardinal.transports.partitioner import fnv1a_partition

PARTITIONS = 3


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=PARTITIONS) as broker:
        for topic in Blocks().all_topics:
            broker.create(topic)
        yield broker


def _branch(first: int, then: tuple[int, ...]) -> str:
    """A branch whose first Batch lies in the last partition, and these in ones that are read before it."""

    def partition(name: str) -> int:
        return fnv1a_partition(b"\0" + hash_of(name), PARTITIONS)

    return next(
        letter
        for letter in string.ascii_letters
        if partition(f"{first}{letter}") == 2 > max(partition(f"{number}{letter}") for number in then)
    )


@pytest.mark.parametrize("polled", [1, 3, 10])
def test_it_begins_with_the_lowest_of_the_blocks_that_come_at_once(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, polled: int
) -> None:
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", polled)
    branch = _branch(1, (2, 3))
    with Consumer(broker.url, Blocks(), idle_timeout=0.3) as consumer:
        assert not list(consumer)
        assert consumer.caught_up
        publish(broker, line(1, 6, branch))
        updates = []
        consumer._options = replace(consumer._options, idle_timeout=DEADLINE)
        for update in consumer:
            updates.append(update)
            if update.added[-1].hash == hash_of(f"6{branch}"):
                break
    assert steps(updates) == [f"+{number}{branch}" for number in range(1, 7)]
