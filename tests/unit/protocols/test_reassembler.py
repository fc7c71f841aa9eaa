"""Reassembly, case by case: completion, copies, prefixes, sub batches, bounds."""

from __future__ import annotations

import random

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    BatchMsg,
    Completed,
    Divergence,
    Heartbeat,
    Message,
    Overflow,
    Payload,
    Ping,
    PingSeen,
    Reassembler,
    Record,
    Rejected,
    Reorg,
    ReorgBegan,
    ReorgComplete,
    ReorgEnded,
    Routed,
    Stale,
    SubBatch,
    SubBatchHeader,
    SubBatchMsg,
    Surplus,
    Update,
    encode,
)
from cardinal.protocols.streams.assembly import window
from cardinal.protocols.streams.assembly.block import OpenBlock
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly, digested
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import ReassemblyEvent
from cardinal.protocols.streams.types import SEALED_HEADER, BlockRef, Partition
from streams import SCHEMA, Log, block, h, messages

ROOT = h("0r")


class Feed:
    """Messages to records, one partition a topic, offsets counting up."""

    def __init__(self, reassembler: Reassembler | None = None) -> None:
        self.reassembler = reassembler or Reassembler(prefixes=tuple(SCHEMA))
        self._offsets: dict[tuple[str, int], int] = {}

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


def completed(events: list[ReassemblyEvent]) -> Payload:
    (payload,) = [event.payload for event in events if isinstance(event, Completed)]
    assert isinstance(payload, Payload)
    return payload


def batch(name: str = "1a", **updates: Update) -> Batch:
    return Batch(h(name), 1, 1, ROOT, {path.replace("_", "/"): update for path, update in updates.items()})


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_a_blocks_messages_completes_it_once(seed: int) -> None:
    payload = block("1a", "0r", sub=True)
    records = Log().append(messages(payload))
    random.Random(seed).shuffle(records)
    done = [event for event in Reassembler(prefixes=tuple(SCHEMA)).receive(records) if isinstance(event, Completed)]
    got = completed(list(done))
    assert dict(got.updates) == {**payload.updates, "state/x": b"1a"}
    assert got.deletes == payload.deletes | {"state/gone"}


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


def test_positions_and_time_come_with_a_completed_block_and_ranges_with_one_of_digests() -> None:
    reassembler, digests = Reassembler(), Reassembler(contents=Contents.DIGESTS)
    key, value = encode(batch(a_=Update(count=1)))
    part = encode(BatchMsg(h("1a"), "a/x", b"1"))
    records = [
        Record("tx", 2, 7, *part),
        Record("tx", 2, 9, *part),
        Record("t", 0, 3, key, value, 99, ((SEALED_HEADER, b""),)),
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


# --- prefixes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefixes", "path", "counted"),
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
    ],
)
def test_a_message_counts_under_the_longest_prefix(prefixes: set[str], path: str, counted: str | None) -> None:
    feed = Feed()
    said = Batch(h("1a"), 1, 1, ROOT, {prefix: Update(count=1) for prefix in prefixes})
    feed(said)
    events = feed(BatchMsg(h("1a"), path, b"1"))
    left = set(feed.reassembler.explain(h("1a")).missing_counts)
    if counted is None:
        assert [type(event) for event in events] == [Surplus]
    elif prefixes == {counted}:
        assert completed(events).updates == {path: b"1"}
    else:
        assert left == prefixes - {counted}


def test_a_message_beyond_its_count_is_surplus_wherever_it_comes() -> None:
    feed = Feed()
    feed(BatchMsg(h("1a"), "a/1", b"1"), BatchMsg(h("1a"), "a/2", b"2"))
    events = feed(batch(a_=Update(count=1)))
    assert [type(event) for event in events] == [Surplus, Completed]
    assert completed(events).updates == {"a/1": b"1"}


