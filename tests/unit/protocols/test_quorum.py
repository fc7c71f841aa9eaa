"""Policy `quorum:k`, case by case: who counts, every way to lie, bounds, copies that come late or never."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    BlockRef,
    Completed,
    Divergence,
    Incomplete,
    Orderer,
    Overflow,
    Payload,
    Ping,
    Quarantined,
    Record,
    Rejected,
    Reorg,
    Routed,
    Stale,
    Superseded,
    Surplus,
    Untrusted,
    Update,
    encode,
)
from cardinal.protocols.streams.assembly.digests import HeaderOnly
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Event, ReassemblyEvent
from cardinal.protocols.streams.quorum.attribution import parse_policy
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from examples import few
from quorums import (
    LIES,
    NAMES,
    SETTINGS,
    SILENT,
    Reading,
    Topics,
    as_delivered,
    delivered,
    quorum,
    reported,
    said,
    true,
)
from streams import block, h, messages, replay

ONE, TWO = true("1a", "0a"), true("2a", "1a")
HONEST = ("a", "b")
CHAIN = [true(f"{number}a", f"{number - 1}a") for number in range(1, 201)]
"""Block N is `CHAIN[N - 1]`; the settings' threshold is 16, so that late copies are known for 32 blocks."""
VOTE = "not agreed on 16 blocks below the head"
PART = "incomplete 16 blocks below the head: it lacks 1 message"


def at(number: int) -> Payload:
    return CHAIN[number - 1]


def without_a_value(messages: list[Routed]) -> list[Routed]:
    return [message for message in messages if not message.key.endswith(b"/t/0")]


def part(payload: Payload) -> list[Routed]:
    """All of a block but one value."""
    return without_a_value(said(payload))


class Feed:
    """Producers that write one after the other, and a quorum that reads at once."""

    def __init__(self, assembler: QuorumReassembler | None = None) -> None:
        self.assembler = quorum() if assembler is None else assembler
        self.topics = Topics()

    def __call__(self, producer: str | None, *said: Routed) -> list[ReassemblyEvent]:
        return self.assembler.receive(self.topics.write(producer, said))

    def all(self, payload: Payload, *producers: str) -> list[ReassemblyEvent]:
        return [event for producer in producers for event in self(producer, *said(payload))]

    def chain(self, first: int, last: int, *producers: str) -> list[ReassemblyEvent]:
        return [event for number in range(first, last + 1) for event in self.all(at(number), *producers)]

    def reason(self, payload: Payload = ONE) -> str:
        return self.assembler.explain(payload.hash).reason


class Scene:
    """Producers that write, and a consumer that has read everything on request."""

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


