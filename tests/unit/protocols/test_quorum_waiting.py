"""Policy `quorum:k`: blocks on which too few agree, what is told of them, and what is supplied for them."""

from __future__ import annotations

from dataclasses import replace

from cardinal.protocols.streams import (
    BlockRef,
    Completed,
    Incomplete,
    Ping,
    Quarantined,
    Routed,
    Stale,
    encode,
)
from cardinal.protocols.streams.assembly.digests import HeaderOnly
from quorum_scenes import ONE, Feed, kinds
from quorums import LIES, as_delivered, delivered, quorum, said, true
from streams import h

# --- standing still ----------------------------------------------------------------------------------------


def test_three_of_three_with_one_silent_says_who_is() -> None:
    feed = Feed(quorum(3, deadline=3))
    events = feed.chain(1, 6, "a", "b")
    late = [event.explanation for event in events if isinstance(event, Incomplete)]
    assert [explanation.number for explanation in late] == [None] * 4
    assert [explanation.block for explanation in late] == [h("1a"), h("2a"), h("3a"), h("4a")]
    assert late[0].reason == "2 of 3 producers agree ('a', 'b'); 'c' supplied nothing"
    assert late[0].missing_batch
    assert kinds(feed("c", *said(true("1a", "0a")))) == ["Completed"]


def test_an_open_block_is_explained_by_what_every_producer_lacks() -> None:
    feed = Feed(quorum(2, ("a", "b", "c", "d")))
    whole = said(ONE)
    feed("a", *whole)
    feed("b", *[message for message in whole if not message.key.endswith(b"/t/0") and message.key[0] != 1])
    feed("c", *whole[:1])
    why = feed.assembler.explain(ONE.hash)
    assert why.state == "open"
    assert why.number == 1
    assert not why.missing_batch
    assert why.missing_counts == {"b/1a/t/": 1}
    assert why.missing_headers == (h("sub1a"),)
    assert why.reason == (
        "1 of 2 producers agree ('a'); 'b' lacks 2 messages; 'c' lacks its Batch; 'd' supplied nothing"
    )
    assert why.positions == {place: log[0].offset for place, log in feed.topics.partitions.items() if log}
    assert feed.assembler.explain(h("9z")).state == "unknown"


def test_missing_parts_of_several_copies_are_told_together() -> None:
    feed = Feed(quorum(2, ("a", "b")))
    for producer, index in (("a", 1), ("b", 2)):
        parts = [message for message in said(ONE) if message.key[0] == 2]
        feed(producer, *[message for message in said(ONE) if message != parts[index]])
    assert feed.assembler.explain(ONE.hash).missing_parts == {h("sub1a"): (1, 2)}
    assert "'a' lacks 1 messages" in feed.assembler.explain(ONE.hash).reason


def test_a_block_that_is_given_up_has_a_header_only_where_enough_producers_say_it() -> None:
    feed = Feed()
    rest = [message for message in said(ONE) if not message.key.endswith(b"/t/0")]
    feed("a", *said(ONE))
    feed("b", *rest)
    (event,) = feed.assembler.abandon(ONE.hash, "enough")
    assert event == Quarantined(ONE.hash, 1, "enough", HeaderOnly(1, ONE.hash, ONE.parent, ONE.weight, {}))
    assert feed.assembler.abandon(ONE.hash, "enough") == []
    assert feed.assembler.explain(ONE.hash).state == "abandoned"
    assert feed.assembler.explain(ONE.hash).reason == "enough"
    assert feed("b", *said(ONE)) == []
    assert feed.assembler.open_positions() == {}

    lied = Feed()
    lied("a", *said(ONE))
    lied("c", *LIES["parent"](ONE))
    assert lied.assembler.abandon(ONE.hash, "enough") == [Quarantined(ONE.hash, None, "enough")]


def test_a_block_that_nobody_agreed_on_is_stale_below_the_threshold() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    assert feed.assembler.head_moved(17) == []
    (event,) = feed.assembler.head_moved(18)
    assert event == Stale(BlockRef(1, ONE.hash), "not agreed on 16 blocks below the head", "a")
    assert feed.assembler.head_moved(18) == []
    assert feed.assembler.open_blocks() == []