def test_a_batch_with_a_negative_count_is_rejected_and_a_good_one_works() -> None:
    feed = Feed()
    (event,) = feed(batch(a_=Update(count=-3)))
    assert isinstance(event, Rejected)
    assert "counts -3 messages under 'a/'" in event.reason
    assert feed.reassembler.open_blocks() == []
    assert completed(feed(batch())).hash == h("1a")


def test_an_entry_that_says_nothing_is_an_empty_value_or_a_count_of_zero() -> None:
    feed = Feed(Reassembler(prefixes=(r"b/\w+/t/",)))
    assert completed(feed(batch(x=Update(), b_1a_t_=Update()))).updates == {"x": b""}


# --- copies ------------------------------------------------------------------------------------------------


def test_equal_copies_are_silent_before_and_after_completion() -> None:
    feed = Feed()
    part, head = BatchMsg(h("1a"), "a/1", b"1"), batch(a_=Update(count=1))
    assert [type(event) for event in feed(part, part, head, part, head)] == [Completed]


def test_the_copy_at_the_lowest_position_counts_and_the_other_is_reported() -> None:
    feed = Feed()
    feed(BatchMsg(h("1a"), "a/1", b"late"), topic="t", at=8)
    (event,) = feed(BatchMsg(h("1a"), "a/1", b"early"), topic="t", at=2)
    assert event == Divergence(h("1a"), event.key, b"late", b"early", (("t", 0, 8), ("t", 0, 2)))  # type: ignore[union-attr]
    assert completed(feed(batch(a_=Update(count=1)), at=9)).updates == {"a/1": b"early"}


def test_a_lie_after_completion_is_still_reported() -> None:
    feed = Feed()
    feed(BatchMsg(h("1a"), "a/1", b"1"), batch(a_=Update(count=1)))
    (value,) = feed(BatchMsg(h("1a"), "a/1", b"2"))
    (header,) = feed(Batch(h("1a"), 1, 7, ROOT, {"a/": Update(count=1)}))
    assert isinstance(value, Divergence)
    assert isinstance(header, Divergence)
    assert (value.kept, value.seen) == (b"1", b"2")


def test_a_second_batch_that_differs_is_reported_and_the_first_stays() -> None:
    feed = Feed()
    feed(batch(a_=Update(count=1)))
    (event,) = feed(batch(a_=Update(count=2)))
    assert isinstance(event, Divergence)
    assert completed(feed(BatchMsg(h("1a"), "a/1", b"1"))).updates == {"a/1": b"1"}


def test_of_more_batches_than_four_each_is_reported_and_none_held() -> None:
    feed = Feed()
    events = [event for count in range(1, 8) for event in feed(batch(a_=Update(count=count)))]
    assert [type(event) for event in events] == [Divergence] * 6
    held = feed.reassembler.held(h("1a"))
    assert isinstance(held, OpenBlock)
    assert len(held.candidates) == 4


def test_sub_batch_messages_in_another_order_of_entries_are_equal() -> None:
    feed = Feed()
    key, _ = encode(SubBatchMsg(h("1a"), h("s"), 0))
    feed((key, bytes.fromhex("00 04 02 61 02 31 02 62 02 32 00")))
    assert feed((key, bytes.fromhex("00 04 02 62 02 32 02 61 02 31 00"))) == []
    (event,) = feed((key, bytes.fromhex("00 02 02 62 02 32 00")))
    assert isinstance(event, Divergence)


# --- sub batches -------------------------------------------------------------------------------------------


def sub_batch_block() -> list[Message]:
    return [
        SubBatchHeader(h("1a"), h("s"), 2),
        SubBatchMsg(h("1a"), h("s"), 0, ("x/",), {"p": b"low", "q": b"low"}),
        SubBatchMsg(h("1a"), h("s"), 1, (), {"p": b"high"}),
        BatchMsg(h("1a"), "q", b"message"),
        batch(state_=Update(sub_batch=h("s")), q=Update(count=1)),
    ]


def test_a_path_takes_the_highest_index_and_a_message_beats_a_sub_batch() -> None:
    got = completed(Feed()(*sub_batch_block()))
    assert got.updates == {"p": b"high", "q": b"message"}
    assert got.deletes == {"x/"}


