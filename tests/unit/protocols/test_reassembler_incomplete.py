"""Blocks that do not come as they should: overdue, supplied, given up, read again, of two minds; and what is cheap."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import pytest

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Completed,
    Incomplete,
    Payload,
    Quarantined,
    Reassembler,
    Record,
    Routed,
    Stale,
    SubBatchHeader,
    SubBatchMsg,
    Surplus,
    Update,
    encode,
)
from cardinal.protocols.streams.assembly.counters import Counters, Tracked
from cardinal.protocols.streams.assembly.digests import HeaderOnly
from cardinal.protocols.streams.assembly.window import RECENT_MAX, Bounds, RecentBlock, RecentBlocks
from cardinal.protocols.streams.events import ReassemblyEvent, Superseded
from cardinal.protocols.streams.payload import PathMap
from streams import SCHEMA, h

ROOT = h("0r")
COUNTED = Batch(h("1a"), 1, 1, ROOT, {"a/": Update(count=2)})
ONE, TWO = BatchMsg(h("1a"), "a/1", b"1"), BatchMsg(h("1a"), "a/2", b"2")


def records(*said: object, partition: int = 0, begin: int = 0) -> list[Record]:
    return [Record("t", partition, begin + at, *encode(message)) for at, message in enumerate(said)]  # type: ignore[arg-type]  # messages


def kinds(events: list[ReassemblyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def payload_of(events: list[ReassemblyEvent]) -> Payload:
    (payload,) = [event.payload for event in events if isinstance(event, Completed)]
    assert isinstance(payload, Payload)
    return payload


def others(count: int, begin: int) -> list[Record]:
    """Whole blocks, each on the one before, for the deadline to come nearer."""
    chain = [h(f"{begin + at}c") for at in range(count + 1)]
    return records(
        *(Batch(chain[at + 1], begin + at, 1, chain[at]) for at in range(count)), partition=9, begin=begin * 1000
    )


# --- overdue -----------------------------------------------------------------------------------------------


def test_an_overdue_block_is_reported_once_with_what_it_lacks() -> None:
    made = Reassembler(deadline=3)
    made.receive(records(COUNTED, ONE))
    events = made.receive(others(20, 50))
    (report,) = [event for event in events if isinstance(event, Incomplete)]
    assert report.explanation.missing_counts == {"a/": 1}
    assert report.explanation.state == "open"
    assert payload_of(made.receive(records(TWO, begin=5))).updates == {"a/1": b"1", "a/2": b"2"}


def test_what_is_supplied_completes_a_block_and_pins_no_position() -> None:
    made = Reassembler()
    made.receive(records(COUNTED, ONE))
    (done,) = made.supply([Routed("t", *encode(TWO))])
    assert isinstance(done, Completed)
    assert dict(done.positions) == {("t", 0): 0}


def test_a_copy_from_a_topic_takes_the_place_of_what_was_supplied() -> None:
    made = Reassembler()
    made.supply([Routed("t", *encode(ONE))])
    said = made.receive(records(BatchMsg(h("1a"), "a/1", b"topic's"), TWO, COUNTED))
    assert kinds(said) == ["Divergence", "Completed"]
    assert payload_of(said).updates["a/1"] == b"topic's"


def test_nothing_is_given_up_that_is_not_open() -> None:
    assert Reassembler().abandon(h("1a"), "why not") == []


def test_a_block_that_is_given_up_is_explained_and_its_header_leads_on() -> None:
    made = Reassembler()
    made.receive(records(COUNTED, ONE))
    (event,) = made.abandon(h("1a"), "its messages are lost")
    assert event == Quarantined(h("1a"), 1, "its messages are lost", HeaderOnly(1, h("1a"), ROOT, 1, {}))
    assert made.explain(h("1a")).state == "abandoned"
    assert made.explain(h("1a")).reason == "its messages are lost"
    assert made.receive(records(TWO, begin=5)) == []
    assert made.held_bytes == 0


def test_without_a_batch_a_block_that_is_given_up_leads_nowhere() -> None:
    made = Reassembler()
    made.receive(records(ONE))
    assert made.abandon(h("1a"), "nobody knows it") == [Quarantined(h("1a"), None, "nobody knows it", None)]


def test_a_finished_block_is_taken_anew_after_it_was_let_go() -> None:
    made = Reassembler()
    said = records(ONE, TWO, COUNTED)
    assert kinds(made.receive(said)) == ["Completed"]
    assert made.held(h("1a")) is not None
    made.forget(h("1a"))
    made.forget(h("1a"))
    assert made.held(h("1a")) is None
    assert kinds(made.receive(said)) == ["Completed"]


def test_an_overdue_block_is_delivered_by_its_other_batch() -> None:
    made = Reassembler(deadline=3)
    other = replace(COUNTED, updates={"a/": Update(count=1)})
    made.receive(records(COUNTED, other, ONE))
    events = made.receive(others(20, 50))
    (superseded,) = [event for event in events if isinstance(event, Superseded)]
    assert (superseded.first, superseded.delivered) == (("t", 0, 0), ("t", 0, 1))
    assert h("1a") in [event.payload.hash for event in events if isinstance(event, Completed)]


def test_an_overdue_block_waits_for_whichever_of_its_batches_is_complete_first() -> None:
    made = Reassembler(deadline=3)
    made.receive(records(COUNTED, replace(COUNTED, updates={"b/": Update(count=1)}), ONE))
    events = made.receive(others(20, 50))
    assert kinds(events).count("Incomplete") == 1
    assert kinds(events).count("Completed") == 20
    said = made.receive(records(BatchMsg(h("1a"), "b/1", b""), begin=5))
    assert kinds(said) == ["Surplus", "Superseded", "Completed"]


def test_missing_parts_of_a_sub_batch_are_named() -> None:
    made = Reassembler()
    head = Batch(h("1a"), 1, 1, ROOT, {"s": Update(sub_batch=h("s"))})
    made.receive(records(head, SubBatchHeader(h("1a"), h("s"), 3), SubBatchMsg(h("1a"), h("s"), 1)))
    assert made.explain(h("1a")).missing_parts == {h("s"): (0, 2)}


def test_a_finished_block_that_is_larger_than_the_bound_is_let_go_at_once() -> None:
    made = Reassembler(bounds=Bounds(finished_bytes=10_000))
    big = records(BatchMsg(h("1a"), "a/1", bytes(50_000)), TWO, COUNTED)
    (done,) = made.receive(big)
    assert made.held_bytes == 0
    assert made.receive([big[0]._replace(value=b"another")]) == []  # it is known, and no longer compared
    assert isinstance(done, Completed)
    assert len(done.payload.updates["a/1"]) == 50_000  # type: ignore[union-attr]  # a payload


# --- counted, tracked, cheap -------------------------------------------------------------------------------


def test_a_prefix_that_is_not_followed_takes_its_messages_even_where_it_counts_none() -> None:
    """Else they would count under a shorter prefix that is followed."""
    made = Reassembler(["/n$"], prefixes=["b/1b/n(?!n)", "b/1b/nn"])
    head = Batch(h("1a"), 1, 1, ROOT, {"b/1b/n": Update(count=1), "b/1b/nn": Update()})
    assert made.receive(records(head, BatchMsg(h("1a"), "b/1b/nn0", b"other's"))) == []
    assert payload_of(made.receive(records(BatchMsg(h("1a"), "b/1b/n0", b"ours"), begin=5))).updates == {
        "b/1b/n0": b"ours"
    }


def test_topics_that_nobody_follows_cost_next_to_no_memory() -> None:
    made = Reassembler(["/t/"])
    said = [
        Record("t", 0, at, *encode(BatchMsg(h(f"{at % 500}a"), f"b/x/l/{at}", bytes(1000)))) for at in range(20_000)
    ]
    tracemalloc.start()
    made.receive(said)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert made.held_bytes == 0
    assert held < 200_000  # of 20 MB


def test_a_record_that_is_given_twice_counts_once() -> None:
    """The same object, as a reader in one process may give it."""
    made = Reassembler()
    (first,) = records(ONE)
    assert made.receive([*records(COUNTED, begin=5), first, first, first]) == []
    assert kinds(made.receive([first, *records(TWO, begin=8)])) == ["Completed"]


@pytest.mark.parametrize(
    ("keys", "counted"),
    [
        ([b"\3" + h("1a") + b"a/1", b"\3" + h("1a") + b"a/2"], True),
        ([b"\3" + h("1a") + b"a/1", b"\3" + h("1a") + b"b/2", b"\3" + h("1a") + b"a/2"], True),
        ([b"\3" + h("1a") + b"a/%d" % at for at in range(3)], False),
        ([b"\3" + h("1a") + b"none"], False),
        ([b"\4" + h("1a") + b"a/1"], False),
        ([b"\3" + b"/" * 32 + b"none"], False),
        ([b"\3" + h("1a") + b"c/1"], False),
        ([], True),
    ],
)
def test_messages_before_their_batch_are_counted_all_at_once_or_one_by_one(keys: list[bytes], counted: bool) -> None:  # noqa: FBT001 - a case's outcome
    counters = Counters({b"a/": 2, b"b/": 1, b"/": 1})
    assert counters.take_all(keys) is counted
    assert counters.outstanding == (4 - len(keys) if counted else 4)


def test_a_value_straight_below_the_root_counts_under_a_slash() -> None:
    made = Reassembler()
    head = Batch(h("1a"), 1, 1, ROOT, {"/": Update(count=1)})
    assert payload_of(made.receive(records(BatchMsg(h("1a"), "/x", b""), head))).updates == {"/x": b""}


def test_empty_values_and_deletes_come_through_whole() -> None:
    made = Reassembler(prefixes=tuple(SCHEMA))
    head = Batch(
        h("1a"), 1, 1, ROOT, {"a/": Update(count=3), "own": Update(), "gone": Update(delete=True), "": Update()}
    )
    said = [BatchMsg(h("1a"), "a/", b""), BatchMsg(h("1a"), "a/x", b""), BatchDeleteMsg(h("1a"), "a/y")]
    payload = payload_of(made.receive(records(*said, head)))
    assert payload.updates == {"a/": b"", "a/x": b"", "own": b"", "": b""}
    assert payload.deletes == {"gone", "a/y"}


def test_after_completion_every_kind_of_late_message_is_told_apart() -> None:
    made = Reassembler()
    said = records(ONE, TWO, COUNTED)
    made.receive(said)
    late = [
        said[0],
        said[1]._replace(offset=10, value=b"other"),
        *records(BatchMsg(h("1a"), "a/3", b""), begin=11),
        said[0]._replace(value=b"lie", offset=12),
        *records(BatchMsg(h("2a"), "a/1", b""), begin=13),
        said[0]._replace(value=b"lie", offset=14),
    ]
    events = made.receive(late)
    assert kinds(events) == ["Divergence", "Surplus", "Divergence", "Divergence"]
    assert isinstance(events[1], Surplus)


def test_blocks_below_the_threshold_are_given_up_in_the_order_in_which_they_came() -> None:
    made = Reassembler(reorg_threshold=8)
    numbers = [5, 3, 4, 900]
    made.receive(records(*(replace(COUNTED, hash=h(f"{number}z"), number=number) for number in numbers)))
    lost = made.head_moved(100)
    assert [event.block.hash for event in lost if isinstance(event, Stale)] == [h("5z"), h("3z"), h("4z")]
    assert made.open_blocks() == [h("900z")]


def test_an_expression_that_does_not_compile_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="prefixes") as caught:
        Reassembler(prefixes=["("])
    assert caught.value.setting == "prefixes"


# --- the corners -------------------------------------------------------------------------------------------


def test_of_equal_batches_the_one_at_the_lowest_position_is_named() -> None:
    made = Reassembler()
    made.receive(records(COUNTED, begin=9))
    made.receive([record._replace(timestamp_ms=7) for record in records(COUNTED)])
    done = made.receive(records(ONE, TWO, begin=3))[-1]
    assert isinstance(done, Completed)
    assert done.published_ms == 7


def test_deletes_and_sub_batches_that_are_not_followed_are_not_held() -> None:
    made = Reassembler(["/t/"])
    assert made.receive(records(BatchDeleteMsg(h("1a"), "b/x/l/1"))) == []
    assert made.open_blocks() == []
    entries = {"b/x/t/": Update(count=1), "b/x/l/": Update(sub_batch=h("s"))}
    made.receive(records(BatchMsg(h("1a"), "b/x/t/1", b""), begin=1))
    said = (BatchDeleteMsg(h("1a"), "b/x/l/1"), SubBatchHeader(h("1a"), h("s"), 1), SubBatchMsg(h("1a"), h("s"), 0))
    held = made.held_bytes
    assert made.receive(records(said[0], begin=2)) == []
    assert made.held_bytes == held
    made.receive(records(BatchMsg(h("2a"), "b/x/t/1", b""), begin=3))
    made.receive(records(Batch(h("2a"), 1, 1, ROOT, {**entries, "b/x/t/": Update(count=2)}), begin=4))
    held = made.held_bytes
    assert made.receive(records(*(replace(one, hash=h("2a")) for one in said), begin=5)) == []
    assert made.held_bytes == held


def test_a_header_with_a_negative_count_is_rejected_and_takes_no_place() -> None:
    made = Reassembler()
    key, _ = encode(SubBatchHeader(h("1a"), h("s"), 1))
    assert kinds(made.receive([Record("t", 0, 9, key, b"\1")])) == ["Rejected"]
    made.receive([Record("t", 0, 5, key, b"\2")])
    assert kinds(made.receive([Record("t", 0, 4, key, b"\1")])) == ["Divergence"]
    head = Batch(h("1a"), 1, 1, ROOT, {"s": Update(sub_batch=h("s"))})
    assert made.receive(records(head, begin=20)) == []
    assert made.explain(h("1a")).missing_parts == {h("s"): (0,)}


def test_inline_entries_are_followed_whatever_their_path() -> None:
    head = Batch(h("1a"), 1, 1, ROOT, {"own": Update(value=b"x"), "a/": Update(count=5)})
    assert payload_of(Reassembler(["/t/"], inline=True).receive(records(head))).updates == {"own": b"x"}


def test_directories_that_match_are_remembered_within_a_bound() -> None:
    tracked = Tracked(["/t/"])
    assert all(tracked.may_belong(b"%d/t/1" % at) for at in range(10_000))
    assert len(tracked.directories) <= 4096
    assert tracked.may_belong(b"1/t/2")


def test_finished_hashes_are_bounded_and_so_are_their_numbers() -> None:
    finished = RecentBlocks(256, 1_000)
    for number in range(RECENT_MAX + 1):
        finished.add(number.to_bytes(32), RecentBlock(number))
    assert (0).to_bytes(32) not in finished
    assert RECENT_MAX.to_bytes(32) in finished
    for number in range(2, RECENT_MAX):
        finished.forget(number.to_bytes(32))
    for number in range(RECENT_MAX, RECENT_MAX + 3):
        finished.add(bytes([1]) + number.to_bytes(31), RecentBlock(number + 7))
    assert len(finished._numbers._heap) < 2_000


# --- content that is made when somebody looks --------------------------------------------------------------


def test_content_is_made_once_and_survives_pickling() -> None:
    made: list[int] = []

    def make() -> dict[bytes, bytes]:
        made.append(1)
        return {b"a": b"1"}

    view = PathMap(make)
    assert made == []
    assert view == {"a": b"1"}
    assert len(view) == 1
    assert pickle.loads(pickle.dumps(view)) == {"a": b"1"}  # noqa: S301 - made here
    assert view.raw is view.raw
    assert made == [1]
