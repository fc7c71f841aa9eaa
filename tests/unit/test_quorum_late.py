"""Policy `quorum:k`: copies that come when the chain is past their block, and what one producer says of numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.protocols.streams import Completed, Divergence, Incomplete, Payload, Quarantined, Routed, Stale
from cardinal.protocols.streams.events import Event, ReassemblyEvent
from cardinal.protocols.streams.openblocks import Bounds
from cardinal.protocols.streams.quorum import QuorumReassembler
from cardinal.protocols.streams.types import BlockRef
from quorums import LIES, NAMES, SETTINGS, Reading, Topics, quorum, said, true
from streams import replay

HONEST = ("a", "b")
CHAIN = [true(f"{number}a", f"{number - 1}a") for number in range(1, 201)]
"""Block N is `CHAIN[N - 1]`; the settings' threshold is 16, so that late copies are known for 32 blocks."""
PAST = "came when the chain was past it"


def at(number: int) -> Payload:
    return CHAIN[number - 1]


def part(payload: Payload) -> list[Routed]:
    """All of a block but one value."""
    return [message for message in said(payload) if not message.key.endswith(b"/t/0")]


class Scene:
    """Producers that write, and a consumer that has read everything when it is asked."""

    def __init__(self, **options: object) -> None:
        self.topics = Topics()
        self.reading = Reading(self.topics, replace(SETTINGS, **options))  # type: ignore[arg-type]  # by name

    def write(self, producer: str, *messages: Routed) -> None:
        self.topics.write(producer, messages)

    def chain(self, first: int, last: int, *producers: str) -> None:
        for number in range(first, last + 1):
            for producer in producers:
                self.write(producer, *said(at(number)))

    def read(self) -> list[Event]:
        return self.reading.read()

    @property
    def head(self) -> int:
        head = self.reading.follower.orderer.head
        assert head is not None
        assert replay(self.reading.updates) == [payload.hash for payload in CHAIN[: head.number]]
        return head.number


def stale(numbers: range, producer: str) -> list[Stale]:
    return [Stale(BlockRef(number, at(number).hash), PAST, producer) for number in numbers]


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
    assert scene.read() == stale(range(11, 31), "c")
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


def test_a_part_of_a_block_that_is_delivered_within_the_threshold_is_waited_for_and_told_of() -> None:
    scene = Scene()
    scene.chain(1, 60, *HONEST)
    scene.write("c", *part(at(55)))
    scene.chain(61, 80, *NAMES)
    (event,) = scene.read()
    assert isinstance(event, Incomplete)
    assert event.explanation.reason == "producer 'c' never supplied all of it; 'a', 'b' agreed"


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
    late = [event.explanation.block for event in scene.read() if isinstance(event, Incomplete)]
    assert late == [at(number).hash for number in range(81, 97)]
    scene.chain(81, 99, "b")
    assert scene.read() == stale(range(11, 15), "c")
    assert scene.head == 99


def test_old_blocks_that_are_too_many_to_hold_are_stale_at_once() -> None:
    scene = Scene(bounds=Bounds(open_blocks=60))
    scene.chain(1, 160, *HONEST)
    scene.chain(1, 100, "c")
    early = scene.read()
    assert early == stale(range(1, len(early) + 1), "c")
    assert len(early) > 80
    scene.chain(161, 170, *HONEST)
    assert scene.read() == stale(range(len(early) + 1, 101), "c")


def test_a_block_that_one_sent_in_time_and_one_too_late_is_told_of_both() -> None:
    assembler = quorum()
    topics = Topics()
    assembler.head_moved(30)
    assembler.receive(topics.write("a", said(replace(at(40), number=15))))
    assembler.receive(topics.write("c", said(replace(at(40), number=13))))
    events = assembler.head_moved(40)
    assert events == [
        Stale(BlockRef(13, at(40).hash), PAST, "c"),
        Quarantined(
            at(40).hash,
            None,
            "1 of 2 producers agree ('a'); 'b' supplied nothing; 'c' supplied another block, 16 blocks later",
        ),
    ]
    why = assembler.explain(at(40).hash)
    assert (why.state, why.number) == ("quarantined", None)
    assert why.reason.startswith("1 of 2 producers agree ('a')")
    assembler.receive(topics.write("b", said(at(40))))
    assert assembler.explain(at(40).hash).state == "open"
    assembler.head_moved(200)
    assert assembler.explain(at(40).hash).state == "unknown"


def test_a_part_that_is_left_of_a_block_that_was_to_be_read_again_goes_in_silence() -> None:
    assembler, topics = quorum(), Topics()
    assembler.receive([*topics.write("c", part(at(20))), *topics.write("a", said(at(20)))])
    assert [type(event) for event in assembler.receive(topics.write("b", said(at(20))))] == [Completed]
    assert assembler.reread(at(20).hash) is None
    assert assembler.head_moved(60) == []
    assert assembler.open_positions() == {}


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


@pytest.mark.parametrize("claimed", [20, 24, 30, 46])
@pytest.mark.parametrize("shape", [said, part])
def test_no_lie_about_a_number_outlives_a_restart(claimed: int, shape: object) -> None:
    """A consumer remembers which blocks are done with; one producer's word must not put a block among them."""
    scene = Scene()
    scene.chain(1, 40, *HONEST)
    scene.write("c", *shape(replace(at(60), number=claimed)))  # type: ignore[operator]  # said or part
    for number in range(41, 60):
        scene.chain(number, number, *HONEST)
        scene.read()
    scene.reading.restart()
    scene.chain(60, 70, *HONEST)
    scene.read()
    assert scene.head == 70


def test_a_copy_that_was_let_go_is_not_called_complete() -> None:
    assembler, topics = quorum(), Topics()
    assembler.receive(topics.write("c", part(replace(at(46), number=20))))
    assembler.receive(topics.write("a", said(at(46))[:2]))
    assembler.head_moved(44)
    assembler.receive([*topics.write("a", said(at(46))), *topics.write("b", said(at(46)))])
    assert assembler.explain(at(46).hash).reason == "agreed on by 'a', 'b'; the copy of 'c' never became complete"
    (event,) = assembler.receive(topics.write("c", LIES["value"](at(46))))
    assert isinstance(event, Divergence)


def test_a_block_that_enough_producers_put_below_the_threshold_is_done_with() -> None:
    """They agree on its Batch, not on its content; later copies are ignored, as under the policy `first`."""
    false = [*LIES["value"](at(20))]
    events = fed(30, ("a", said(at(20))), ("b", false), 50)
    (event,) = [event for event in events if isinstance(event, Quarantined)]
    assert event.number == 20
    assert event.header is not None
    assert event.header.parent == at(20).parent
    assert not [event for event in fed(50, ("a", said(at(20))), ("b", false), 60) if not isinstance(event, Stale)]


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


def test_the_lowest_open_block_is_one_that_is_not_agreed_on() -> None:
    assembler: QuorumReassembler = quorum()
    topics = Topics()
    assert assembler.lowest_open is None
    assembler.receive([*topics.write("c", part(at(3))), *topics.write("a", said(at(4)))])
    assert assembler.lowest_open == 3
    assembler.receive([*topics.write("a", said(at(3))), *topics.write("b", said(at(3)))])
    assert assembler.lowest_open == 4