def test_an_index_beyond_the_header_is_surplus() -> None:
    feed = Feed()
    feed(SubBatchHeader(h("1a"), h("s"), 1))
    (event,) = feed(SubBatchMsg(h("1a"), h("s"), 1))
    assert isinstance(event, Surplus)


def test_an_index_that_came_before_its_header_and_lies_beyond_it_is_left_out() -> None:
    feed = Feed()
    feed(SubBatchMsg(h("1a"), h("s"), 5, (), {"z": b"z"}), SubBatchMsg(h("1a"), h("s"), 0, (), {"y": b"y"}))
    got = completed(feed(SubBatchHeader(h("1a"), h("s"), 1), batch(state_=Update(sub_batch=h("s")))))
    assert got.updates == {"y": b"y"}


def test_headers_that_disagree_are_reported_and_the_lower_position_counts() -> None:
    feed = Feed()
    feed(batch(state_=Update(sub_batch=h("s"))))
    feed(SubBatchHeader(h("1a"), h("s"), 2), at=8)
    (event, done) = feed(SubBatchHeader(h("1a"), h("s"), 0), at=3)
    assert isinstance(event, Divergence)
    assert isinstance(done, Completed)


# --- bytes that are no messages ----------------------------------------------------------------------------

BAD = [
    (b"\x00" + h("1a"), b"\x02"),
    (b"\x00" + h("1a") + b"x", encode(batch())[1]),
    (b"\x01" + h("1a") + h("s"), b""),
    (b"\x01" + h("1a") + h("s"), b"\x01"),
    (b"\x01" + h("1a"), b"\x02"),
    (b"\x02" + h("1a") + h("s"), b"\x00\x00"),
    (b"\x02" + h("1a") + h("s") + b"\x00", b"\x02"),
    (b"\x09" + h("1a"), b""),
    (b"\x03short", b""),
    (b"\xff" + h("p"), b""),
    (b"\x05" + h("1a"), b""),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_what_does_not_decode_is_rejected_and_pins_nothing(bad: tuple[bytes, bytes]) -> None:
    feed = Feed()
    (event,) = feed(bad)
    assert isinstance(event, Rejected)
    assert event.position == ("t", 0, 0)
    assert feed.reassembler.open_positions() == {}
    assert completed(feed(batch())).number == 1


def test_a_bad_copy_does_not_take_the_place_of_a_good_one() -> None:
    feed = Feed()
    feed(SubBatchHeader(h("1a"), h("s"), 1), SubBatchMsg(h("1a"), h("s"), 0, (), {"y": b"y"}), at=8)
    part, _ = encode(SubBatchMsg(h("1a"), h("s"), 0))
    header, _ = encode(SubBatchHeader(h("1a"), h("s"), 0))
    events = feed((part, b"\x02"), (header, b""), at=1)
    assert [type(event) for event in events] == [Rejected, Rejected]
    assert completed(feed(batch(state_=Update(sub_batch=h("s"))), at=10)).updates == {"y": b"y"}


def test_a_late_batch_that_does_not_decode_is_rejected() -> None:
    feed = Feed()
    feed(batch())
    (event,) = feed((b"\x00" + h("1a"), b"\x02"))
    assert isinstance(event, Rejected)


def test_pings_and_reorg_marks_are_events_and_heartbeats_are_nothing() -> None:
    events = Feed()(Ping(h("p"), 1), Reorg(h("1a"), 7), ReorgComplete(h("1a"), 7), Heartbeat())
    assert events == [
        PingSeen(Ping(h("p"), 1), ("t", 0, 0)),
        ReorgBegan(BlockRef(7, h("1a")), ("t", 0, 1)),
        ReorgEnded(BlockRef(7, h("1a")), ("t", 0, 2)),
    ]


# --- tracking ----------------------------------------------------------------------------------------------


def test_only_tracked_entries_are_waited_for_and_delivered() -> None:
    feed = Feed(Reassembler(["/t/$"]))
    head = batch(b_1a_t_=Update(count=1), b_1a_l_=Update(count=5), inside=Update(value=b"x"))
    feed(BatchMsg(h("1a"), "b/1a/l/0", b"log"))
    assert completed(feed(BatchMsg(h("1a"), "b/1a/t/0", b"tx"), head)).updates == {"b/1a/t/0": b"tx"}


def test_what_no_expression_matches_is_not_kept_before_its_batch() -> None:
    feed = Feed(Reassembler(["/t/"]))
    feed(*(BatchMsg(h(f"{index}a"), f"b/x/l/{index}", b"log") for index in range(50)))
    assert feed.reassembler.open_blocks() == []
    feed(BatchMsg(h("1a"), "b/1a/t/0", b"tx"), BatchMsg(h("1a"), "b/1a/t/1", b"tx"), BatchMsg(h("1a"), "at/t/", b""))
    assert feed.reassembler.open_blocks() == [h("1a")]


def test_untracked_surplus_is_not_worth_a_word() -> None:
    feed = Feed(Reassembler(["/t/"]))
    feed(batch(b_1a_t_=Update(count=1)))
    assert feed(BatchMsg(h("1a"), "b/1a/l/0", b"log")) == []


def test_a_tracked_expression_that_does_not_compile_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="does not compile"):
        Reassembler(["("])


