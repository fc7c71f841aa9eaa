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
    monkeypatch: pytest.MonkeyPatch,
    on_incomplete: str,
    begun: bool,  # noqa: FBT001 - a case
) -> None:
    """A third of the chain lacks a message each, and a tenth of that may be asked about together."""
    monkeypatch.setattr(healing, "_ASKED_MAX", 5)
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
    """A hook that answers nothing, and only when it may go on; whoever explains says what was set."""

    def __init__(self) -> None:
        self.blocks: list[Explanation] = []
        self.states: dict[bytes, str] = {}
        self.may_go_on = threading.Event()
        self.healer = Healer(self.heal, self.explain)

    def heal(self, lacking: Explanation) -> list[Routed]:
        assert self.may_go_on.wait(DEADLINE)
        self.blocks.append(lacking)
        return []

    def explain(self, block_hash: bytes) -> Explanation:
        return Explanation(block_hash, None, self.states.get(block_hash, "open"))

    def ask_all(self) -> int:
        """Until nothing is left to be asked about; how many answers came."""
        answers, deadline = 0, time.monotonic() + DEADLINE
        while self.healer.busy:
            assert time.monotonic() < deadline
            self.healer.ask_next()
            answers += len([*self.healer.results()])
        return answers


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.may_go_on.set()
    asked.healer.close()


def hashes(count: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(count)]


def test_more_blocks_than_are_asked_about_together_are_asked_about_in_their_order(asked: Asked) -> None:
    for block_hash in hashes(2_500):
        asked.healer.ask(block_hash)
    asked.may_go_on.set()
    assert asked.ask_all() == 2_500
    assert [one.block for one in asked.blocks] == hashes(2_500)


def test_a_block_is_explained_when_its_turn_comes(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second became whole, and of the third its messages were dropped, while the hook was asked about the first."""
    monkeypatch.setattr(healing, "_ASKED_MAX", 1)
    first, second, third, fourth = hashes(4)
    for block_hash in (first, second, third, fourth):
        asked.healer.ask(block_hash)
    asked.healer.ask_next()
    asked.states |= {second: "complete", third: "unknown", fourth: "dropped"}
    asked.may_go_on.set()
    assert asked.ask_all() == 2
    assert [(one.block, one.state) for one in asked.blocks] == [(first, "open"), (third, "unknown")]


def test_what_waits_is_bounded_by_the_blocks_that_are_open(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "_WAITING_MAX", 20)
    still_open = hashes(100)[::10]
    asked.states |= {block_hash: "dropped" for block_hash in hashes(100) if block_hash not in still_open}
    for _ in range(50):
        for block_hash in hashes(100):
            asked.healer.ask(block_hash)
            assert len(asked.healer._waiting) <= 20
    asked.may_go_on.set()
    asked.ask_all()
    assert {one.block for one in asked.blocks} == {*still_open}


def test_a_consumer_that_cannot_be_made_leaves_no_thread(broker: MemoryBroker) -> None:
    before = set(threading.enumerate())
    with pytest.raises(TopicError):
        Consumer(broker.url, Blocks(), heal=lambda _lacking: [], topics_timeout=0.0)
    assert set(threading.enumerate()) <= before
