"""A block whose content is there and not read yet is not passed over, however many complete blocks wait for it."""

from __future__ import annotations

import uuid

import pytest

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming import partition_sync
from cardinal.testing.memory import MemoryBroker


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_what_lies_behind_the_old_ends_is_read_before_anything_is_given_up(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """The Batches' topic is read first, then the others', partition by partition: blocks are complete in any order."""
    monkeypatch.setattr(partition_sync, "POLL_RECORDS", 10)
    app = Blocks(topics={"a/": "y", "b/": "z"})
    with MemoryBroker(uuid.uuid4().hex, partitions=partitions) as broker:
        publish(broker, line(1, 4), app=app)
        with Consumer(broker.url, app, idle_timeout=DEADLINE) as consumer:
            assert steps(until(consumer, "4a"))[-1] == "+4a"
            publish(broker, line(5, 120), app=app)
            assert steps(until(consumer, "120a")) == [f"+{number}a" for number in range(5, 121)]