# --- bounds ------------------------------------------------------------------------------------------------


def test_open_blocks_are_bounded_and_headless_ones_go_first() -> None:
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=10)))
    feed(batch("1a", a_=Update(count=1)))
    events = feed(*(BatchMsg(h(f"x{index}"), "a/1", b"") for index in range(12)))
    dropped = [event for event in events if isinstance(event, Overflow)]
    assert dropped
    assert all(event.number is None for event in dropped)
    assert h("1a") in feed.reassembler.open_blocks()
    assert feed.reassembler.explain(dropped[0].block).state == "unknown"
    feed(BatchMsg(dropped[0].block, "a/1", b""), at=0)
    (done,) = feed(Batch(dropped[0].block, 1, 1, ROOT, {"a/": Update(count=1)}))
    assert isinstance(done, Completed)


def test_a_block_is_not_evicted_for_its_own_first_message() -> None:
    """All others have a Batch, and would be in its place for ever."""
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=10)))
    feed(*(Batch(h(f"x{index}"), index, index, ROOT, {"a/": Update(count=1)}) for index in range(10)))
    evicted = feed(BatchMsg(h("1a"), "a/1", b""), topic="u", partition=3, at=7)
    assert [event.number for event in evicted if isinstance(event, Overflow)] == [9, 8]
    headless, farthest = feed(Batch(h("y5"), 5, 5, ROOT, {"a/": Update(count=1)}), BatchMsg(h("2a"), "a/1", b""))
    assert headless == Overflow(h("1a"), None, {("u", 3): 7}, "open blocks are over their bound")
    assert isinstance(farthest, Overflow)
    assert farthest.number == 7
    key, value = encode(BatchMsg(h("1a"), "a/1", b""))
    (supplied,) = Reassembler(bounds=Bounds(open_bytes=500)).supply([Routed("u", key, value)])
    assert isinstance(supplied, Overflow)
    assert supplied.positions == {}


def test_a_block_that_a_complete_one_stands_on_is_evicted_last() -> None:
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=10)))
    feed(BatchMsg(h("5a"), "a/1", b""), Batch(h("6a"), 6, 6, h("5a")))
    feed(Batch(h("7a"), 7, 7, h("none"), {"a/": Update(count=1)}))
    events = feed(*(Batch(h(f"x{index}"), index, index, ROOT, {"a/": Update(count=1)}) for index in range(40)))
    assert any(isinstance(event, Overflow) for event in events)
    assert feed.reassembler.open_blocks()[:1] == [h("5a")]
    (done,) = feed(Batch(h("5a"), 5, 5, ROOT, {"a/": Update(count=1)}))
    assert isinstance(done, Completed)


