"""Reassembly, case by case: what a block waits for, copies, tracked entries, bounds, overdue and abandoned blocks.

The vectors (``schemas/vectors/own.json``) decide which copy counts and what is surplus; they are not repeated here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    BlockRef,
    Completed,
    Divergence,
    Heartbeat,
    Incomplete,
    Message,
    Overflow,
    Payload,
    Quarantined,
    Reassembler,
    Record,
    Rejected,
    Routed,
    Stale,
    SubBatchHeader,
    SubBatchMsg,
    Superseded,
    Surplus,
    Update,
    encode,
)
from cardinal.protocols.streams.assembly import window
from cardinal.protocols.streams.assembly.block import OpenBlock
from cardinal.protocols.streams.assembly.counters import Counters, Tracked
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly, digested
from cardinal.protocols.streams.assembly.window import RECENT_MAX, Bounds, RecentBlock, RecentBlocks
from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.types import SEALED_HEADER, Partition
from streams import SCHEMA, Log, block, h, messages

ROOT = h("0r")
ONE, TWO = BatchMsg(h("1a"), "a/1", b"1"), BatchMsg(h("1a"), "a/2", b"2")
ANNOUNCED = Batch(h("1a"), 1, 1, ROOT, {"state/": Update(sub_batch=h("s"))})


def counted(name: str = "1a", number: int = 1, count: int = 1, parent: bytes = ROOT) -> Batch:
    """A Batch that counts messages under `a/`."""
    return Batch(h(name), number, number, parent, {"a/": Update(count=count)} if count else {})


class Feed:
    """Messages to records, one partition a topic, offsets counting up."""

    def __init__(self, tracked: list[str] | None = None, **options: object) -> None:
        options = {"prefixes": tuple(SCHEMA), **options}
        self.reassembler = Reassembler(tracked, **options)  # type: ignore[arg-type]  # by name
        self._offsets: dict[Partition, int] = {}

    def __call__(
        self, *said: Message | tuple[bytes, bytes], topic: str = "t", partition: int = 0, at: int | None = None
    ) -> list[ReassemblyEvent]:
        records = []
        for message in said:
            key, value = message if isinstance(message, tuple) else encode(message)
            offset = self._offsets.get((topic, partition), 0) if at is None else at
            self._offsets[topic, partition] = offset + 1
            records.append(Record(topic, partition, offset, key, value, 5))
        return self.reassembler.receive(records)

    def others(self, count: int = 20) -> list[ReassemblyEvent]:
        """Complete blocks, each on the one before, for the deadline to come nearer."""
        return self(*(counted(f"{at}c", at, 0, h(f"{at - 1}c")) for at in range(50, 50 + count)), partition=9)


def kinds(events: list[ReassemblyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def completed(events: list[ReassemblyEvent]) -> Payload:
    (payload,) = [event.payload for event in events if isinstance(event, Completed)]
    assert isinstance(payload, Payload)
    return payload


@pytest.mark.parametrize("missing", range(6))
def test_a_block_that_lacks_a_message_is_explained_and_completes_when_it_comes(missing: int) -> None:
    records = Log().append(messages(block("1a", "0r", txs=1, sub=True)))
    absent = records.pop(missing)
    reassembler = Reassembler(prefixes=tuple(SCHEMA))
    assert reassembler.receive(records) == []
    why = reassembler.explain(h("1a"))
    assert why.state == "open"
    assert why.missing_batch or why.missing_counts or why.missing_headers or why.missing_parts
    assert completed(reassembler.receive([absent])).number == 1
    assert reassembler.explain(h("1a")).state == "complete"
    assert reassembler.explain(h("9z")).state == "unknown"


def test_headers_and_numbers_are_those_of_the_batch() -> None:
    feed = Feed()
    feed(counted(), BatchMsg(h("2a"), "a/1", b""), counted("3a", count=0))
    assert feed.reassembler.open_blocks() == [h("1a"), h("2a")]
    assert feed.reassembler.header_of(h("1a")) == HeaderOnly(1, h("1a"), ROOT, 1)
    assert [feed.reassembler.header_of(h(name)) for name in ("2a", "3a", "4a")] == [None, None, None]
    assert [feed.reassembler.number_of(h(name)) for name in ("1a", "2a", "3a", "4a")] == [1, None, 1, None]


@pytest.mark.parametrize("bound", [{"reorg_threshold": 0}, {"tracked": ["("]}, {"prefixes": ["("]}])
def test_settings_that_cannot_be_are_refused_by_name(bound: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Feed(**bound)  # type: ignore[arg-type]  # by name
    assert caught.value.setting == next(iter(bound))


# --- prefixes and tracked entries --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefixes", "path", "prefix"),
    [
        ({"a/"}, "a/b/c", "a/"),
        ({"a/", "a/b/"}, "a/b/c", "a/b/"),
        ({"a/", "a/b"}, "a/bcd", "a/b"),
        ({"a/", "a/b"}, "a/c", "a/"),
        ({"a/h"}, "a/h", "a/h"),
        ({""}, "x", ""),
        ({"", "a/"}, "a/x", "a/"),
        ({"a/b/c"}, "a/b/d", None),
        ({"a//"}, "a//b", "a//"),
        ({"/"}, "/x", "/"),
    ],
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_message_counts_under_the_longest_prefix(
    prefixes: set[str], path: str, prefix: str | None, *, batch_first: bool
) -> None:
    feed, value = Feed(), BatchMsg(h("1a"), path, b"1")
    batch = Batch(h("1a"), 1, 1, ROOT, {each: Update(count=1) for each in prefixes})
    events = feed(batch, value) if batch_first else feed(value, batch)
    if prefix is None:
        assert kinds(events) == ["Surplus"]
    elif prefixes == {prefix}:
        assert completed(events).updates == {path: b"1"}
    else:
        assert set(feed.reassembler.explain(h("1a")).missing_counts) == prefixes - {prefix}


@pytest.mark.parametrize(
    ("keys", "together"),
    [
        ([b"\3" + h("1a") + b"a/1", b"\3" + h("1a") + b"b/2", b"\3" + h("1a") + b"a/2"], True),
        ([b"\3" + h("1a") + b"a/%d" % at for at in range(3)], False),
        ([b"\3" + h("1a") + b"none"], False),
        ([b"\4" + h("1a") + b"a/1"], False),
        ([b"\3" + b"/" * 32 + b"none"], False),
        ([], True),
    ],
)
def test_messages_before_their_batch_are_counted_all_at_once_or_not_at_all(
    keys: list[bytes], *, together: bool
) -> None:
    counters = Counters({b"a/": 2, b"b/": 1, b"/": 1})
    assert counters.take_all(keys) is together
    assert counters.outstanding == (4 - len(keys) if together else 4)


def test_a_prefix_that_is_not_followed_takes_its_messages_even_where_it_counts_none() -> None:
    """Else they would count under a shorter prefix that is followed."""
    feed = Feed(["/n$"], prefixes=["b/1b/n(?!n)", "b/1b/nn"])
    feed(Batch(h("1a"), 1, 1, ROOT, {"b/1b/n": Update(count=1), "b/1b/nn": Update()}))
    assert feed(BatchMsg(h("1a"), "b/1b/nn0", b"other's")) == []
    assert completed(feed(BatchMsg(h("1a"), "b/1b/n0", b"ours"))).updates == {"b/1b/n0": b"ours"}


def test_what_is_not_followed_is_not_held() -> None:
    """Before its Batch by its path alone, and by what the Batch says after it."""
    feed = Feed(["/t/"])
    feed(*(BatchMsg(h(f"{index}a"), f"b/x/l/{index}", b"log") for index in range(50)), BatchDeleteMsg(h("1a"), "b/x/l"))
    assert (feed.reassembler.open_blocks(), feed.reassembler.held_bytes) == ([], 0)
    feed(BatchMsg(h("1a"), "b/x/t/1", b""), BatchMsg(h("1a"), "at/t/", b""))
    assert feed.reassembler.open_blocks() == [h("1a")]
    others = (BatchDeleteMsg(h("1a"), "b/x/l/1"), SubBatchHeader(h("1a"), h("s"), 1), SubBatchMsg(h("1a"), h("s"), 0))
    held = feed.reassembler.held_bytes
    assert feed(others[0], BatchMsg(h("1a"), "b/x/l/0", b"")) == []
    assert feed.reassembler.held_bytes == held
    entries = {"b/x/t/": Update(count=3), "at/t/": Update(count=1), "b/x/l/": Update(sub_batch=h("s"))}
    feed(Batch(h("1a"), 1, 1, ROOT, entries))
    held = feed.reassembler.held_bytes
    assert feed(*others, BatchMsg(h("1a"), "b/x/l/0", b"")) == []
    assert feed.reassembler.held_bytes == held
    one = Feed(["/t/a"])  # matches a path, not all of its directory
    one(BatchMsg(h("1a"), "b/t/a", b""))
    held = one.reassembler.held_bytes
    one(BatchMsg(h("1a"), "b/t/a", b""), BatchMsg(h("1a"), "b/t/c", b""))
    assert one.reassembler.held_bytes == held


def test_directories_that_match_are_remembered_within_a_bound() -> None:
    tracked = Tracked(["/t/"])
    assert all(tracked.may_belong(b"%d/t/1" % at) for at in range(10_000))
    assert len(tracked.directories) <= 4096
    assert tracked.may_belong(b"1/t/2")


# --- copies ------------------------------------------------------------------------------------------------


def test_the_copy_at_the_lowest_position_counts_and_the_other_is_reported() -> None:
    feed = Feed()
    feed(BatchMsg(h("1a"), "a/1", b"late"), at=8)
    (event,) = feed(BatchMsg(h("1a"), "a/1", b"early"), at=2)
    assert event == Divergence(h("1a"), encode(ONE)[0], b"late", b"early", (("t", 0, 8), ("t", 0, 2)))
    assert completed(feed(counted(), at=9)).updates == {"a/1": b"early"}


def test_copies_of_a_sub_batchs_header_and_parts_at_lower_positions_count() -> None:
    feed, values = Feed(), ({"s/1": b"1"}, {"s/1": b"2"})
    feed(SubBatchHeader(h("1a"), h("s"), 2), at=9)
    feed(SubBatchMsg(h("1a"), h("s"), 0, (), values[0]), at=8)
    assert kinds(feed(SubBatchMsg(h("1a"), h("s"), 0, (), values[1]), at=3)) == ["Divergence"]
    assert kinds(feed(SubBatchHeader(h("1a"), h("s"), 1), at=2)) == ["Divergence"]
    key, _ = encode(SubBatchHeader(h("1a"), h("s"), 1))
    assert kinds(feed((key, b"\1"), at=1)) == ["Divergence"]  # a negative count replaces none
    assert completed(feed(ANNOUNCED, at=10)).updates == values[1]


def test_a_header_with_a_negative_count_is_rejected_and_takes_no_place() -> None:
    feed = Feed()
    key, _ = encode(SubBatchHeader(h("1a"), h("s"), 1))
    assert kinds(feed((key, b"\1"), (key, b"\2"))) == ["Rejected"]
    assert feed(ANNOUNCED) == []
    assert feed.reassembler.explain(h("1a")).missing_parts == {h("s"): (0,)}


def test_of_equal_batches_the_one_at_the_lowest_position_is_named() -> None:
    feed = Feed()
    feed(counted(), at=9)
    early = Record("t", 0, 1, *encode(counted()), 7)
    feed.reassembler.receive([early])
    (done,) = feed(ONE)
    assert isinstance(done, Completed)
    assert done.published_ms == 7


def test_of_more_batches_than_four_each_is_reported_and_none_held() -> None:
    feed = Feed()
    events = [event for count in range(1, 8) for event in feed(counted(count=count))]
    assert kinds(events) == ["Divergence"] * 6
    held = feed.reassembler.held(h("1a"))
    assert isinstance(held, OpenBlock)
    assert len(held.candidates) == 4


def test_what_one_of_two_batches_counts_is_surplus_to_the_other() -> None:
    feed = Feed()
    feed(counted(count=2), Batch(h("1a"), 1, 1, ROOT, {"b/": Update(count=1)}), ONE)
    assert completed(feed(TWO)).updates == {"a/1": b"1", "a/2": b"2"}


def test_a_record_that_is_read_twice_counts_once() -> None:
    """The same object, as a reader in one process may give it; a header at its own position is no copy either."""
    reassembler = Reassembler()
    first, second, batch, header = (
        Record("t", 0, at, *encode(one)) for at, one in enumerate((ONE, TWO, counted(count=2), ANNOUNCED))
    )
    header = header._replace(key=encode(SubBatchHeader(h("2a"), h("s"), 1))[0], value=b"\2")
    assert reassembler.receive([header, header, batch, first, first, first]) == []
    assert kinds(reassembler.receive([first, second])) == ["Completed"]


def test_after_completion_every_kind_of_late_message_is_distinguished() -> None:
    feed, lie = Feed(), BatchMsg(h("1a"), "a/1", b"lie")
    feed(ONE, TWO, counted(count=2))
    other = counted(count=2, number=7), BatchMsg(h("1a"), "a/3", b""), BatchMsg(h("2a"), "a/1", b"")
    events = feed(ONE, lie, *other, lie, (encode(counted())[0], b"\2"))
    assert kinds(events) == ["Divergence", "Divergence", "Surplus", "Divergence", "Rejected"]
    assert isinstance(events[0], Divergence)
    assert (events[0].kept, events[0].seen, events[0].positions) == (b"1", b"lie", (("t", 0, 0), ("t", 0, 4)))


# --- records that are no messages --------------------------------------------------------------------------

BAD = [
    (b"\x00" + h("1a"), b"\x02"),
    (b"\x00" + h("1a") + b"x", encode(counted())[1]),
    (b"\x01" + h("1a") + h("s"), b""),
    (b"\x02" + h("1a") + h("s"), b"\x00\x00"),
    (b"\x02" + h("1a") + h("s") + b"\x00", b"\x02"),
    (b"\x09" + h("1a"), b""),
    (b"\x03short", b""),
    (b"\xff" + h("p"), b""),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_undecodable_records_are_rejected_and_pin_nothing(bad: tuple[bytes, bytes]) -> None:
    feed = Feed()
    (event,) = feed(bad)
    assert isinstance(event, Rejected)
    assert event.position == ("t", 0, 0)
    assert feed.reassembler.open_positions() == {}
    assert completed(feed(counted(count=0))).number == 1


# --- bounds ------------------------------------------------------------------------------------------------


def test_open_blocks_are_bounded_and_headless_ones_go_first() -> None:
    feed = Feed(bounds=Bounds(open_blocks=10))
    feed(counted())
    events = feed(*(BatchMsg(h(f"x{index}"), "a/1", b"") for index in range(12)))
    evicted = [event for event in events if isinstance(event, Overflow)]
    assert evicted
    assert all(event.number is None for event in evicted)
    assert h("1a") in feed.reassembler.open_blocks()
    name = evicted[0].block
    assert feed.reassembler.explain(name).state == "unknown"
    feed(BatchMsg(name, "a/1", b""), at=0)
    assert kinds(feed(replace(counted(), hash=name))) == ["Completed"]


def test_a_block_is_not_evicted_for_its_own_first_message() -> None:
    """All others have a Batch, and would be in its place for ever."""
    feed = Feed(bounds=Bounds(open_blocks=10))
    feed(*(counted(f"x{index}", index) for index in range(10)))
    evicted = feed(BatchMsg(h("1a"), "a/1", b""), topic="u", partition=3, at=7)
    assert [event.number for event in evicted if isinstance(event, Overflow)] == [9, 8]
    headless, farthest = feed(counted("y5", 5), BatchMsg(h("2a"), "a/1", b""))
    assert headless == Overflow(h("1a"), None, {("u", 3): 7}, "open blocks are over their bound")
    assert isinstance(farthest, Overflow)
    assert farthest.number == 7
    (supplied,) = Reassembler(bounds=Bounds(open_bytes=500)).supply([Routed("u", *encode(ONE))])
    assert isinstance(supplied, Overflow)
    assert supplied.positions == {}


def test_a_block_that_a_complete_one_stands_on_is_evicted_last() -> None:
    feed = Feed(bounds=Bounds(open_blocks=10))
    feed(BatchMsg(h("5a"), "a/1", b""), counted("6a", 6, 0, h("5a")), counted("7a", 7, parent=h("none")))
    assert "Overflow" in kinds(feed(*(counted(f"x{index}", index) for index in range(40))))
    assert feed.reassembler.open_blocks()[:1] == [h("5a")]
    assert kinds(feed(counted("5a", 5))) == ["Completed"]


def test_parents_that_nobody_publishes_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_AWAITED_MAX", 3)
    feed = Feed(bounds=Bounds(open_blocks=10))
    feed(*(counted(f"{index}x", 5, 0, h(f"{index}none")) for index in range(5)))
    feed(*(BatchMsg(h(f"{index}none"), "a/1", b"") for index in range(5)))
    evicted = feed(*(counted(f"y{index}", index) for index in range(6)))
    assert {event.block for event in evicted if isinstance(event, Overflow)} == {h("0none"), h("1none")}


def test_bytes_of_open_blocks_are_bounded_and_the_highest_number_goes() -> None:
    feed = Feed(bounds=Bounds(open_bytes=100_000))
    for number in range(1, 9):
        feed(counted(f"{number}a", number, 2), BatchMsg(h(f"{number}a"), "a/1", bytes(20_000)))
    left = feed.reassembler.open_blocks()
    assert h("1a") in left
    assert h("7a") not in left
    assert feed.reassembler.held_bytes <= 100_000
    assert 0.5 < feed.reassembler.fullness <= 1


def test_it_reports_the_used_part_of_the_bounds() -> None:
    feed = Feed(bounds=Bounds(open_blocks=40))
    feed(*(BatchMsg(h(f"x{index}"), "a/1", b"") for index in range(10)), ONE)
    assert feed.reassembler.fullness == 11 / 40
    feed(counted())
    assert feed.reassembler.fullness == 10 / 40


def test_a_complete_block_that_is_larger_than_the_bound_is_not_held() -> None:
    feed = Feed(bounds=Bounds(finished_bytes=10_000))
    done = completed(feed(BatchMsg(h("1a"), "a/1", bytes(50_000)), TWO, counted(count=2)))
    assert feed.reassembler.held_bytes == 0
    assert feed(BatchMsg(h("1a"), "a/1", b"another")) == []  # it is recognised, and no longer compared
    assert len(done.updates["a/1"]) == 50_000


def test_completed_blocks_are_recognised_for_twice_the_threshold() -> None:
    feed = Feed(reorg_threshold=8)
    feed(ONE, counted())
    feed.reassembler.head_moved(16)
    assert kinds(feed(BatchMsg(h("1a"), "a/1", b"other"))) == ["Divergence"]
    feed.reassembler.head_moved(30)
    assert feed.reassembler.explain(h("1a")).state == "unknown"


def test_recently_completed_hashes_are_bounded() -> None:
    recent: RecentBlocks[RecentBlock] = RecentBlocks(256, 1_000)
    for number in range(RECENT_MAX + 1):
        recent.add(number.to_bytes(32), RecentBlock(number))
    assert (0).to_bytes(32) not in recent
    assert RECENT_MAX.to_bytes(32) in recent


def test_a_headless_hash_stops_pinning_positions_after_a_distance() -> None:
    feed = Feed(bounds=Bounds(headless_distance=5))
    feed(ONE)
    assert feed.reassembler.open_positions() == {("t", 0): 0}
    feed(*(Heartbeat() for _ in range(6)))
    assert feed.reassembler.open_positions() == {}


# --- overdue, supplied, abandoned, stale -------------------------------------------------------------------


def test_an_overdue_block_is_reported_once_with_what_it_lacks() -> None:
    feed = Feed(deadline=3)
    feed(counted(count=2), ONE)
    (report,) = [event for event in feed.others() if isinstance(event, Incomplete)]
    assert report.explanation.missing_counts == {"a/": 1}
    assert report.explanation.state == "open"
    assert completed(feed(TWO)).updates == {"a/1": b"1", "a/2": b"2"}


def test_an_overdue_block_is_completed_by_whichever_of_its_batches_is_complete_first() -> None:
    feed = Feed(deadline=3)
    feed(counted(count=2), replace(counted(), updates={"b/": Update(count=1)}), ONE)
    assert kinds(feed.others()).count("Incomplete") == 1
    surplus, superseded, done = feed(BatchMsg(h("1a"), "b/1", b""))
    assert isinstance(surplus, Surplus)
    assert superseded == Superseded(h("1a"), 1, ("t", 0, 0), ("t", 0, 1))
    assert completed([done]).updates == {"b/1": b""}


def test_what_is_supplied_completes_a_block_and_pins_no_position() -> None:
    feed = Feed()
    feed(counted(count=2), ONE)
    (done,) = feed.reassembler.supply([Routed("t", *encode(TWO))])
    assert isinstance(done, Completed)
    assert dict(done.positions) == {("t", 0): 0}


def test_a_copy_from_a_topic_takes_the_place_of_what_was_supplied() -> None:
    feed = Feed()
    feed.reassembler.supply([Routed("t", *encode(ONE))])
    events = feed(BatchMsg(h("1a"), "a/1", b"topic's"), counted())
    assert kinds(events) == ["Divergence", "Completed"]
    assert completed(events).updates["a/1"] == b"topic's"


def test_an_abandoned_block_is_explained_and_has_the_header_of_its_batch() -> None:
    feed = Feed()
    assert feed.reassembler.abandon(h("1a"), "lost") == []
    feed(counted(count=2), ONE, BatchMsg(h("2a"), "a/1", b""))
    (event,) = feed.reassembler.abandon(h("1a"), "lost")
    assert event == Quarantined(h("1a"), 1, "lost", HeaderOnly(1, h("1a"), ROOT, 1))
    why = feed.reassembler.explain(h("1a"))
    assert (why.state, why.reason) == ("abandoned", "lost")
    assert feed(TWO) == []
    assert feed.reassembler.abandon(h("2a"), "lost") == [Quarantined(h("2a"), None, "lost", None)]
    assert feed.reassembler.held_bytes == 0


def test_a_forgotten_block_is_assembled_from_records_that_are_re_read() -> None:
    feed = Feed()
    assert kinds(feed(ONE, counted())) == ["Completed"]
    feed.reassembler.forget(h("1a"))
    feed.reassembler.forget(h("1a"))
    assert feed.reassembler.held(h("1a")) is None
    assert kinds(feed(ONE, counted())) == ["Completed"]


def test_incomplete_blocks_are_stale_below_the_threshold_in_the_order_in_which_they_came() -> None:
    feed = Feed(reorg_threshold=8)
    feed(*(counted(f"{number}z", number) for number in (5, 3, 4, 900)))
    assert feed.reassembler.head_moved(11) == []
    reason = "incomplete 8 blocks below the head: it lacks 1 message"
    assert feed.reassembler.head_moved(100) == [Stale(BlockRef(at, h(f"{at}z")), reason) for at in (5, 3, 4)]
    assert feed.reassembler.explain(h("5z")).reason == reason
    assert feed(BatchMsg(h("5z"), "a/1", b"1")) == []
    feed(counted("2a", 2))
    assert kinds(feed.reassembler.head_moved(100)) == ["Stale"]
    assert feed.reassembler.open_blocks() == [h("900z")]


def test_a_block_far_below_the_head_is_not_opened_again_by_the_rest_of_its_messages() -> None:
    feed = Feed(reorg_threshold=8)
    feed.reassembler.head_moved(100)
    feed(counted("5a", 5), counted("6a", 6), BatchMsg(h("6a"), "a/1", b"1"))
    assert kinds(feed.reassembler.head_moved(101)) == ["Stale"]
    for head in range(102, 109):
        assert feed.reassembler.head_moved(head) == []
        assert feed(BatchMsg(h("5a"), "a/1", b"1"), BatchMsg(h("6a"), "a/1", b"1")) == []
        assert feed.reassembler.open_blocks() == []


# --- positions and digests ---------------------------------------------------------------------------------


def test_positions_and_time_come_with_a_completed_block_and_ranges_with_one_of_digests() -> None:
    reassembler, digests = Reassembler(), Reassembler(contents=Contents.DIGESTS)
    part = encode(ONE)
    records = [
        Record("tx", 2, 7, *part),
        Record("tx", 2, 9, *part),
        Record("t", 0, 3, *encode(counted()), 99, ((SEALED_HEADER, b""),)),
    ]
    for assembler, taken in ((reassembler, records), (digests, digested(records))):
        (event,) = assembler.receive(taken)
        assert isinstance(event, Completed)
        assert event.positions == {("tx", 2): 7, ("t", 0): 3}
        assert event.published_ms == 99
    assert isinstance(event.payload, HeaderOnly)
    assert (event.payload.ranges, event.payload.published_ms) == ({("tx", 2): (7, 8), ("t", 0): (3, 4)}, 99)
    supplied = Reassembler(contents=Contents.DIGESTS)
    supplied.receive(digested(records[-1:]))
    (event,) = supplied.supply([Routed("tx", *part)])
    assert isinstance(event, Completed)
    assert isinstance(event.payload, HeaderOnly)
    assert event.payload.ranges == {("t", 0): (3, 4)}


def test_digests_complete_the_same_blocks_without_content() -> None:
    records = Log().append(messages(block("1a", "0r", sub=True)))
    tx = next(record for record in records if record.topic == "tx" and record.value)
    path = tx.key[33:]
    events = Reassembler(prefixes=tuple(SCHEMA), contents=Contents.DIGESTS).receive(digested(records, keep={path}))
    (done,) = events
    assert isinstance(done, Completed)
    size = sum(len(record.key) + len(record.value) for record in records)
    ranges: dict[Partition, tuple[int, int]] = {}
    for record in records:
        low, _ = ranges.get(record[:2], (record.offset, 0))
        ranges[record[:2]] = low, record.offset + 1
    values = {b"head/1a": b"1a", path: tx.value}
    assert done.payload == HeaderOnly(1, h("1a"), ROOT, 1, values, ranges, records[-1].timestamp_ms, size)


def test_digests_see_a_difference() -> None:
    reassembler = Reassembler(contents=Contents.DIGESTS)
    one, two = (Record("t", 0, at, *encode(replace(ONE, value=value))) for at, value in enumerate((b"1", b"2")))
    part = Record("t", 0, 5, *encode(SubBatchMsg(h("1a"), h("s"), 0, ("x",), {"b": b"2", "a": b"1"})))
    assert kinds(reassembler.receive(digested((one, two, part, part._replace(offset=6))))) == ["Divergence"]
    heartbeat, torn = Record("t", 0, 0, *encode(Heartbeat())), part._replace(value=b"\x02")
    assert digested((heartbeat, torn)) == [heartbeat]
