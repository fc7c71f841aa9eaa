"""Policy `quorum:k`: what else comes of a block that was delivered, given up or done with before."""

from __future__ import annotations

from cardinal.protocols.streams.events import Divergence, Rejected, Superseded
from quorum_scenes import ONE, Feed, kinds
from quorums import LIES, as_delivered, delivered, quorum, said

# --- after delivery ----------------------------------------------------------------------------------------


def test_a_copy_that_begins_after_delivery_is_compared_when_it_is_complete() -> None:
    feed = Feed(quorum(deadline=2))
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    lies = LIES["value"](ONE)
    assert [kind for message in lies for kind in kinds(feed("c", message))] == ["Divergence"]
    assert feed.chain(2, 6, "a", "b", "c") != []
    assert feed("c", *lies) == []
    assert kinds(feed("a", *lies)) == ["Divergence"]


def test_a_copy_that_never_becomes_complete_is_compared_when_it_falls_below_the_threshold() -> None:
    feed = Feed()
    feed("c", *[message for message in LIES["value"](ONE) if not message.key.endswith(b"/t/0")])
    feed("a", *said(ONE))
    assert kinds(feed("b", *said(ONE))) == ["Completed"]
    (event,) = feed.assembler.head_moved(18)
    assert isinstance(event, Divergence)
    assert (event.kept, event.seen) == (b"1a-tx1", b"false")
    assert feed.assembler.explain(ONE.hash).reason == "agreed on by 'a', 'b'; the copy of 'c' is abandoned"


def test_each_message_that_does_not_decode_is_rejected_at_its_position() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    part = next(message for message in said(ONE) if message.key[0] == 2)
    for bad in (said(ONE)[-1]._replace(value=b"?"), part._replace(key=part.key[:65] + b"\xff")):
        for _ in range(2):
            (event,) = feed("c", bad)
            assert isinstance(event, Rejected)
            topic, partition, offset = event.position
            assert (topic, event.key) == (bad.topic, bad.key)
            assert feed.topics.partitions[topic, partition][-1].offset == offset


def test_a_late_copy_that_an_untracked_message_begins_is_nothing() -> None:
    feed = Feed(quorum(tracked=["/t/"]))
    feed("a", *said(ONE))
    assert kinds(feed("b", *said(ONE))) == ["Completed"]
    assert feed("c", *[message for message in said(ONE) if b"/l/" in message.key]) == []
    assert feed.assembler.open_positions() == {}
    assert feed("c", *said(ONE)) == []


def test_a_producers_second_batch_counts_when_its_first_cannot_be_completed() -> None:
    feed = Feed(quorum(2, ("a", "b"), deadline=2))
    false = [message for message in LIES["one more, counted"](ONE) if not message.key.endswith(b"/t/9")]
    feed("a", *false)
    assert kinds(feed("a", said(ONE)[-1])) == ["Divergence"]
    feed("b", *said(ONE))
    events = feed.chain(2, 6, "a", "b")
    assert any(isinstance(event, Superseded) for event in events)
    assert as_delivered(ONE) in delivered(events)


def test_a_block_is_read_again_when_whoever_orders_blocks_dropped_it() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    feed("c", *LIES["value"](ONE))
    feed("b", *said(ONE))
    feed.assembler.forget(ONE.hash)
    assert feed.assembler.explain(ONE.hash).state == "unknown"
    records = [each for log in feed.topics.partitions.values() for each in log]
    assert kinds(feed.assembler.receive(records)) == ["Completed", "Divergence"]