def kinds(events: list[ReassemblyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


# --- settings ----------------------------------------------------------------------------------------------


def test_policies_are_parsed() -> None:
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
def test_an_impossible_quorum_is_refused(k: int, producers: list[str], setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QuorumReassembler(k, producers)
    assert caught.value.setting == setting


# --- agreement ---------------------------------------------------------------------------------------------


def test_a_block_is_delivered_once_when_enough_producers_have_supplied_it() -> None:
    feed = Feed()
    records = feed.topics.write("a", said(ONE))
    assert feed.assembler.receive(records) == []
    (event,) = feed.all(ONE, "b")
    assert delivered([event]) == [as_delivered(ONE)]
    assert isinstance(event, Completed)
    assert event.published_ms == records[-1].timestamp_ms
    assert feed.all(ONE, "c", "a") == []
    assert feed.assembler.explain(ONE.hash).state == "complete"
    assert feed.reason() == "agreed on by 'a', 'b'; the copy of 'c' is complete"


def test_positions_begin_at_the_first_message_of_any_copy() -> None:
    feed = Feed()
    feed("c", *LIES["value"](ONE))
    (event,) = [event for event in feed.all(ONE, "a", "b") if isinstance(event, Completed)]
    assert event.positions == dict.fromkeys(feed.topics.partitions, 0)


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
def test_of_two_one_lies_and_nothing_is_delivered_but_the_difference_is_reported(lie: str, liar: str) -> None:
    feed = Feed(quorum(2, HONEST, deadline=2))
    events = []
    for producer in HONEST:
        events += feed(producer, *(LIES[lie](ONE) if producer == liar else said(ONE)))
    assert delivered(events) == []
    events += feed.chain(2, 5, *HONEST)
    (late,) = [event for event in events if isinstance(event, Incomplete)]
    assert late.explanation.block == ONE.hash
    assert late.explanation.state == "open"
    assert late.explanation.reason.startswith("1 of 2 producers agree (")
    assert lie in SILENT or any(isinstance(event, Divergence | Surplus) for event in events)
    assert [payload.number for payload in delivered(events)] == [2, 3, 4, 5]


@pytest.mark.parametrize(("volatile", "agree"), [(("^head/",), True), (("ad/|none",), True), ((), False)])
def test_volatile_values_may_differ_and_other_values_may_not(volatile: tuple[str, ...], *, agree: bool) -> None:
    feed = Feed(quorum(volatile=volatile))
    feed("a", *said(true("1a", "0a", "seen early")))
    assert kinds(feed("b", *said(true("1a", "0a", "seen late")))) == ["Completed"] * agree
    assert not agree or feed("c", *said(true("1a", "0a", "never"))) == []


def test_sub_batches_that_are_cut_in_another_way_are_the_same_block() -> None:
    feed = Feed(quorum(2, HONEST))
    feed.all(ONE, "a")
    header, *parts = [message for message in said(ONE) if message.key[0] in (1, 2)]
    rest = [message for message in said(ONE) if message.key[0] not in (1, 2)]
    turned = [part._replace(key=key) for part, key in zip(parts, [part.key for part in parts[::-1]], strict=True)]
    assert delivered(feed("b", header, *turned, *rest)) == [as_delivered(ONE)]


def test_one_of_one_delivers_at_once_and_still_compares() -> None:
    feed = Feed(quorum(1, HONEST))
    assert kinds(feed.all(ONE, "a")) == ["Completed"]
    assert kinds(feed("b", *LIES["value"](ONE))) == ["Divergence"]


# --- who counts --------------------------------------------------------------------------------------------


def test_a_record_without_a_header_is_of_the_producer_anonymous() -> None:
    feed = Feed(quorum(2, ("a", "anonymous")))
    assert feed(None, *said(ONE)) == []
    assert feed.all(ONE, "anonymous") == []
    assert kinds(feed.all(ONE, "a")) == ["Completed"]


def test_producers_that_are_not_listed_do_not_count_and_are_named_once() -> None:
    feed = Feed()
    events = feed.all(ONE, "x", "y", "x")
    assert [event.producer for event in events if isinstance(event, Untrusted)] == ["x", "y"]
    assert len(events) == 2
    nobody = feed.topics.write("a", said(ONE))[0]._replace(headers=((PRODUCER_HEADER, None),))  # type: ignore[arg-type]  # as a Kafka client gives it
    (unnamed,) = feed.assembler.receive([nobody])
    assert isinstance(unnamed, Untrusted)
    assert unnamed.producer == ""
    assert feed.assembler.open_blocks() == []
    for number in range(100):
        events += feed.all(ONE, "z" * 1000 + str(number), f"s{number}")
    named = [event.producer for event in events if isinstance(event, Untrusted)]
    assert len(named) == len(set(named)) == 63
    assert max(map(len, named)) == 128


def test_what_belongs_to_no_block_is_an_event_of_any_sender() -> None:
    feed = Feed()
    for producer in ("a", "b", "stranger", None):
        ping = feed(producer, Routed("blocks", *encode(Ping(bytes(32), 7))))
        assert kinds(ping) == ["PingSeen"]
        assert kinds(feed(producer, Routed("blocks", *encode(Reorg(ONE.hash, 1))))) == ["ReorgBegan"]
        assert kinds(feed(producer, Routed("blocks", b"nothing", b""))) == ["Rejected"]
        assert feed(producer, Routed("blocks", b"", b"")) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_does_not_begin_above_blocks_that_only_one_producer_has_sent(name: str) -> None:
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


# --- a false number ----------------------------------------------------------------------------------------

SHAPES = pytest.mark.parametrize("shape", [said, part])
Shape = Callable[[Payload], list[Routed]]


@pytest.mark.parametrize("claimed", range(0, 46, 9))
@SHAPES
def test_a_producer_that_is_first_and_lies_about_the_number_keeps_no_block_from_the_others(
    claimed: int, shape: Shape
) -> None:
    feed = Feed()
    feed.assembler.head_moved(40)
    events = feed("c", *shape(replace(at(46), number=claimed)))
    for head in range(41, 46):
        events += feed.assembler.head_moved(head)
    events += feed.all(at(46), *HONEST)
    assert [event.payload.hash for event in events if isinstance(event, Completed)] == [at(46).hash]


@pytest.mark.parametrize(("known", "claimed"), [(20, 2), (20, 12), (40, 20), (40, 30), (40, 46)])
@SHAPES
def test_no_lie_about_a_number_outlives_a_restart(known: int, claimed: int, shape: Shape) -> None:
    scene = Scene()
    scene.chain(1, known, *HONEST)
    scene.write("c", *shape(replace(at(known + 20), number=claimed)))
    for number in range(known + 1, known + 20):
        scene.chain(number, number, *HONEST)
        scene.read()
    scene.reading.restart()
    scene.chain(known + 20, known + 30, *HONEST)
    scene.read()
    assert scene.head == known + 30


def test_a_copy_with_a_false_number_is_stale_and_the_block_stays() -> None:
    feed, false = Feed(), replace(at(51), number=0)
    feed("c", *said(replace(at(50), number=0)), *part(replace(at(49), number=30)))
    feed("c", *said(false)[:-1], said(false)[-1]._replace(value=b"?"))
    feed("a", *said(at(50))[:3], *said(at(49))[:3])
    stale = [Stale(BlockRef(30, at(49).hash), PART, "c"), Stale(BlockRef(0, at(50).hash), VOTE, "c")]
    assert feed.assembler.head_moved(50) == stale
    assert feed.assembler.open_blocks() == [at(50).hash, at(49).hash, at(51).hash]
    assert "'c' supplied what is abandoned" in feed.reason(at(49))
    feed("a", *said(at(50))[3:], *said(at(49))[3:])
    assert kinds(feed.all(at(50), "b")) == ["Completed"]
    assert kinds(feed.all(at(49), "b")) == ["Completed", "Divergence"]
    assert feed.reason(at(49)) == "agreed on by 'a', 'b'; the copy of 'c' is abandoned"
    assert feed("c", *LIES["value"](at(49))) == []


def test_an_open_copy_with_a_false_number_is_compared_when_it_falls_below_the_threshold() -> None:
    feed = Feed()
    feed("c", *part(replace(at(50), number=0)))
    assert kinds(feed.all(at(50), *HONEST)) == ["Completed"]
    assert kinds(feed.assembler.head_moved(50)) == ["Divergence"]
    assert feed.all(at(50), "c") == []
    assert "the copy of 'c' is abandoned" in feed.reason(at(50))


def test_the_number_of_a_block_is_the_lowest_of_any_batch_until_enough_agree() -> None:
    feed = Feed(quorum())
    assert feed.assembler.number_of(ONE.hash) is None
    feed("a", said(ONE)[-1]._replace(value=encode(Batch(ONE.hash, 7, ONE.weight, ONE.parent))[1]))
    assert feed.assembler.number_of(ONE.hash) == 7
    feed("b", said(ONE)[-1])
    assert feed.assembler.number_of(ONE.hash) == ONE.number
    feed("b", *said(ONE)[:-1])
    assert "Completed" in kinds(feed.all(ONE, "c"))
    assert feed.assembler.number_of(ONE.hash) == ONE.number


def test_headers_of_open_blocks_are_those_that_enough_producers_give() -> None:
    feed = Feed()
    feed("a", *said(ONE), *said(TWO)[:-2])
    feed("b", said(ONE)[-1], *LIES["parent"](TWO))
    assert feed.assembler.header_of(ONE.hash) == HeaderOnly(1, ONE.hash, ONE.parent, ONE.weight)
    assert feed.assembler.header_of(TWO.hash) is None
    feed("c", said(TWO)[-1])
    assert feed.assembler.header_of(TWO.hash) is None
    feed("a", said(TWO)[-1])
    assert feed.assembler.header_of(TWO.hash) == HeaderOnly(2, TWO.hash, TWO.parent, TWO.weight)
    feed("b", *said(ONE))
    assert feed.assembler.header_of(ONE.hash) is None


# --- bounds ------------------------------------------------------------------------------------------------


def test_a_flood_of_one_producer_leaves_the_others_alone() -> None:
    feed = Feed(quorum(bounds=Bounds(open_bytes=3 << 20, open_blocks=60, finished_bytes=3 << 20, votes=40)))
    feed.all(ONE, "a")
    evicted = []
    for number in range(400):
        fantasy = block(f"{number}z", "none")
        evicted += feed("c", *messages(fantasy)) if number % 2 else feed("c", *messages(fantasy)[:-1])
        assert feed.assembler.held_bytes <= 6 << 20
    assert {type(event) for event in evicted} == {Overflow}
    assert all("'c'" in event.reason for event in evicted if isinstance(event, Overflow))
    assert len(feed.assembler.open_blocks()) <= 60
    assert kinds(feed.all(ONE, "b")) == ["Completed"]


def test_it_counts_what_one_producer_alone_has_completed() -> None:
    feed = Feed(quorum(2, HONEST))
    blocks = [block(f"{number}a", f"{number - 1}a") for number in range(1, 6)]
    for one in blocks:
        feed.all(one, HONEST[0])
    assert feed.assembler.undecided == 5
    feed.all(blocks[2], HONEST[1])
    assert feed.assembler.undecided == 4


def test_it_reports_the_used_part_of_the_fullest_producers_share() -> None:
    feed = Feed(quorum(2, HONEST, bounds=Bounds(open_blocks=80)))
    for number in range(6):
        assert feed.assembler.fullness == number / 40
        feed("a", *messages(block(f"{number}a", "none"))[:-1])
        feed("b", *messages(block(f"{number}b", "none"))[:-1])


def test_where_nothing_is_left_to_compare_with_the_block_is_named_as_a_whole() -> None:
    feed = Feed(quorum(bounds=Bounds(finished_bytes=0)))
    assert kinds(feed.all(ONE, *HONEST)) == ["Completed"]
    (event,) = feed("c", *LIES["value"](ONE))
    assert isinstance(event, Divergence)
    assert event.key == b"\0" + ONE.hash
    assert event.kept != event.seen
    assert event.positions[0] is None
    feed = Feed(quorum(bounds=Bounds(finished_bytes=60_000)))  # those of the other two are held
    feed("c", *LIES["value"](ONE), *said(true("9a", "8a")), *said(true("8a", "7a")))
    assert kinds(feed.all(ONE, *HONEST)) == ["Completed", "Divergence"]


def test_votes_over_their_bound_are_evicted_highest_first_and_come_again_when_they_are_read_again() -> None:
    feed = Feed(quorum(2, HONEST, bounds=Bounds(votes=10)))
    events = feed.chain(1, 12, "a")
    assert [event.number for event in events if isinstance(event, Overflow)] == [11, 10]
    assert all("'a'" in event.reason and event.positions for event in events if isinstance(event, Overflow))
    assert feed.assembler.explain(h("11a")).state == "unknown"
    assert len(feed.assembler.open_blocks()) == 10
    feed.all(TWO, "b")
    again = [each for log in feed.topics.partitions.values() for each in log if each.key[1:33] == h("11a")]
    assert feed.assembler.receive(again) == []
    assert kinds(feed.all(at(11), "b")) == ["Completed"]
    assert kinds(feed.all(ONE, "b")) == ["Completed"]


def test_a_block_of_which_all_votes_were_evicted_is_not_overdue() -> None:
    feed = Feed(quorum(2, HONEST, bounds=Bounds(votes=10), deadline=10))
    events = feed.all(ONE, "a")
    for name in "bcdefghijk":
        events += feed.all(true(f"2{name}", "1a"), "a")
    assert [event.block for event in events if isinstance(event, Overflow)] == [h("2b"), h("2c")]
    assert [event.explanation.block for event in events if isinstance(event, Incomplete)] == [ONE.hash]


def test_a_copy_of_a_delivered_block_that_is_evicted_is_not_reported() -> None:
    feed = Feed(quorum(bounds=Bounds(open_blocks=60)))
    feed("c", *said(ONE)[:-1])
    feed.all(ONE, *HONEST)
    evicted = []
    for number in range(2, 30):
        evicted += feed("c", *messages(block(f"{number}a", f"{number - 1}a"))[:-1])
    assert kinds(evicted).count("Overflow") == len(evicted) > 0
    assert ONE.hash not in [event.block for event in evicted if isinstance(event, Overflow)]
    assert feed.assembler.explain(ONE.hash).state == "complete"


def test_the_smallest_bounds_hold() -> None:
    feed = Feed(quorum(2, HONEST, bounds=Bounds(open_blocks=1, finished_bytes=0, votes=1)))
    feed("a", *said(ONE)[:-1])
    assert kinds(feed("a", *said(TWO)[:1])) == ["Overflow"]
    assert feed.assembler.open_blocks() == [h("2a")]
    feed("a", *said(TWO)[1:])
    assert kinds(feed.all(at(3), "a")) == ["Overflow", "Overflow"]
    assert feed.assembler.held_bytes == 0


STEP = 500


def small_blocks(producer: bytes, begin: int, blocks: int) -> Iterator[list[Record]]:
    """A long chain of small blocks, in reads."""
    headers = ((PRODUCER_HEADER, producer),)
    names = [number.to_bytes(32, "big") for number in range(blocks + 1)]
    value = {"value": Update(value=bytes(100))}
    for first in range(1, blocks + 1, STEP):
        chain = (Batch(names[at], at, at, names[at - 1], value) for at in range(first, first + STEP))
        yield [Record("chain", 0, begin + one.number, *encode(one), 0, headers) for one in chain]


@pytest.mark.parametrize("blocks", few(1, [1_000, 30_000]))
def test_producers_that_are_far_apart_agree_on_all_blocks_and_nothing_is_read_twice(blocks: int) -> None:
    bounds = Bounds(finished_bytes=280 * blocks, votes=blocks * 32_768 // 30_000)
    assembler, orderer = QuorumReassembler(2, HONEST, bounds=bounds), Orderer(start=BlockRef(0, bytes(32)))
    tracemalloc.start()
    for records in small_blocks(b"a", 0, blocks):
        assert {type(event) for event in assembler.receive(records)} <= {Incomplete}
    del records
    gc.collect()
    live, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert live < 2 * assembler.held_bytes
    assert len(assembler.open_blocks()) == blocks
    assert assembler.held_bytes < bounds.finished_bytes + blocks * 1_500
    assert 0.9 < assembler.fullness < 1
    assert assembler.open_positions() == {("chain", 0): 1}
    numbers: list[int] = []
    for records in small_blocks(b"b", blocks, blocks):
        for event in assembler.receive(records):
            assert isinstance(event, Completed)
            numbers += [block.number for update in orderer.receive(event) for block in update.added]
        assert not assembler.head_moved(numbers[-1])
    assert numbers == list(range(1, blocks + 1))
    assert assembler.open_blocks() == []
    assert assembler.open_positions() == {}
    assert assembler.held_bytes <= bounds.finished_bytes


# --- copies of delivered blocks ----------------------------------------------------------------------------


def test_a_copy_that_begins_after_delivery_is_compared_when_it_is_complete() -> None:
    feed = Feed(quorum(deadline=2))
    feed.all(ONE, *HONEST)
    lies = LIES["value"](ONE)
    assert [kind for message in lies for kind in kinds(feed("c", message))] == ["Divergence"]
    feed.chain(2, 6, "a", "b", "c")
    assert feed("c", *lies) == []
    assert kinds(feed("a", *lies)) == ["Divergence"]


def test_a_copy_that_never_becomes_complete_is_compared_when_it_falls_below_the_threshold() -> None:
    feed = Feed()
    feed("c", *without_a_value(LIES["value"](ONE)))
    assert kinds(feed.all(ONE, *HONEST)) == ["Completed"]
    (event,) = feed.assembler.head_moved(18)
    assert isinstance(event, Divergence)
    assert (event.kept, event.seen) == (b"1a-tx1", b"false")
    assert feed.reason() == "agreed on by 'a', 'b'; the copy of 'c' is abandoned"


@pytest.mark.parametrize("lie", ["no Batch", "value"])
def test_a_copy_without_a_batch_is_compared_and_pruned_with_its_block(lie: str) -> None:
    feed = Feed()
    feed("c", *[message for message in LIES[lie](ONE) if message.key[0] != 0])
    feed.all(ONE, *HONEST)
    assert feed.assembler.open_positions() != {}
    assert feed.assembler.head_moved(32) == []
    assert kinds(feed.assembler.head_moved(34)) == ([] if lie == "no Batch" else ["Divergence"])
    assert feed.assembler.open_positions() == {}


def test_each_message_that_does_not_decode_is_rejected_at_its_position() -> None:
    feed = Feed()
    feed.all(ONE, *HONEST)
    part = next(message for message in said(ONE) if message.key[0] == 2)
    for bad in (said(ONE)[-1]._replace(value=b"?"), part._replace(key=part.key[:65] + b"\xff")):
        for _ in range(2):
            (event,) = feed("c", bad)
            assert isinstance(event, Rejected)
            topic, partition, offset = event.position
            assert (topic, event.key) == (bad.topic, bad.key)
            assert feed.topics.partitions[topic, partition][-1].offset == offset


def test_a_late_copy_that_an_untracked_message_begins_is_silent() -> None:
    feed = Feed(quorum(tracked=["/t/"]))
    assert kinds(feed.all(ONE, *HONEST)) == ["Completed"]
    assert feed("c", *[message for message in said(ONE) if b"/l/" in message.key]) == []
    assert feed.assembler.open_positions() == {}
    assert feed.all(ONE, "c") == []


def test_a_producers_second_batch_counts_when_its_first_cannot_be_completed() -> None:
    feed = Feed(quorum(2, HONEST, deadline=2))
    feed("a", *[message for message in LIES["one more, counted"](ONE) if not message.key.endswith(b"/t/9")])
    assert kinds(feed("a", said(ONE)[-1])) == ["Divergence"]
    feed.all(ONE, "b")
    events = feed.chain(2, 6, *HONEST)
    assert any(isinstance(event, Superseded) for event in events)
    assert as_delivered(ONE) in delivered(events)


def test_a_forgotten_block_is_assembled_and_compared_again() -> None:
    feed = Feed()
    feed.all(ONE, "a")
    feed("c", *LIES["value"](ONE))
    feed.all(ONE, "b")
    feed.assembler.forget(ONE.hash)
    assert feed.assembler.explain(ONE.hash).state == "unknown"
    records = [each for log in feed.topics.partitions.values() for each in log]
    assert kinds(feed.assembler.receive(records)) == ["Completed", "Divergence"]


# --- copies of old blocks ----------------------------------------------------------------------------------


def stale(numbers: range, producer: str, reason: str = VOTE) -> list[Stale]:
    return [Stale(BlockRef(number, at(number).hash), reason, producer) for number in numbers]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("shape", "reason"), [(said, VOTE), (part, PART)])
def test_old_blocks_that_one_producer_sends_again_are_stale_and_nothing_else(
    shape: Shape, reason: str, *, restarted: bool
) -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    assert scene.read() == []
    if restarted:
        scene.reading.restart()
        assert scene.read() == []
    for number in range(11, 31):
        scene.write("c", *shape(at(number)))
    assert scene.read() == []
    scene.chain(81, 90, *NAMES)
    assert scene.read() == stale(range(11, 31), "c", reason)
    assert scene.head == 90


def test_old_blocks_that_enough_producers_send_again_are_stale_as_under_the_policy_first() -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    scene.chain(11, 12, *NAMES)
    reports = scene.read()
    assert {event.block.number for event in reports if isinstance(event, Stale)} == {11, 12}
    assert all(isinstance(event, Stale) and event.producer is None for event in reports)


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


def test_while_the_chain_is_idle_old_blocks_are_not_overdue_and_those_that_it_needs_are() -> None:
    scene = Scene()
    scene.chain(1, 80, *HONEST)
    scene.chain(11, 14, "c")
    scene.chain(81, 99, "a")
    reports = [*scene.read(), *scene.reading.take([])]
    late = [event.explanation.block for event in reports if isinstance(event, Incomplete)]
    assert late == [at(number).hash for number in range(81, 97)]
    scene.chain(81, 99, "b")
    assert scene.read() == stale(range(11, 15), "c")
    assert scene.head == 99


def test_a_block_without_agreement_is_stale_for_each_producer_when_its_number_is_below_the_threshold() -> None:
    feed = Feed()
    feed("a", *said(replace(at(40), number=15)))
    feed("c", *said(replace(at(40), number=13)))
    assert feed.assembler.head_moved(28) == []
    assert feed.assembler.head_moved(40) == [
        Stale(BlockRef(15, at(40).hash), VOTE, "a"),
        Stale(BlockRef(13, at(40).hash), VOTE, "c"),
    ]
    assert feed.assembler.head_moved(40) == []
    assert feed.assembler.explain(at(40).hash).state == "unknown"
    feed.all(at(40), "b")
    assert feed.assembler.explain(at(40).hash).state == "open"


# --- too few agree -----------------------------------------------------------------------------------------


def test_three_of_three_with_one_silent_names_it() -> None:
    feed = Feed(quorum(3, deadline=3))
    events = feed.chain(1, 6, *HONEST)
    late = [event.explanation for event in events if isinstance(event, Incomplete)]
    assert [explanation.number for explanation in late] == [None] * 4
    assert [explanation.block for explanation in late] == [h("1a"), h("2a"), h("3a"), h("4a")]
    assert late[0].reason == "2 of 3 producers agree ('a', 'b'); 'c' supplied nothing"
    assert late[0].missing_batch
    assert kinds(feed.all(ONE, "c")) == ["Completed"]


def test_a_block_that_nobody_completed_is_overdue_too() -> None:
    feed = Feed(quorum(2, HONEST, deadline=2))
    feed("a", *said(ONE)[:-1])
    (event,) = [event for event in feed.chain(2, 4, *HONEST) if isinstance(event, Incomplete)]
    assert event.explanation.reason == "0 of 2 producers agree; 'a' lacks its Batch; 'b' supplied nothing"


def test_an_open_block_is_explained_by_what_every_producer_lacks() -> None:
    feed = Feed(quorum(2, ("a", "b", "c", "d")))
    whole = said(ONE)
    feed("a", *whole)
    feed("b", *[message for message in part(ONE) if message.key[0] != 1])
    feed("c", *whole[:1])
    why = feed.assembler.explain(ONE.hash)
    assert (why.state, why.number, why.missing_batch) == ("open", 1, False)
    assert why.missing_counts == {"b/1a/t/": 1}
    assert why.missing_headers == (h("sub1a"),)
    assert why.reason == (
        "1 of 2 producers agree ('a'); 'b' lacks 2 messages; 'c' lacks its Batch; 'd' supplied nothing"
    )
    assert why.positions == {place: log[0].offset for place, log in feed.topics.partitions.items() if log}
    assert feed.assembler.explain(h("9z")).state == "unknown"


def test_missing_parts_of_several_copies_are_reported_together() -> None:
    feed = Feed(quorum(2, HONEST))
    for producer, index in (("a", 1), ("b", 2)):
        parts = [message for message in said(ONE) if message.key[0] == 2]
        feed(producer, *[message for message in said(ONE) if message != parts[index]])
    assert feed.assembler.explain(ONE.hash).missing_parts == {h("sub1a"): (1, 2)}
    assert "'a' lacks 1 message" in feed.reason()


def test_an_abandoned_block_has_a_header_only_where_enough_producers_give_it() -> None:
    feed = Feed()
    feed.all(ONE, "a")
    feed("b", *part(ONE))
    (event,) = feed.assembler.abandon(ONE.hash, "enough")
    assert event == Quarantined(ONE.hash, 1, "enough", HeaderOnly(1, ONE.hash, ONE.parent, ONE.weight))
    assert feed.assembler.abandon(ONE.hash, "enough") == []
    assert feed.assembler.explain(ONE.hash).state == "abandoned"
    assert feed.reason() == "enough"
    assert feed.all(ONE, "b") == []
    assert feed.assembler.open_positions() == {}
    feed.all(TWO, "a")
    feed("c", *LIES["parent"](TWO))
    assert feed.assembler.abandon(TWO.hash, "enough") == [Quarantined(TWO.hash, None, "enough")]


# --- supplied messages -------------------------------------------------------------------------------------


def test_supplied_messages_complete_the_copies_of_producers_that_sent_a_batch() -> None:
    feed = Feed()
    feed("a", *part(ONE))
    feed("b", *part(ONE))
    events = feed.assembler.supply(
        [*said(ONE), Routed("blocks", *encode(Ping(bytes(32), 7))), Routed("blocks", b"", b"")]
    )
    assert delivered(events) == [as_delivered(ONE)]
    assert ("tx", -1) not in {place for event in events if isinstance(event, Completed) for place in event.positions}


def test_a_batch_cannot_be_supplied() -> None:
    feed = Feed()
    feed.all(ONE, "a")
    feed("b", *[message for message in said(ONE) if message.key[0] != 0])
    assert feed.assembler.supply(said(ONE)) == []
    assert feed.assembler.explain(ONE.hash).state == "open"
    assert kinds(feed("b", said(ONE)[-1])) == ["Completed"]
