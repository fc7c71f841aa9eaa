"""Policy `quorum:k`: what one producer says of a block's number decides nothing but its own copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.protocols.streams import BlockRef, Completed, Routed, Stale
from cardinal.protocols.streams.events import ReassemblyEvent
from quorum_scenes import HONEST, Scene, at, part
from quorums import LIES, Topics, quorum, said

# --- one producer's word -----------------------------------------------------------------------------------


def fed(*rounds: tuple[str, list[Routed]] | int) -> list[ReassemblyEvent]:
    assembler, topics, events = quorum(), Topics(), []
    for one in rounds:
        events += assembler.head_moved(one) if isinstance(one, int) else assembler.receive(topics.write(*one))
    return events


@pytest.mark.parametrize("claimed", range(0, 46, 3))
@pytest.mark.parametrize("shape", [said, part])
def test_a_producer_that_is_first_and_lies_about_the_number_keeps_no_block_from_the_others(
    claimed: int, shape: object
) -> None:
    false = shape(replace(at(46), number=claimed))  # type: ignore[operator]  # said or part
    events = fed(40, ("c", false), *range(41, 46), ("a", said(at(46))), ("b", said(at(46))), 60, 80)
    assert [event.payload.hash for event in events if isinstance(event, Completed)] == [at(46).hash]


@pytest.mark.parametrize(("known", "claimed"), [(20, 2), (20, 6), (20, 12), (40, 20), (40, 24), (40, 30), (40, 46)])
@pytest.mark.parametrize("shape", [said, part])
def test_no_lie_about_a_number_outlives_a_restart(known: int, claimed: int, shape: object) -> None:
    """A consumer remembers which blocks are done with; one producer's word must not put a block among them."""
    scene = Scene()
    scene.chain(1, known, *HONEST)
    scene.write("c", *shape(replace(at(known + 20), number=claimed)))  # type: ignore[operator]  # said or part
    for number in range(known + 1, known + 20):
        scene.chain(number, number, *HONEST)
        scene.read()
    scene.reading.restart()
    scene.chain(known + 20, known + 30, *HONEST)
    scene.read()
    assert scene.head == known + 30


def test_a_copy_that_was_abandoned_is_not_called_complete() -> None:
    assembler, topics = quorum(), Topics()
    assembler.receive(topics.write("c", part(replace(at(46), number=20))))
    assembler.receive(topics.write("a", said(at(46))[:2]))
    assembler.head_moved(44)
    assembler.receive([*topics.write("a", said(at(46))), *topics.write("b", said(at(46)))])
    assert assembler.explain(at(46).hash).reason == "agreed on by 'a', 'b'; the copy of 'c' is abandoned"
    assert assembler.receive(topics.write("c", LIES["value"](at(46)))) == []


def test_a_block_that_nobody_agreed_on_is_stale_below_the_threshold_for_each_producer() -> None:
    """They agree on its Batch, not on its content."""
    events = fed(30, ("a", said(at(20))), ("b", LIES["value"](at(20))), 50)
    reason = "not agreed on 16 blocks below the head"
    assert events == [Stale(BlockRef(20, at(20).hash), reason, name) for name in "ab"]
