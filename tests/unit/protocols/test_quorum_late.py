"""Policy `quorum:k`: copies that come when the chain is past their block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.protocols.streams import Divergence, Incomplete, Stale
from cardinal.protocols.streams.types import BlockRef
from quorum_scenes import HONEST, Scene, at, part
from quorums import LIES, NAMES, Topics, quorum, said

VOTE = "not agreed on 16 blocks below the head"
PART = "incomplete 16 blocks below the head: it lacks 1 messages"


def stale(numbers: range, producer: str, reason: str = VOTE) -> list[Stale]:
    return [Stale(BlockRef(number, at(number).hash), reason, producer) for number in numbers]


# --- copies of old blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_old_blocks_that_one_producer_sends_again_are_stale_and_nothing_else(*, whole: bool, restarted: bool) -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    assert scene.read() == []
    if restarted:
        scene.reading.restart()
        assert scene.read() == []
    for number in range(11, 31):
        scene.write("c", *(said if whole else part)(at(number)))
    assert scene.read() == []
    scene.chain(81, 90, *NAMES)
    assert scene.read() == stale(range(11, 31), "c", VOTE if whole else PART)
    assert scene.head == 90


def test_old_blocks_that_enough_producers_send_again_are_stale_as_under_the_policy_first() -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    scene.chain(11, 12, *NAMES)
    reports = scene.read()
    assert {event.block for event in reports if isinstance(event, Stale)} == {
        BlockRef(number, at(number).hash) for number in (11, 12)
    }
    assert all(isinstance(event, Stale) and event.producer is None for event in reports)


def test_a_producer_that_catches_up_from_far_behind_is_told_of_as_late_only() -> None:
    """It was away while 80 blocks were delivered, and sends three for every one of the others until it is up again."""
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    behind = 0
    for number in range(81, 161):
        scene.chain(number, number, *HONEST)
        for _ in range(3):
            if behind < number:
                behind += 1
                scene.chain(behind, behind, "c")
        scene.read()
    assert behind == 160
    assert scene.head == 160
    assert {type(event) for event in scene.reading.reports} == {Stale}
    assert {event.producer for event in scene.reading.reports if isinstance(event, Stale)} == {"c"}
    assert not scene.reading.follower.reassembler.open_blocks()


def test_late_copies_of_blocks_that_are_still_known_are_compared_message_by_message() -> None:
    scene = Scene()
    scene.chain(1, 60, *HONEST)
    scene.read()
    scene.write("c", *part(at(40)), *LIES["value"](at(41)))
    (event,) = scene.read()
    assert isinstance(event, Divergence)
    assert event.block == at(41).hash
    assert event.kept == b"41a-tx1"
    scene.chain(61, 80, *NAMES)
    assert scene.read() == []
    assert scene.reading.follower.reassembler.explain(at(60).hash).state != "open"


def test_old_blocks_make_no_other_block_overdue() -> None:
    """A deadline is a number of blocks that come; what is sent again proves nothing about what is awaited."""
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    scene.write("a", *said(at(81)))
    scene.chain(1, 30, "c")
    assert scene.read() == []
    scene.write("b", *said(at(81)))
    scene.chain(82, 90, *NAMES)
    assert not [event for event in scene.read() if not isinstance(event, Stale)]
    assert scene.head == 90


def test_while_the_chain_stands_still_old_blocks_are_not_overdue_and_those_that_it_needs_are() -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    scene.chain(11, 14, "c")
    scene.chain(81, 99, "a")
    reports = [*scene.read(), *scene.reading.take([])]
    late = [event.explanation.block for event in reports if isinstance(event, Incomplete)]
    assert late == [at(number).hash for number in range(81, 97)]
    scene.chain(81, 99, "b")
    assert scene.read() == stale(range(11, 15), "c")
    assert scene.head == 99


def test_a_block_on_which_producers_disagree_is_stale_for_each_when_its_own_number_is_below_the_threshold() -> None:
    assembler = quorum()
    topics = Topics()
    assembler.head_moved(30)
    assembler.receive(topics.write("a", said(replace(at(40), number=15))))
    assembler.receive(topics.write("c", said(replace(at(40), number=13))))
    assert assembler.head_moved(30) == []
    assert assembler.head_moved(40) == [
        Stale(BlockRef(15, at(40).hash), VOTE, "a"),
        Stale(BlockRef(13, at(40).hash), VOTE, "c"),
    ]
    assert assembler.explain(at(40).hash).state == "unknown"
    assembler.receive(topics.write("b", said(at(40))))
    assert assembler.explain(at(40).hash).state == "open"
