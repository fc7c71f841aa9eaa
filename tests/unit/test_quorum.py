"""Policy `quorum:k`, case by case: every way to lie, standing still, bounds, who counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    Completed,
    Divergence,
    Incomplete,
    Overflow,
    Ping,
    Quarantined,
    Reorg,
    Routed,
    Surplus,
    encode,
)
from cardinal.protocols.streams.assembler import Assembler
from cardinal.protocols.streams.contents import Contents, HeaderOnly
from cardinal.protocols.streams.digests import without_content
from cardinal.protocols.streams.events import ReassemblyEvent, Superseded, Untrusted
from cardinal.protocols.streams.openblocks import Bounds
from cardinal.protocols.streams.quorum import QuorumReassembler, parse_policy
from cardinal.protocols.streams.reassembler import Reassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, short
from quorums import LIES, NAMES, SILENT, Topics, as_delivered, delivered, quorum, reported, said, true
from streams import block, h, messages

ONE = true("1a", "0a")


class Feed:
    """Producers that write one after the other, and a consumer that reads at once."""

    def __init__(self, assembler: QuorumReassembler | None = None) -> None:
        self.assembler = quorum() if assembler is None else assembler
        self.topics = Topics()

    def __call__(self, producer: str | None, *said: Routed) -> list[ReassemblyEvent]:
        return self.assembler.receive(self.topics.write(producer, said))

    def chain(self, first: int, last: int, *producers: str) -> list[ReassemblyEvent]:
        events = []
        for number in range(first, last + 1):
            for producer in producers:
                events += self(producer, *said(true(f"{number}a", f"{number - 1}a")))
        return events


def kinds(events: list[ReassemblyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


# --- settings ----------------------------------------------------------------------------------------------


def test_policies_are_read() -> None:
    assert parse_policy("first") is None
    assert parse_policy("quorum:2") == 2


@pytest.mark.parametrize(
    "policy", ["", "quorum", "quorum:", "quorum:0", "quorum:-1", "quorum:x", "second:2", "quorum:²", "quorum:99999"]
)
def test_other_policies_are_refused(policy: str) -> None:
    with pytest.raises(ConfigurationError, match="not known") as caught:
        parse_policy(policy)
    assert caught.value.setting == "policy"


@pytest.mark.parametrize(
    ("k", "producers", "setting"),
    [
        (0, ["a"], "policy"),
        (3, ["a", "b"], "policy"),
        (1, [], "producers"),
        (2, ["a", "a"], "producers"),
        (1, [""], "producers"),
    ],
)
def test_a_quorum_that_cannot_be_had_is_refused(k: int, producers: list[str], setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QuorumReassembler(k, producers)
    assert caught.value.setting == setting


def test_both_policies_have_one_shape() -> None:
    assemblers: list[Assembler] = [Reassembler(), quorum()]
    assert [assembler.receive([]) for assembler in assemblers] == [[], []]


# --- agreement ---------------------------------------------------------------------------------------------


def test_a_block_is_delivered_when_enough_producers_have_supplied_it_and_once() -> None:
    feed = Feed()
    assert feed("a", *said(ONE)) == []
    (event,) = feed("b", *said(ONE))
    assert delivered([event]) == [as_delivered(ONE)]
    assert feed("c", *said(ONE)) == []
    assert feed("a", *said(ONE)) == []
    assert feed.assembler.explain(ONE.hash).state == "complete"
    assert feed.assembler.explain(ONE.hash).reason == "agreed on by 'a', 'b'; the copy of 'c' is complete"
    assert feed.assembler.done_blocks() == [(1, ONE.hash)]


def test_positions_and_ends_cover_all_copies_that_agree() -> None:
    feed = Feed()
    feed("c", *said(true("9a", "8a")))
    start = {place: len(log) for place, log in feed.topics.partitions.items()}
    feed("a", *said(ONE))
    (event,) = feed("b", *said(ONE))
    assert isinstance(event, Completed)
    mine = {place: log[start.get(place, 0) :] for place, log in feed.topics.partitions.items()}
    mine = {place: log for place, log in mine.items() if log}
    assert event.positions == {place: log[0].offset for place, log in mine.items()}
    assert event.ends == {place: log[-1].offset + 1 for place, log in mine.items()}
    assert len(event.ends) == len(mine)
    assert ("tx", 99) not in event.ends


def test_a_block_is_sealed_if_one_copy_is_and_was_published_when_the_first_was() -> None:
    feed = Feed()
    records = feed.topics.write("a", said(ONE))
    sealed = records[-1]._replace(headers=(*records[-1].headers, (SEALED_HEADER, b"")))
    feed.assembler.receive([*records[:-1], sealed])
    (event,) = feed("b", *said(ONE))
    assert isinstance(event, Completed)
    assert event.sealed
    assert event.published_ms == sealed.timestamp_ms


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("order", [("c", "a", "b"), ("a", "c", "b"), ("a", "b", "c")])
def test_one_liar_of_three_is_reported_and_changes_nothing(lie: str, order: tuple[str, ...]) -> None:
    feed = Feed(quorum(deadline=2))
    events = []
    for producer in order:
        events += feed(producer, *(LIES[lie](ONE) if producer == "c" else said(ONE)))
    assert delivered(events) == [as_delivered(ONE)]
    events += feed.chain(2, 5, "a", "b", "c")
    assert reported(events) == {ONE.hash}
    if lie in SILENT:
        (late,) = [event for event in events if isinstance(event, Incomplete)]
        assert late.explanation.state == "complete"
        assert late.explanation.reason == "producer 'c' never supplied all of it; 'a', 'b' agreed"
        assert late.explanation.missing_batch or late.explanation.missing_counts
    for event in events:
        if isinstance(event, Divergence):
            assert event.kept in [message.value for message in said(ONE)]


@pytest.mark.parametrize("lie", sorted(LIES.keys() - {"extra"}))
@pytest.mark.parametrize("liar", ["a", "b"])
def test_of_two_one_lies_and_nothing_is_delivered_but_what_differs_is_told(lie: str, liar: str) -> None:
    feed = Feed(quorum(2, ("a", "b"), deadline=2))
    events = []
    for producer in ("a", "b"):
        events += feed(producer, *(LIES[lie](ONE) if producer == liar else said(ONE)))
    assert delivered(events) == []
    events += feed.chain(2, 5, "a", "b")
    (late,) = [event for event in events if isinstance(event, Incomplete)]
    assert late.explanation.block == ONE.hash
    assert late.explanation.state == "open"
    assert late.explanation.reason.startswith("1 of 2 producers agree (")
    assert lie in SILENT or any(isinstance(event, Divergence | Surplus) for event in events)
    assert [payload.number for payload in delivered(events)] == [2, 3, 4, 5]


def test_volatile_values_may_differ_and_other_values_may_not() -> None:
    feed = Feed()
    feed("a", *said(true("1a", "0a", "seen early")))
    (event,) = feed("b", *said(true("1a", "0a", "seen late")))
    assert isinstance(event, Completed)
    assert feed("c", *said(true("1a", "0a", "never"))) == []
    anywhere = Feed(quorum(volatile=("ad/|none",)))
    anywhere("a", *said(true("1a", "0a", "seen early")))
    assert kinds(anywhere("b", *said(true("1a", "0a", "seen late")))) == ["Completed"]
    strict = Feed(quorum(volatile=()))
    strict("a", *said(true("1a", "0a", "seen early")))
    assert strict("b", *said(true("1a", "0a", "seen late"))) == []


def test_sub_batches_that_are_cut_in_another_way_are_the_same_block() -> None:
    feed = Feed(quorum(2, ("a", "b")))
    feed("a", *said(ONE))
    header, *parts = [message for message in said(ONE) if message.key[0] in (1, 2)]
    rest = [message for message in said(ONE) if message.key[0] not in (1, 2)]
    turned = [part._replace(key=key) for part, key in zip(parts, [part.key for part in parts[::-1]], strict=True)]
    assert delivered(feed("b", header, *turned, *rest)) == [as_delivered(ONE)]


def test_one_of_one_delivers_at_once_and_still_compares() -> None:
    feed = Feed(quorum(1, ("a", "b")))
    assert kinds(feed("a", *said(ONE))) == ["Completed"]
    assert kinds(feed("b", *LIES["value"](ONE))) == ["Divergence"]


def test_blocks_of_digests_are_agreed_on_too() -> None:
    feed = Feed(quorum(contents=Contents.DIGESTS))
    for producer, lie in (("a", None), ("c", "value"), ("b", None)):
        records = feed.topics.write(producer, said(ONE) if lie is None else LIES[lie](ONE))
        events = feed.assembler.receive([without_content(each) for each in records])
    assert kinds(events) == ["Completed", "Divergence"]
    assert isinstance(events[0], Completed)
    assert isinstance(events[0].payload, HeaderOnly)


@pytest.mark.parametrize("batches_first", [False, True])
def test_values_of_several_blocks_and_producers_in_one_call_go_where_they_belong(*, batches_first: bool) -> None:
    two = true("2a", "1a")
    first, second = Topics(), Topics()
    for payload in (ONE, two):
        values = [message for message in said(payload) if message.key[0] == 3]
        first.write("a", values[:1])
        first.write("b", values[:1])
        for producer in ("a", "b"):
            second.write(producer, values[1:] * 2)
            second.write(producer, [message for message in said(payload) if message.key[0] != 3])
    begun = [each for log in first.partitions.values() for each in log]
    rest = [each._replace(offset=each.offset + 100) for log in second.partitions.values() for each in log]
    if batches_first:
        rest.sort(key=lambda record: record.key[0] == 3)
    feed = Feed()
    assert feed.assembler.receive(begun) == []
    assert {payload.number: payload for payload in delivered(feed.assembler.receive(rest))} == {
        1: as_delivered(ONE),
        2: as_delivered(two),
    }


# --- who counts --------------------------------------------------------------------------------------------


def test_a_record_without_a_header_is_of_the_producer_anonymous() -> None:
    feed = Feed(quorum(2, ("a", "anonymous")))
    assert feed(None, *said(ONE)) == []
    assert kinds(feed("anonymous", *said(ONE))) == []
    assert kinds(feed("a", *said(ONE))) == ["Completed"]


def test_producers_that_are_not_listed_do_not_count_and_are_named_once() -> None:
    feed = Feed()
    events = []
    for stranger in ("x", "y", "x"):
        events += feed(stranger, *said(ONE))
    assert [event.producer for event in events if isinstance(event, Untrusted)] == ["x", "y"]
    assert len(events) == 2
    assert feed.assembler.open_blocks() == []
    for number in range(100):
        events += feed("z" * 1000 + str(number), *said(ONE)) + feed(f"s{number}", *said(ONE))
    named = [event.producer for event in events if isinstance(event, Untrusted)]
    assert len(named) == len(set(named)) == 64
    assert max(map(len, named)) == 128


def test_a_header_without_a_value_is_nobodys() -> None:
    feed = Feed()
    nobody = [
        each._replace(headers=((PRODUCER_HEADER, None),))  # type: ignore[arg-type]  # as a Kafka client gives it
        for each in feed.topics.write("a", said(ONE))
    ]
    assert [event.producer for event in feed.assembler.receive(nobody) if isinstance(event, Untrusted)] == [""]
    assert feed.assembler.open_blocks() == []


def test_what_belongs_to_no_block_is_an_event_whoever_sent_it() -> None:
    feed = Feed()
    for producer in ("a", "b", "stranger", None):
        ping = feed(producer, Routed("blocks", *encode(Ping(bytes(32), 7))))
        assert kinds(ping) == ["PingSeen"]
        assert kinds(feed(producer, Routed("blocks", *encode(Reorg(ONE.hash, 1))))) == ["ReorgBegan"]
        assert kinds(feed(producer, Routed("blocks", b"nothing", b""))) == ["Rejected"]
        assert feed(producer, Routed("blocks", b"", b"")) == []


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
    (event,) = feed.assembler.give_up(ONE.hash, "enough")
    assert event == Quarantined(ONE.hash, 1, "enough", HeaderOnly(1, ONE.hash, ONE.parent, ONE.weight, {}))
    assert feed.assembler.give_up(ONE.hash, "enough") == []
    assert feed.assembler.explain(ONE.hash).state == "quarantined"
    assert feed.assembler.explain(ONE.hash).reason == "enough"
    assert feed("b", *said(ONE)) == []
    assert feed.assembler.open_positions() == {}

    lied = Feed()
    lied("a", *said(ONE))
    lied("c", *LIES["parent"](ONE))
    assert lied.assembler.give_up(ONE.hash, "enough") == [Quarantined(ONE.hash, None, "enough")]


def test_a_block_that_nobody_agreed_on_is_given_up_below_the_threshold() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    assert feed.assembler.head_moved(17) == []
    (event,) = feed.assembler.head_moved(18)
    assert event == Quarantined(
        ONE.hash, None, "1 of 2 producers agree ('a'); 'b' supplied nothing; 'c' supplied nothing, 16 blocks later"
    )
    assert feed.assembler.head_moved(18) == []
    assert feed.assembler.open_blocks() == []


def test_a_false_number_does_not_take_a_block_below_the_threshold() -> None:
    feed = Feed()
    at = true("50a", "49a")
    feed("c", *said(replace(at, number=0)))
    feed("c", *said(replace(true("51a", "50a"), number=0))[:-1])
    feed("c", said(replace(true("51a", "50a"), number=0))[-1]._replace(value=b"?"))
    feed("a", *said(at)[:3])
    assert feed.assembler.head_moved(50) == []
    assert feed.assembler.open_blocks() == [at.hash, h("51a")]
    feed("a", *said(at)[3:])
    assert kinds(feed("b", *said(at)))[0] == "Completed"


def test_a_copy_with_a_false_number_is_let_go_and_the_block_stays() -> None:
    feed = Feed()
    at = true("50a", "49a")
    false = [message for message in said(replace(at, number=30)) if not message.key.endswith(b"/t/0")]
    feed("c", *false)
    feed("a", *said(at)[:3])
    assert feed.assembler.head_moved(50) == []
    assert "'c' supplied what was quarantined" in feed.assembler.explain(at.hash).reason
    feed("a", *said(at)[3:])
    assert kinds(feed("b", *said(at))) == ["Completed"]


def test_a_needless_copy_with_a_false_number_is_told_of_when_it_is_let_go() -> None:
    feed = Feed()
    at = true("50a", "49a")
    feed("c", *[message for message in said(replace(at, number=0)) if not message.key.endswith(b"/t/0")])
    feed("a", *said(at))
    assert kinds(feed("b", *said(at))) == ["Completed", "Divergence"]
    (event,) = feed.assembler.head_moved(50)
    assert isinstance(event, Incomplete)
    assert event.explanation.state == "complete"
    assert feed("c", *said(at)) == []
    assert kinds(feed("c", *LIES["value"](at))) == ["Divergence"]
    assert "the copy of 'c' never became complete" in feed.assembler.explain(at.hash).reason


# --- after delivery ----------------------------------------------------------------------------------------


def test_a_copy_that_begins_after_delivery_is_compared_message_by_message() -> None:
    feed = Feed(quorum(deadline=2))
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    lies = LIES["value"](ONE)
    assert [kind for message in lies for kind in kinds(feed("c", message))] == ["Divergence"]
    assert feed.chain(2, 6, "a", "b", "c") != []
    assert feed("c", *lies) == []
    assert kinds(feed("a", *lies)) == ["Divergence"]


def test_a_message_that_does_not_decode_is_told_once() -> None:
    feed = Feed()
    feed("a", *said(ONE))
    feed("b", *said(ONE))
    batch = said(ONE)[-1]
    assert kinds(feed("c", batch._replace(value=b"?"))) == ["Rejected"]
    part = next(message for message in said(ONE) if message.key[0] == 2)
    assert kinds(feed("c", part._replace(key=part.key[:65] + b"\xff"))) in (["Surplus"], ["Rejected"])


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
    assert feed.assembler.reread(ONE.hash) is None
    assert feed.assembler.explain(ONE.hash).state == "unknown"
    records = [each for log in feed.topics.partitions.values() for each in log]
    assert kinds(feed.assembler.receive(records)) == ["Completed", "Divergence"]


def test_blocks_from_before_a_restart_are_ignored() -> None:
    feed = Feed()
    feed.assembler.ignore([short(ONE.hash)])
    assert feed("a", *said(ONE)) == []
    assert feed.assembler.open_blocks() == []
    assert feed.assembler.explain(ONE.hash).state == "done"


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


def test_what_was_dropped_is_remembered_of_so_many_blocks() -> None:
    feed = Feed(quorum(2, ("a", "b"), bounds=Bounds(open_blocks=40)))
    for number in range(1, 1200):
        feed("a", messages(block(f"{number}a", f"{number - 1}a", txs=0))[-1]._replace(value=EMPTY))
    known = [number for number in range(1, 1200) if feed.assembler.explain(h(f"{number}a")).state == "dropped"]
    assert len(known) == 1024


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
