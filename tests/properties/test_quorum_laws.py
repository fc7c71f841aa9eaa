"""The laws of policy `quorum:k`: with three producers of which one lies, whatever way records are interleaved."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.protocols.streams import Completed, Incomplete, Payload, Record, Routed
from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from quorums import LIES, NAMES, SILENT, Topics, as_delivered, delivered, quorum, reported, said, true, without_marks

Lies = dict[int, str]
unhurried = settings(deadline=None)
"""A scene takes milliseconds; a busy machine takes its time."""


class Scene(NamedTuple):
    """A chain of blocks, which of them one of the three producers lies about and how, and what a consumer reads."""

    blocks: list[Payload]
    lies: Lies
    liar: str
    records: list[Record]

    def __repr__(self) -> str:
        """Short: Hypothesis prints it."""
        return f"<{len(self.blocks)} blocks, {self.liar} lies {self.lies}, {len(self.records)} records>"


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    count = draw(st.integers(1, 6))
    blocks = [true(f"{index + 1}a", f"{index}a") for index in range(count)]
    lies = draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(sorted(LIES))))
    liar = draw(st.sampled_from(NAMES))
    rng = random.Random(draw(st.integers(0, 10**6)))
    topics = Topics()
    topics.mix({name: _written(name, blocks, lies if name == liar else {}, rng) for name in NAMES}, rng)
    return Scene(blocks, lies, liar, topics.read(rng))


def _written(name: str, blocks: list[Payload], lies: Lies, rng: random.Random) -> list[Routed]:
    stream: list[Routed] = []
    for index, payload in enumerate(blocks):
        seen = replace(payload, updates={**payload.updates, f"head/{index + 1}a": name.encode()})
        messages = LIES[lies[index]](seen) if index in lies else said(seen)
        rng.shuffle(messages)
        if rng.randrange(3) == 0:
            messages += rng.sample(messages, rng.randint(0, len(messages)))  # sent again
        stream += messages
    return stream


def to_the_end(assembler: QuorumReassembler, records: list[Record]) -> list[ReassemblyEvent]:
    """Read it all; then the chain goes on until everything is below the threshold."""
    events = assembler.receive(records)
    return events + assembler.head_moved(1000)


@unhurried
@given(scenes())
def test_every_block_is_delivered_once_and_none_is_wrong(scene: Scene) -> None:
    blocks, _, _, records = scene
    got = {payload.hash: without_marks(payload) for payload in delivered(to_the_end(quorum(), records))}
    assert got == {payload.hash: without_marks(as_delivered(payload)) for payload in blocks}


@unhurried
@given(scenes())
def test_exactly_the_blocks_that_are_lied_about_are_reported(
    scene: Scene,
) -> None:
    blocks, lies, _, records = scene
    events = to_the_end(quorum(deadline=1000), records)
    assert reported(events) == {blocks[index].hash for index, lie in lies.items() if lie not in SILENT}
    assert not any(isinstance(event, Incomplete) for event in events)


@unhurried
@given(scenes(), st.integers(1, 3), st.integers(1, 40), st.integers(1, 5))
def test_the_same_records_give_the_same_events_in_any_chunks(scene: Scene, k: int, size: int, deadline: int) -> None:
    records = scene.records
    whole = quorum(k, deadline=deadline).receive(records)
    for step in (1, size):
        other = quorum(k, deadline=deadline)
        parts = [other.receive(records[at : at + step]) for at in range(0, len(records), step)]
        assert [event for part in parts for event in part] == whole


@unhurried
@given(scenes())
def test_a_restart_from_the_positions_of_what_was_delivered_delivers_the_same(
    scene: Scene,
) -> None:
    """The positions of a block cover enough copies to make it again."""
    blocks, _, _, records = scene
    for event in quorum().receive(records):
        if isinstance(event, Completed):
            kept = [record for record in records if event.positions.get(record[:2], record.offset + 1) <= record.offset]
            again = quorum().receive(kept)
            assert event.payload.hash in [payload.hash for payload in delivered(again)]
    assert {event.payload.hash for event in quorum().receive(records) if isinstance(event, Completed)} == {
        payload.hash for payload in blocks
    }


@unhurried
@given(scenes(), st.sampled_from([2, 3]))
def test_two_liars_of_three_can_hold_a_block_up_and_not_forge_it_unless_they_agree(scene: Scene, k: int) -> None:
    """One producer tells the truth, one lies, one is silent: nothing that is lied about is delivered."""
    blocks, lies, liar, records = scene
    silent = next(name for name in NAMES if name != liar)
    left = [record for record in records if record.headers[0][1] != silent.encode()]
    got = {payload.hash: without_marks(payload) for payload in delivered(quorum(k).receive(left))}
    honest = {payload.hash: without_marks(as_delivered(payload)) for at, payload in enumerate(blocks) if at not in lies}
    if k == len(NAMES):
        assert not got
    else:
        # An extra message is no part of a block: it is reported, and what the Batch counts may be the truth.
        extra = {blocks[at].hash for at, lie in lies.items() if lie == "extra"}
        assert honest.items() <= got.items()
        truth = {payload.hash: without_marks(as_delivered(payload)) for payload in blocks}
        assert all(truth[block] == got[block] for block in got)
        assert got.keys() - honest.keys() <= extra


@unhurried
@given(scenes())
def test_what_is_held_is_released_as_the_head_moves(scene: Scene) -> None:
    assembler = quorum()
    assembler.receive(scene.records)
    assert assembler.held_bytes > 0
    assembler.head_moved(1000)
    assembler.head_moved(1100)
    assert assembler.open_blocks() == []
    assert assembler.open_positions() == {}
    assert assembler.held_bytes == 0
