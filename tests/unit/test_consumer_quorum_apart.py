"""Policy `quorum:k` where producers filled the topics one after the other, farther apart than there is room for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, hash_of, line, publish
from cardinal import consumer
from cardinal.consuming import loop as driving
from cardinal.consuming.reader import Reader
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams import FollowerSettings

ROOM = 300


@pytest.mark.parametrize(
    ("producers", "blocks"),
    [(("p", "q"), 3 * ROOM), pytest.param(("p", "q", "r"), 5 * ROOM, marks=pytest.mark.slow)],
)
def test_from_the_start_every_block_is_delivered(
    monkeypatch: pytest.MonkeyPatch, producers: tuple[str, ...], blocks: int
) -> None:
    """What is dropped for want of room is read again before the stream begins: it begins with the first block."""
    _little_room(monkeypatch)
    monkeypatch.setattr(consumer, "_BOUNDS", replace(consumer._BOUNDS, open_blocks=ROOM))
    chain = line(1, blocks)
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        for producer in producers:
            publish(broker, chain, producer)
        numbers: list[int] = []
        with consumer.Consumer(
            broker.url, Blocks(), policy="quorum:2", producers=("p", "q", "r"), idle_timeout=DEADLINE
        ) as reading:
            for update in reading:
                assert not update.removed
                numbers += [one.number for one in update.added]
                if update.added[-1].hash == hash_of(f"{blocks}a"):
                    break
    assert numbers == [*range(1, blocks + 1)]


@pytest.mark.parametrize(("seconds", "head"), [(0.0, ROOM), (3600.0, None)])
def test_what_is_read_again_without_end_does_not_hold_up_the_beginning(
    monkeypatch: pytest.MonkeyPatch, seconds: float, head: int | None
) -> None:
    """Half of the room for blocks that wait is taken for so long."""
    _little_room(monkeypatch)
    monkeypatch.setattr(Reassembler, "recovers", True)
    monkeypatch.setattr(Reader, "reads_again", True)
    monkeypatch.setattr(driving, "_CROWDED_SECONDS", seconds)
    chain = line(1, ROOM)
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, chain[: ROOM // 3])
        with consumer.Consumer(broker.url, Blocks()) as reading:
            for payloads in ([], chain[ROOM // 3 :]):
                publish(broker, payloads)
                for _ in range(100):
                    reading._step()
                assert reading.caught_up
            assert (None if reading.head is None else reading.head.number) == head


def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of = consumer.settings_of

    def small(app: Application, tracked: tuple[str, ...] | None) -> FollowerSettings:
        return replace(settings_of(app, tracked), max_waiting=ROOM)

    monkeypatch.setattr(consumer, "settings_of", small)
