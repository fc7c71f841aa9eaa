"""Policy `quorum:k`: floods, what is dropped and read again, and where nothing is left to compare with."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from cardinal.protocols.streams import (
    Batch,
    BatchMsg,
    Divergence,
    Incomplete,
    Overflow,
    Record,
    Update,
    encode,
)
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from quorum_scenes import ONE, Feed, kinds
from quorums import LIES, quorum, said, true
from streams import block, h, messages

# --- bounds ------------------------------------------------------------------------------------------------


def test_a_flood_of_one_producer_leaves_the_others_alone() -> None:
    feed = Feed(quorum(bounds=Bounds(open_bytes=3 << 20, open_blocks=60, finished_bytes=3 << 20, votes=40)))
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


def test_a_producer_far_ahead_holds_no_more_live_bytes_than_the_bounds_say() -> None:
    """300 blocks of 64 kB from one producer of two; what a complete copy that waits keeps is its vote alone."""
    bounds = Bounds(open_bytes=8 << 20, open_blocks=2_000, finished_bytes=1 << 20)
    assembler = QuorumReassembler(2, ("a", "b"), bounds=bounds)
    tracemalloc.start()
    try:
        for number in range(300):
            block_hash = number.to_bytes(32, "big")
            path = f"b/{number}/x"
            value = bytes([number % 251]) * (64 << 10)
            said = Batch(block_hash, number, number, bytes(32), {f"b/{number}/": Update(count=1)})
            records = [encode(said), encode(BatchMsg(block_hash, path, value))]
            topics = ("blocks", "tx")
            assembler.receive(
                [
                    Record(topic, 0, number, key, value, 0, ((PRODUCER_HEADER, b"a"),))
                    for topic, (key, value) in zip(topics, records, strict=True)
                ]
            )
            del records
        gc.collect()
        live, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert live < bounds.finished_bytes + 300 * 3_000
    assert live < 2 * assembler.held_bytes


def test_it_says_how_much_of_its_share_the_fullest_producer_has_taken() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=80)))
    for number in range(5):
        feed("a", *messages(block(f"{number}a", "none"))[:-1])
        feed("b", *messages(block(f"{number}b", "none"))[:-1])
    assert feed.assembler.fullness == 5 / 40
    feed("a", *messages(block("5a", "none"))[:-1])
    assert feed.assembler.fullness == 6 / 40


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


def test_a_copy_whose_messages_are_no_longer_kept_is_named_as_a_whole_where_the_others_are() -> None:
    feed = Feed(quorum(bounds=Bounds(finished_bytes=60_000)))
    feed("c", *LIES["value"](ONE), *said(true("9a", "8a")), *said(true("8a", "7a")))
    feed("a", *said(ONE))
    assert kinds(feed("b", *said(ONE))) == ["Completed", "Divergence"]


def test_a_block_that_nobody_completed_is_overdue_too() -> None:
    feed = Feed(quorum(2, ("a", "b"), deadline=2))
    feed("a", *said(ONE)[:-1])
    (event,) = [event for event in feed.chain(2, 4, "a", "b") if isinstance(event, Incomplete)]
    assert event.explanation.reason == "0 of 2 producers agree; 'a' lacks its Batch; 'b' supplied nothing"


def test_votes_over_their_bound_are_evicted_highest_first_and_come_again_when_they_are_read_again() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(votes=10)))
    events = [event for number in range(1, 13) for event in feed("a", *said(true(f"{number}a", f"{number - 1}a")))]
    assert [event.number for event in events if isinstance(event, Overflow)] == [11, 10]
    assert all("'a'" in event.reason and event.positions for event in events if isinstance(event, Overflow))
    assert feed.assembler.explain(h("11a")).state == "unknown"
    assert len(feed.assembler.open_blocks()) == 10
    feed("b", *said(true("2a", "1a")))
    again = [each for log in feed.topics.partitions.values() for each in log if each.key[1:33] == h("11a")]
    assert feed.assembler.receive(again) == []
    assert kinds(feed("b", *said(true("11a", "10a")))) == ["Completed"]
    assert kinds(feed("b", *said(ONE))) == ["Completed"]


def test_votes_of_one_producer_evict_no_vote_of_another() -> None:
    feed = Feed(quorum(bounds=Bounds(votes=10)))
    feed("a", *said(ONE))
    for number in range(2, 60):
        feed("c", *messages(block(f"{number}z", "none")))
    assert kinds(feed("b", *said(ONE))) == ["Completed"]


def test_a_copy_of_a_delivered_block_that_is_evicted_is_nothing() -> None:
    feed = Feed(quorum(bounds=Bounds(open_blocks=60)))
    feed("c", *said(ONE)[:-1])
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    evicted = []
    for number in range(2, 30):
        evicted += feed("c", *messages(block(f"{number}a", f"{number - 1}a"))[:-1])
    assert kinds(evicted).count("Overflow") == len(evicted) > 0
    assert ONE.hash not in [event.block for event in evicted if isinstance(event, Overflow)]
    assert feed.assembler.explain(ONE.hash).state == "complete"


@pytest.mark.parametrize("lie", ["no Batch", "value"])
def test_a_copy_without_a_batch_is_compared_and_goes_with_its_block(lie: str) -> None:
    feed = Feed()
    feed("c", *[message for message in LIES[lie](ONE) if message.key[0] != 0])
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    assert feed.assembler.open_positions() != {}
    assert feed.assembler.head_moved(32) == []
    assert kinds(feed.assembler.head_moved(34)) == ([] if lie == "no Batch" else ["Divergence"])
    assert feed.assembler.open_positions() == {}


def test_the_smallest_bounds_there_are_hold() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=1, finished_bytes=0, votes=1)))
    feed("a", *said(ONE)[:-1])
    assert kinds(feed("a", *said(true("2a", "1a"))[:1])) == ["Overflow"]
    assert feed.assembler.open_blocks() == [h("2a")]
    feed("a", *said(true("2a", "1a"))[1:])
    assert kinds(feed("a", *said(true("3a", "2a")))) == ["Overflow", "Overflow"]
    assert feed.assembler.held_bytes == 0


def test_what_is_reported_once_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.protocols.streams.quorum.reassembler._REPORTED_MAX", 2)
    feed = Feed(quorum(2, ("a", "b"), deadline=1))
    late = [event for event in feed.chain(1, 9, "a") if isinstance(event, Incomplete)]
    assert [event.explanation.block for event in late] == [h(f"{number}a") for number in range(1, 10)]
