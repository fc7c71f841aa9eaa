"""Policy `quorum:k`, case by case: settings, every way to lie, who counts."""

from __future__ import annotations

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Completed,
    Divergence,
    Incomplete,
    Ping,
    Reorg,
    Routed,
    Surplus,
    encode,
)
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.events import Untrusted
from cardinal.protocols.streams.quorum.attribution import parse_policy
from cardinal.protocols.streams.quorum.reassembler import Assembler, QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from quorum_scenes import ONE, Feed, kinds
from quorums import LIES, SILENT, Topics, as_delivered, delivered, quorum, reported, said, true

# --- settings ----------------------------------------------------------------------------------------------


def test_policies_are_read() -> None:
    assert parse_policy("first") is None
    assert parse_policy("quorum:2") == 2


@pytest.mark.parametrize(
    "policy", ["", "quorum", "quorum:", "quorum:0", "quorum:-1", "quorum:x", "second:2", "quorum:²", "quorum:99999"]
)
def test_other_policies_are_refused(policy: str) -> None:
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
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


def test_positions_cover_all_copies_that_agree() -> None:
    feed = Feed()
    feed("c", *said(true("9a", "8a")))
    start = {place: len(log) for place, log in feed.topics.partitions.items()}
    feed("a", *said(ONE))
    (event,) = feed("b", *said(ONE))
    assert isinstance(event, Completed)
    mine = {place: log[start.get(place, 0) :] for place, log in feed.topics.partitions.items()}
    mine = {place: log for place, log in mine.items() if log}
    assert event.positions == {place: log[0].offset for place, log in mine.items()}


def test_a_block_was_published_when_its_first_copy_was() -> None:
    feed = Feed()
    records = feed.topics.write("a", said(ONE))
    feed.assembler.receive(records)
    (event,) = feed("b", *said(ONE))
    assert isinstance(event, Completed)
    assert event.published_ms == records[-1].timestamp_ms


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("order", [("c", "a", "b"), ("a", "c", "b"), ("a", "b", "c")])
def test_one_liar_of_three_is_reported_and_changes_nothing(lie: str, order: tuple[str, ...]) -> None:
    feed = Feed(quorum(deadline=2))
    events = []
    for producer in order:
        events += feed(producer, *(LIES[lie](ONE) if producer == "c" else said(ONE)))
    assert delivered(events) == [as_delivered(ONE)]
    events += feed.chain(2, 5, "a", "b", "c")
    assert reported(events) == (set() if lie in SILENT else {ONE.hash})
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
