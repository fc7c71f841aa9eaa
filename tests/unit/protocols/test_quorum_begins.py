"""Policy `quorum:k`: where blocks lie, where a stream begins, and where it goes on after a restart."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import Completed
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from quorum_scenes import HONEST, Scene, at, part
from quorums import LIES, NAMES, Topics, quorum, said

# --- restarts and the start --------------------------------------------------------------------------------


def test_a_restart_blames_no_producer_that_was_ahead_in_some_partitions_and_last_in_others() -> None:
    scene = Scene()
    for number in range(1, 61):
        first, last = said(at(number))[:-3], said(at(number))[-3:]
        scene.write("c", *first)
        scene.chain(number, number, *HONEST)
        scene.write("c", *last)
    assert scene.read() == []
    scene.reading.restart()
    scene.chain(61, 80, *NAMES)
    assert scene.read() == []
    assert scene.head == 80


def test_a_block_lies_where_the_first_message_of_any_copy_was_seen() -> None:
    assembler, topics = quorum(), Topics()
    assembler.receive(topics.write("c", LIES["value"](at(1))))
    assembler.receive(topics.write("a", said(at(1))))
    (event,) = [event for event in assembler.receive(topics.write("b", said(at(1)))) if isinstance(event, Completed)]
    assert event.positions == dict.fromkeys(topics.partitions, 0)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_too_few_have_sent_yet_leave_a_doubt_about_where_a_stream_begins(name: str) -> None:
    """One producer's log is read ahead of the others': what only it sent so far is about to come."""
    scene = Scene(patient=True)
    others = [other for other in NAMES if other != name]
    scene.chain(1, 10, name)
    scene.chain(5, 10, *others)
    scene.read()
    assert scene.reading.updates == []
    scene.chain(1, 4, *others)
    scene.read()
    assert scene.head == 10


def test_the_open_blocks_are_those_that_are_not_agreed_on() -> None:
    assembler: QuorumReassembler = quorum()
    topics = Topics()
    assembler.receive([*topics.write("c", part(at(3))), *topics.write("a", said(at(4)))])
    assert {assembler.number_of(block) for block in assembler.open_blocks()} == {3, 4}
    assembler.receive([*topics.write("a", said(at(3))), *topics.write("b", said(at(3)))])
    assert {assembler.number_of(block) for block in assembler.open_blocks()} == {4}
