"""A backlog that is longer than what a consumer remembers, and whose partitions come one after the other."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal import consumer as consumers
from cardinal.consumer import Consumer
from cardinal.protocols.streams.events import Event, Incomplete
from cardinal.protocols.streams.following.follower import Follower
from cardinal.protocols.streams.following.missing import MissingBlocks
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    import pytest

    from cardinal.consuming.healing import HealingFailed
    from cardinal.protocols.streams.events import Explanation
    from cardinal.protocols.streams.types import Routed

BLOCKS = 6_000
REMEMBERED = 50


def test_no_block_that_was_delivered_long_ago_is_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were overdue while other partitions were read, and nobody is queried for what they lacked then."""
    monkeypatch.setattr(
        consumers, "Follower", lambda settings, *cursor: Follower(replace(settings, history=REMEMBERED), *cursor)
    )
    suspect, suspected = MissingBlocks.suspect, set()

    def note(missing: MissingBlocks, block_hash: bytes, *args: int, **options: bool) -> None:
        suspected.add(block_hash)
        suspect(missing, block_hash, *args, **options)

    monkeypatch.setattr(MissingBlocks, "suspect", note)
    told: list[Event | HealingFailed] = []
    asked: list[Explanation] = []

    def heal(lacking: Explanation) -> list[Routed]:
        asked.append(lacking)
        return []

    app = Blocks(topics={"a/": "y", "b/": "z"})
    with MemoryBroker(uuid.uuid4().hex, partitions=3) as broker:
        publish(broker, line(1, BLOCKS), app=app)
        with Consumer(broker.url, app, idle_timeout=DEADLINE, on_event=told.append, heal=heal) as consumer:
            found = steps(until(consumer, f"{BLOCKS}a"))
            assert len(suspected) > BLOCKS / 2, "else this proves nothing"
            publish(broker, line(BLOCKS + 1, BLOCKS + 5), app=app)
            found += steps(until(consumer, f"{BLOCKS + 5}a"))
    assert found == [f"+{number}a" for number in range(1, BLOCKS + 6)]
    assert not [event for event in told if isinstance(event, Incomplete)]
    assert asked == []
