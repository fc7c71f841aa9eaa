"""Many blocks that lack messages at once: the hook is asked about each of them, in its turn."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming import healing
from cardinal.consuming.healing import Healer
from cardinal.errors import TopicError
from cardinal.protocols.streams import Routed, split
from cardinal.protocols.streams.events import Explanation
from cardinal.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

LACKING = range(5, 160, 3)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


@pytest.mark.parametrize("on_incomplete", ["skip", "halt"])
@pytest.mark.parametrize("begun", [True, False])
def test_no_block_is_forgotten_that_was_overdue_with_many_others(
    broker: MemoryBroker,
    on_incomplete: str,
    begun: bool,  # noqa: FBT001 - a case
) -> None:
    """A third of the chain lacks a message each."""
    asked: list[int | None] = []
    lost: dict[bytes, list[Routed]] = {}

    def heal(lacking: Explanation) -> list[Routed]:
        asked.append(lacking.number)
        return lost.get(lacking.block, [])

    publish(broker, line(1, 4))
    with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE, heal=heal, on_incomplete=on_incomplete) as reading:
        if begun:
            until(reading, "4a")
        sink = broker.sink(Blocks(), producer_id="one")
        for payload in line(5, 200):
            messages = split(payload, Blocks().topics, "block")
            if payload.number in LACKING:
                lost[payload.hash] = [one for one in messages if one.topic == "b"]
                messages = [one for one in messages if one.topic != "b"]
            sink.send(messages, None).result(DEADLINE)
        delivered = steps(until(reading, "200a"))
    assert delivered[-196:] == [f"+{number}a" for number in range(5, 201)]
    assert sorted(number for number in asked if number is not None) == [*LACKING]


# --- the one who asks --------------------------------------------------------------------------------------


class Asked:
    """A hook that answers nothing, and only when it may go on."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.may_go_on = threading.Event()
        self.healer = Healer(self.heal)

    def heal(self, lacking: Explanation) -> list[Routed]:
        assert self.may_go_on.wait(DEADLINE)
        self.blocks.append(lacking.block)
        return []

    def answers(self) -> int:
        """Until nothing is left to be answered; how many answers came."""
        answers, deadline = 0, time.monotonic() + DEADLINE
        while self.healer.busy:
            assert time.monotonic() < deadline
            answers += len([*self.healer.results()])
        return answers


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.may_go_on.set()
    asked.healer.close()


@pytest.mark.parametrize(("count", "most"), [(2_500, None), (2_500, 100)])
def test_so_many_blocks_wait_for_the_hook_in_their_order(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, count: int, most: int | None
) -> None:
    if most is not None:
        monkeypatch.setattr(healing, "_REQUESTS_MAX", most)
    hashes = [number.to_bytes(32, "big") for number in range(count)]
    for block_hash in hashes:
        asked.healer.request(Explanation(block_hash, None, "open"))
    asked.may_go_on.set()
    assert asked.answers() == (most or count)
    assert asked.blocks == hashes[:most]


def test_a_consumer_that_cannot_be_made_leaves_no_thread(broker: MemoryBroker) -> None:
    before = set(threading.enumerate())
    with pytest.raises(TopicError):
        Consumer(broker.url, Blocks(), heal=lambda _lacking: [], topics_timeout=0.0)
    assert set(threading.enumerate()) <= before
