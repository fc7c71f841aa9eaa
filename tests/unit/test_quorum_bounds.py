"""Policy `quorum:k`: floods, what is dropped and read again, and where nothing is left to compare with."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import (
    Batch,
    Divergence,
    Incomplete,
    Overflow,
    encode,
    tombstones,
    undecided,
)
from cardinal.protocols.streams.assembly.contents import Contents
from cardinal.protocols.streams.assembly.digests import without_content
from cardinal.protocols.streams.assembly.window import Bounds
from quorum_scenes import ONE, Feed, kinds
from quorums import LIES, NAMES, quorum, said, true
from streams import block, h, messages

# --- bounds ------------------------------------------------------------------------------------------------


def test_a_flood_of_one_producer_leaves_the_others_alone() -> None:
    feed = Feed(quorum(bounds=Bounds(open_bytes=3 << 20, open_blocks=60, finished_bytes=3 << 20)))
    feed("a", *said(ONE))
    dropped = []
    for number in range(400):
        fantasy = block(f"{number}z", "none")
        dropped += feed("c", *messages(fantasy)) if number % 2 else feed("c", *messages(fantasy)[:-1])
        assert feed.assembler.held_bytes <= 6 << 20
    assert {type(event) for event in dropped} == {Overflow}
    assert all("'c'" in event.reason for event in dropped if isinstance(event, Overflow))
    assert len(feed.assembler.open_blocks()) <= 60
    assert kinds(feed("b", *said(ONE))) == ["Completed"]


def test_it_says_how_much_of_its_share_the_fullest_producer_has_taken() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=80)))
    for number in range(5):
        feed("a", *messages(block(f"{number}a", "none"))[:-1])
        feed("b", *messages(block(f"{number}b", "none"))[:-1])
    assert feed.assembler.fullness == 5 / 20
    feed("a", *messages(block("5a", "none"))[:-1])
    assert feed.assembler.fullness == 6 / 20


def test_the_number_of_a_block_is_the_lowest_that_is_said_until_enough_agree() -> None:
    feed = Feed(quorum())
    assert feed.assembler.number_of(ONE.hash) is None
    feed("a", said(ONE)[-1]._replace(value=encode(Batch(ONE.hash, 7, ONE.weight, ONE.parent))[1]))
    assert feed.assembler.number_of(ONE.hash) == 7
    feed("b", said(ONE)[-1])
    assert feed.assembler.number_of(ONE.hash) == ONE.number
    feed("b", *said(ONE)[:-1])
    assert "Completed" in kinds(feed("c", *said(ONE)))
    assert feed.assembler.number_of(ONE.hash) == ONE.number


def test_a_complete_copy_that_was_dropped_is_read_again_when_others_come() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=40)))
    feed("a", *said(ONE))
    first = dict.fromkeys(feed.topics.partitions, 0)
    for number in range(2, 30):
        feed("a", *messages(block(f"{number}a", f"{number - 1}a")))
    assert feed.assembler.explain(ONE.hash).state == "dropped"
    (event,) = feed("b", *said(ONE))
    assert isinstance(event, Incomplete)
    assert event.explanation.state == "dropped"
    assert event.explanation.positions == first
    assert feed.assembler.reread(ONE.hash) == first
    again = [each for log in feed.topics.partitions.values() for each in log if each.key[1:33] == ONE.hash]
    assert kinds(feed.assembler.receive(again)) == ["Completed"]


def test_parts_of_a_copy_that_were_dropped_are_read_again_when_its_batch_comes() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=40)))
    feed("b", *said(ONE))
    feed("a", *said(ONE)[:-1])
    for number in range(2, 30):
        feed("a", *messages(block(f"{number}a", f"{number - 1}a"))[:-1])
    events = feed("a", said(ONE)[-1])
    assert kinds(events) == ["Incomplete"]
    assert "'a' supplied what was dropped" in feed.assembler.explain(ONE.hash).reason
    assert feed.assembler.reread(ONE.hash) is not None
    again = [each for log in feed.topics.partitions.values() for each in log if each.key[1:33] == ONE.hash]
    assert kinds(feed.assembler.receive(again)) == ["Completed"]


def test_a_needless_copy_that_is_dropped_is_not_asked_for_again() -> None:
    feed = Feed(quorum(bounds=Bounds(open_blocks=60)))
    feed("c", *said(ONE)[:-1])
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    dropped = []
    for number in range(2, 30):
        dropped += feed("c", *messages(block(f"{number}a", f"{number - 1}a"))[:-1])
    assert ONE.hash in [event.block for event in dropped if isinstance(event, Overflow)]
    assert feed("c", *said(ONE)) == []


def test_where_nothing_is_left_to_compare_with_the_block_is_named_as_a_whole() -> None:
    feed = Feed(quorum(bounds=Bounds(finished_bytes=0)))
    feed("a", *said(ONE))
    assert kinds(feed("b", *said(ONE))) == ["Completed"]
    (event,) = feed("c", *LIES["value"](ONE))
    assert isinstance(event, Divergence)
    assert event.key == b"\0" + ONE.hash
    assert event.kept != event.seen
    assert event.positions[0] is None

    early = Feed(quorum(bounds=Bounds(finished_bytes=0)))
    early("c", *LIES["value"](ONE))
    early("a", *said(ONE))
    assert kinds(early("b", *said(ONE))) == ["Completed", "Divergence"]


def test_digests_of_a_block_that_is_too_large_to_compare_are_never_agreed_on() -> None:
    feed = Feed(quorum(contents=Contents.DIGESTS, bounds=Bounds(finished_bytes=0), deadline=1))
    for producer in NAMES:
        records = feed.topics.write(producer, said(ONE))
        assert feed.assembler.receive([without_content(each) for each in records]) == []
    assert feed.assembler.explain(ONE.hash).reason.startswith("1 of 2 producers agree ('a'); 'b' supplied another")


def test_a_copy_without_a_batch_goes_when_the_head_has_passed_its_block() -> None:
    feed = Feed()
    feed("c", *LIES["no Batch"](ONE))
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    assert feed.assembler.open_positions() != {}
    assert feed.assembler.head_moved(16) == []
    (event,) = feed.assembler.head_moved(18)
    assert isinstance(event, Incomplete)
    assert event.explanation.missing_batch
    assert feed.assembler.open_positions() == {}


def test_a_block_that_nobody_completed_is_overdue_too() -> None:
    feed = Feed(quorum(2, ("a", "b"), deadline=2))
    feed("a", *said(ONE)[:-1])
    (event,) = [event for event in feed.chain(2, 4, "a", "b") if isinstance(event, Incomplete)]
    assert event.explanation.reason == "0 of 2 producers agree; 'a' lacks its Batch; 'b' supplied nothing"


def test_the_smallest_bounds_there_are_hold() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=1)))
    feed("a", *said(ONE)[:-1])
    assert kinds(feed("a", *said(true("2a", "1a"))[:1])) == ["Overflow", "Overflow"]
    assert feed.assembler.open_blocks() == []
    tiny = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=1, finished_bytes=0)))
    tiny("a", *said(ONE))
    assert kinds(tiny("a", *said(true("2a", "1a")))) == ["Overflow", "Overflow"]
    assert tiny.assembler.held_bytes == 0


def test_what_was_dropped_is_remembered_of_so_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 1_024)
    monkeypatch.setattr(undecided, "TOMBSTONES_MAX", 1_024)
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=40)))
    for number in range(1, 1200):
        feed("a", messages(block(f"{number}a", f"{number - 1}a", txs=0))[-1]._replace(value=EMPTY))
    known = [number for number in range(1, 1200) if feed.assembler.explain(h(f"{number}a")).state == "dropped"]
    assert len(known) == 1024
    assert set(feed.assembler.dropped_blocks()) == {h(f"{number}a") for number in known}


EMPTY = encode(Batch(h("1a"), 1, 1, h("0a")))[1]


def test_dead_deadlines_do_not_pile_up() -> None:
    feed = Feed(quorum(deadline=10**6))
    for number in range(1, 1200):
        at = messages(block(f"{number}a", f"{number - 1}a", txs=0))
        feed("a", *at)
        feed("b", *at)
        feed("c", at[0])
        feed.assembler.head_moved(number)
    assert len(feed.assembler._deadlines) < 1100
