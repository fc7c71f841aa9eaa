"""Policy `quorum:k` where producers filled the topics one after the other, farther apart than blocks may be open."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, block, hash_of, line, messages, publish
from cardinal import consumer
from cardinal.consuming import loop, options
from cardinal.protocols.streams import Routed
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams import FollowerSettings

ROOM = 300


@pytest.mark.slow
@pytest.mark.parametrize(("producers", "blocks"), [(("p", "q"), 3 * ROOM), (("p", "q", "r"), 5 * ROOM)])
def test_from_the_start_every_block_is_delivered(
    monkeypatch: pytest.MonkeyPatch, producers: tuple[str, ...], blocks: int
) -> None:
    """Evicted blocks are re-read before the stream begins: it begins with the first block."""
    _little_room(monkeypatch)
    monkeypatch.setattr(options, "_BOUNDS", replace(options._BOUNDS, open_blocks=ROOM))
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


@pytest.mark.parametrize(("seconds", "begins"), [(0.0, True), (3600.0, False)])
def test_blocks_below_the_start_that_do_not_come_hold_up_the_beginning_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    begins: bool,  # noqa: FBT001 - a case
) -> None:
    """Of 2a only the Batch is there, and of blocks without Batches so many that each rewind evicts them again."""
    monkeypatch.setattr(options, "_BOUNDS", replace(options._BOUNDS, open_blocks=ROOM))
    monkeypatch.setattr(loop, "_DOUBT_SECONDS", seconds)
    monkeypatch.setattr(loop, "_QUIET_SECONDS", seconds)
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        sink = broker.sink(Blocks(), producer_id="p")
        sink.send([], messages(block("2a", "1a"))[-1]).result(DEADLINE)
        publish(broker, line(4, 20), "p")
        flood = [Routed("a", b"\x03" + b"%032d" % number + b"a/x", b"") for number in range(2 * ROOM)]
        sink.send(flood, None).result(DEADLINE)
        with consumer.Consumer(broker.url, Blocks(), policy="quorum:1", producers=("p",)) as reading:
            for _ in range(20):
                reading._step()
            assert (reading.head is not None) == begins


def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made = options.ConsumerOptions.follower_settings

    def small(given: options.ConsumerOptions, app: Application) -> FollowerSettings:
        return replace(made(given, app), max_waiting=ROOM)

    monkeypatch.setattr(options.ConsumerOptions, "follower_settings", small)