def test_parents_that_nobody_publishes_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_AWAITED_MAX", 3)
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=10)))
    feed(*(Batch(h(f"{index}x"), 5, 5, h(f"{index}none")) for index in range(5)))
    feed(*(BatchMsg(h(f"{index}none"), "a/1", b"") for index in range(5)))
    evicted = feed(*(Batch(h(f"y{index}"), index, index, ROOT, {"a/": Update(count=1)}) for index in range(6)))
    assert {event.block for event in evicted if isinstance(event, Overflow)} == {h("0none"), h("1none")}


def test_it_says_how_much_of_the_room_for_open_blocks_is_taken() -> None:
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=40)))
    feed(*(BatchMsg(h(f"x{index}"), "a/1", b"") for index in range(10)))
    assert feed.reassembler.fullness == 10 / 40
    feed(BatchMsg(h("1a"), "a/1", b""))
    assert feed.reassembler.fullness == 11 / 40
    feed(batch("1a", a_=Update(count=1)))
    assert feed.reassembler.fullness == 10 / 40
    feed = Feed(Reassembler(bounds=Bounds(open_blocks=40, open_bytes=100_000)))
    feed(BatchMsg(h("1a"), "a/1", bytes(50_000)))
    assert 0.5 < feed.reassembler.fullness < 0.6


def test_the_number_of_a_block_is_what_its_batch_says_while_it_is_remembered() -> None:
    feed = Feed(Reassembler())
    assert feed.reassembler.number_of(h("1a")) is None
    feed(BatchMsg(h("1a"), "a/1", b""))
    assert feed.reassembler.number_of(h("1a")) is None
    feed(batch("1a", a_=Update(count=2)))
    assert feed.reassembler.number_of(h("1a")) == feed.reassembler.explain(h("1a")).number == 1
    feed(BatchMsg(h("1a"), "a/2", b""))
    assert feed.reassembler.explain(h("1a")).state == "complete"
    assert feed.reassembler.number_of(h("1a")) == 1


def test_bytes_of_open_blocks_are_bounded_and_the_highest_number_goes() -> None:
    feed = Feed(Reassembler(bounds=Bounds(open_bytes=100_000)))
    for number in range(1, 9):
        said = Batch(h(f"{number}a"), number, number, ROOT, {"a/": Update(count=2)})
        feed(said, BatchMsg(said.hash, "a/1", bytes(20_000)))
    left = feed.reassembler.open_blocks()
    assert h("1a") in left
    assert h("7a") not in left


def test_an_incomplete_block_is_stale_below_the_threshold_whenever_it_came() -> None:
    feed = Feed(Reassembler(reorg_threshold=8))
    feed(batch(a_=Update(count=1)))
    assert feed.reassembler.head_moved(9) == []
    (event,) = feed.reassembler.head_moved(12)
    reason = "incomplete 8 blocks below the head: it lacks 1 messages"
    assert event == Stale(BlockRef(1, h("1a")), reason)
    assert feed.reassembler.explain(h("1a")).reason == reason
    assert feed(BatchMsg(h("1a"), "a/1", b"1")) == []
    feed(batch("2a", a_=Update(count=1)))
    assert feed.reassembler.head_moved(12) == []
    (event,) = feed.reassembler.head_moved(13)
    assert isinstance(event, Stale)
    assert feed.reassembler.open_blocks() == []


def test_headers_are_those_of_open_blocks_with_a_batch() -> None:
    feed = Feed()
    feed(batch("1a", a_=Update(count=1)), BatchMsg(h("2a"), "a/1", b""), batch("3a"))
    assert feed.reassembler.open_blocks() == [h("1a"), h("2a")]
    assert feed.reassembler.header_of(h("1a")) == HeaderOnly(1, h("1a"), ROOT, 1, {})
    assert [feed.reassembler.header_of(h(name)) for name in ("2a", "3a", "4a")] == [None, None, None]