def test_headers_of_open_blocks_are_those_that_enough_producers_give() -> None:
    feed = Feed()
    two = true("2a", "1a")
    feed("a", *said(ONE), *said(two)[:-2])
    feed("b", said(ONE)[-1], *LIES["parent"](two))
    headers = map(feed.assembler.header_of, feed.assembler.open_blocks())
    assert [header for header in headers if header is not None] == [HeaderOnly(1, ONE.hash, ONE.parent, ONE.weight, {})]
    assert feed.assembler.header_of(two.hash) is None
    feed("c", said(two)[-1])
    assert feed.assembler.header_of(two.hash) is None
    feed("a", said(two)[-1])
    assert feed.assembler.header_of(two.hash) == HeaderOnly(2, two.hash, two.parent, two.weight, {})
    feed("b", *said(ONE))
    assert feed.assembler.header_of(ONE.hash) is None


def test_a_false_number_does_not_take_a_block_below_the_threshold() -> None:
    feed = Feed()
    at = true("50a", "49a")
    feed("c", *said(replace(at, number=0)))
    feed("c", *said(replace(true("51a", "50a"), number=0))[:-1])
    feed("c", said(replace(true("51a", "50a"), number=0))[-1]._replace(value=b"?"))
    feed("a", *said(at)[:3])
    assert feed.assembler.head_moved(50) == [Stale(BlockRef(0, at.hash), "not agreed on 16 blocks below the head", "c")]
    assert feed.assembler.open_blocks() == [at.hash, h("51a")]
    feed("a", *said(at)[3:])
    assert kinds(feed("b", *said(at))) == ["Completed"]


def test_a_copy_with_a_false_number_is_stale_and_the_block_stays() -> None:
    feed = Feed()
    at = true("50a", "49a")
    false = [message for message in said(replace(at, number=30)) if not message.key.endswith(b"/t/0")]
    feed("c", *false)
    feed("a", *said(at)[:3])
    (event,) = feed.assembler.head_moved(50)
    reason = "incomplete 16 blocks below the head: it lacks 1 messages"
    assert event == Stale(BlockRef(30, at.hash), reason, "c")
    assert "'c' supplied what is abandoned" in feed.assembler.explain(at.hash).reason
    feed("a", *said(at)[3:])
    assert kinds(feed("b", *said(at))) == ["Completed", "Divergence"]


def test_an_open_copy_with_a_false_number_is_compared_when_it_falls_below_the_threshold() -> None:
    feed = Feed()
    at = true("50a", "49a")
    feed("c", *[message for message in said(replace(at, number=0)) if not message.key.endswith(b"/t/0")])
    feed("a", *said(at))
    assert kinds(feed("b", *said(at))) == ["Completed"]
    assert kinds(feed.assembler.head_moved(50)) == ["Divergence"]
    assert feed("c", *said(at)) == []
    assert "the copy of 'c' is abandoned" in feed.assembler.explain(at.hash).reason


# --- supplied messages -------------------------------------------------------------------------------------


def test_supplied_messages_complete_the_copies_of_producers_that_sent_a_batch() -> None:
    feed = Feed()
    rest = [message for message in said(ONE) if not message.key.endswith(b"/t/0")]
    feed("a", *rest)
    feed("b", *rest)
    events = feed.assembler.supply(
        [*said(ONE), Routed("blocks", *encode(Ping(bytes(32), 7))), Routed("blocks", b"", b"")]
    )
    assert delivered(events) == [as_delivered(ONE)]
    assert ("tx", -1) not in {place for event in events if isinstance(event, Completed) for place in event.positions}


def test_a_batch_cannot_be_supplied() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    feed("b", *[message for message in said(ONE) if message.key[0] != 0])
    assert feed.assembler.supply(said(ONE)) == []
    assert feed.assembler.explain(ONE.hash).state == "open"
    assert kinds(feed("b", said(ONE)[-1])) == ["Completed"]