def test_completed_blocks_are_recognised_for_twice_the_threshold() -> None:
    feed = Feed(Reassembler(reorg_threshold=8))
    part = BatchMsg(h("1a"), "a/1", b"1")
    feed(part, batch(a_=Update(count=1)))
    feed.reassembler.head_moved(16)
    (event,) = feed(BatchMsg(h("1a"), "a/1", b"other"))
    assert isinstance(event, Divergence)
    assert event.positions == (("t", 0, 0), ("t", 0, 2))
    feed.reassembler.head_moved(30)
    assert feed.reassembler.explain(h("1a")).state == "unknown"


def test_a_headless_hash_stops_pinning_positions_after_a_distance() -> None:
    feed = Feed(Reassembler(bounds=Bounds(headless_distance=5)))
    feed(BatchMsg(h("1a"), "a/1", b""))
    assert feed.reassembler.open_positions() == {("t", 0): 0}
    feed(*(Heartbeat() for _ in range(6)))
    assert feed.reassembler.open_positions() == {}


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="threshold"):
        Reassembler(reorg_threshold=0)


# --- resuming, digests -------------------------------------------------------------------------------------


def test_digests_complete_the_same_blocks_without_content() -> None:
    records = Log().append(messages(block("1a", "0r", sub=True)))
    events = Reassembler(prefixes=tuple(SCHEMA), contents=Contents.DIGESTS).receive(digested(records))
    (done,) = events
    assert isinstance(done, Completed)
    size = sum(len(record.key) + len(record.value) for record in records)
    ranges: dict[Partition, tuple[int, int]] = {}
    for record in records:
        low, _ = ranges.get(record[:2], (record.offset, 0))
        ranges[record[:2]] = low, record.offset + 1
    marks, published_ms = {b"head/1a": b"1a"}, records[-1].timestamp_ms
    assert done.payload == HeaderOnly(1, h("1a"), ROOT, 1, marks, ranges, published_ms, size)


def test_digests_see_a_difference() -> None:
    reassembler = Reassembler(contents=Contents.DIGESTS)
    one, two = (Record("t", 0, at, *encode(BatchMsg(h("1a"), "a/1", value))) for at, value in enumerate((b"1", b"2")))
    part = Record("t", 0, 5, *encode(SubBatchMsg(h("1a"), h("s"), 0, ("x",), {"b": b"2", "a": b"1"})))
    events = reassembler.receive(digested((one, two, part, part._replace(offset=6))))
    assert [type(event) for event in events] == [Divergence]
    heartbeat, torn = Record("t", 0, 0, *encode(Heartbeat())), part._replace(value=b"\x02")
    assert digested((heartbeat, torn)) == [heartbeat]


def test_values_that_are_asked_for_stay_beside_their_digests() -> None:
    one, other = (Record("t", 0, at, *encode(BatchMsg(h("1a"), path, b"v"))) for at, path in enumerate(("a/1", "a/2")))
    batch_ = Record("t", 0, 2, *encode(batch(a_=Update(count=2))))
    reassembler = Reassembler(contents=Contents.DIGESTS)
    (done,) = reassembler.receive(digested((one, other, batch_), keep={b"a/2"}))
    assert isinstance(done, Completed)
    assert isinstance(done.payload, HeaderOnly)
    assert done.payload.values == {b"a/2": b"v"}


def test_a_payload_can_be_announced_without_its_sub_batch() -> None:
    announced = Payload(1, h("1a"), ROOT, 1, {}, frozenset(), {h("s"): None})
    late = SubBatch("", {"y": b"y"})
    assert announced.sub_batches[h("s")] is None
    feed = Feed()
    for message in messages(announced):
        feed((message.key, message.value))
    assert feed.reassembler.explain(h("1a")).missing_headers == (h("s"),)
    got = completed(feed(SubBatchHeader(h("1a"), h("s"), 1), SubBatchMsg(h("1a"), h("s"), 0, (), late.updates)))
    assert got.updates == {"y": b"y"}
